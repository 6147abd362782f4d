//! The relay of the benches between two network namespaces, as `cargo xtask bench loss` uses it: a stream through it is
//! whole, and what the relay says about itself by its own clock keeps to what it was told.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::running::{BENCH, Running, WATCHDOG};
use serde_json::Value;

/// Says to this program, started again, that it is inside a namespace of its own.
const INSIDE: &str = "RAAS_BENCH_TEST_INSIDE";
const RELAY: [&str; 5] = ["linkrelay", "--near", "near", "--far", "far"];
const SERVER: &str = "10.80.0.2:0";
const RATE_BITS_PER_S: f64 = 50e6;
const DELAY_US: f64 = 3_000.0;

fn unshare(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--fork", "--kill-child", "--"]).arg(program);
    command
}

fn skip(name: &str, why: &str) {
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!ci, "no namespace with taps here: {why}");
    eprintln!("SKIP {name}: no namespace with taps here: {why}");
}

/// Runs `body` in a namespace of its own, in which this user may do all and make taps. Where that cannot be it says that
/// the test was skipped, and fails under `CI=true`.
fn in_namespace(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let tried = unshare("ip").args(["tuntap", "add", "name", "probe", "mode", "tap"]).output();
    match tried {
        Ok(out) if out.status.success() => {}
        Ok(out) => return skip(name, String::from_utf8_lossy(&out.stderr).trim()),
        Err(e) => return skip(name, &format!("no `unshare`: {e}")),
    }
    let program = std::env::current_exe().expect("a test has a program");
    let again = unshare(program)
        .args(["--exact", &format!("relay::{name}"), "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    assert!(again.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

fn run(program: &str, words: &str) {
    let out = Command::new(program).args(words.split_whitespace()).output().expect("it starts");
    assert!(out.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&out.stderr));
}

/// The other end, and the relay between.
struct Field {
    relay: Running,
    other: Running,
}

impl Field {
    fn new() -> Self {
        let mut other = Running::start("unshare", &["--net", "sh", "-c", "echo here; exec cat"]);
        other.line("here");
        let mut relay = Running::bench(&RELAY);
        relay.line("ready");
        let inside = format!("--net=/proc/{}/ns/net ip", other.pid());
        run("ip", &format!("link set far netns {}", other.pid()));
        run("ip", "addr add 10.80.0.1/24 dev near");
        run("ip", "link set near txqueuelen 8192 up");
        run("nsenter", &format!("{inside} addr add 10.80.0.2/24 dev far"));
        run("nsenter", &format!("{inside} link set far txqueuelen 8192 up"));
        Self { relay, other }
    }

    fn set(&mut self, json: &str) {
        self.relay.say(&format!("set {json}"));
        self.relay.line("set");
    }

    fn stats(&mut self) -> Value {
        self.relay.say("stats");
        serde_json::from_str(&self.relay.line("stats ")).expect("stats are JSON")
    }

    fn sockbench(&self, test: &[&str]) -> Value {
        let net = format!("--net=/proc/{}/ns/net", self.other.pid());
        let words = [net.as_str(), BENCH, "sockbench", "server", "--transport", "tcp", "--at", SERVER];
        let mut server = Running::start("nsenter", &words);
        let to = server.line("ready ");
        let words = [&["sockbench", "client", "--transport", "tcp", "--to", &to], test].concat();
        let report = Running::bench(&words).end();
        serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e}: {report}"))
    }
}

#[test]
fn a_stream_through_the_relay_is_whole_and_the_link_is_as_it_was_told() {
    in_namespace("a_stream_through_the_relay_is_whole_and_the_link_is_as_it_was_told", || {
        let mut field = Field::new();
        let link = r#""rate_bits_per_s": 50000000, "delay_ns": 3000000, "queue_packets": 100"#;
        // The client fails if a byte is not what was sent.
        let faults = r#""loss_per_million": 10000, "reorder_per_million": 10000, "late_max_ns": 500000"#;
        field.set(&format!("{{{link}, {faults}}}"));
        let streams = ["--test", "streams", "--size", "8192", "--connections", "4", "--seconds", "1"];
        let begin = Instant::now();
        // On a busy machine little arrives in a second, and maybe no fault comes.
        let stats = loop {
            let report = field.sockbench(&streams);
            let stats = field.stats();
            let counts = [&report["bytes"], &stats["there"]["lost"], &stats["there"]["reordered"]];
            if counts.iter().all(|count| count.as_u64().is_some_and(|count| count > 0)) {
                break stats;
            }
            assert!(begin.elapsed() < WATCHDOG, "no bytes, no loss or no late frame: {report}, {stats}");
        };
        // All that it handed over, by its clock.
        let bits = stats["there"]["bytes"].as_f64().expect("bytes") * 8.0;
        let seconds = stats["seconds"].as_f64().expect("seconds");
        assert!(bits <= RATE_BITS_PER_S * seconds, "{bits} bits in {seconds} s");
        field.set(&format!("{{{link}}}"));
        let report = field.sockbench(&["--test", "lat", "--size", "64", "--seconds", "0.5"]);
        let half = report["p50_us"].as_f64().expect("a latency");
        assert!(half >= DELAY_US, "half a round trip took {half} us, less than the delay of {DELAY_US} us");
        let stats = field.stats();
        assert_eq!((&stats["there"]["lost"], &stats["there"]["queue_full"]), (&0.into(), &0.into()), "{stats}");
        eprintln!("the relay was late by {}", stats["late"]);
    });
}

#[test]
fn commands_that_are_none_are_answered_with_what_there_is() {
    in_namespace("commands_that_are_none_are_answered_with_what_there_is", || {
        let mut relay = Running::bench(&RELAY);
        relay.line("ready");
        relay.say("sett {}");
        assert!(relay.line("error ").contains("set SETTINGS"));
        relay.say(r#"set {"los": 1}"#);
        assert!(relay.line("error ").contains("los"));
        relay.say("stats");
        relay.line("stats ");
        relay.end();
        // The taps are gone with it, so their names are free.
        Running::bench(&RELAY).line("ready");
    });
}

#[test]
fn a_relay_that_may_make_no_tap_says_what_it_needs() {
    let nobody = Command::new("unshare").args(["--user", BENCH].into_iter().chain(RELAY)).stdin(Stdio::null()).output();
    let told = match &nobody {
        Ok(out) => String::from_utf8_lossy(&out.stderr).into_owned(),
        Err(e) => e.to_string(),
    };
    if told.contains("unshare") || nobody.is_err() {
        return skip("a_relay_that_may_make_no_tap_says_what_it_needs", &told);
    }
    assert!(told.contains("/dev/net/tun"), "{told}");
}
