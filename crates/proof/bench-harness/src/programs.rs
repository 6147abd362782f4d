//! Bench `programs`: memcached and redis under `raas run`, beside the same programs on kernel TCP, each with its own
//! load program; on one host and between two. Owns the loads, the reading of what they print, and the bars.
//!
//! Client and server keep to a processor of their own on both sides: unpinned loopback TCP has two modes (2 and 30 us).
//! Both servers of a case live through all of its rounds, and the sides take turns.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::Args;
use super::place::{End, Place, has};
use super::process::Beside;
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series};
use harness::child::{self, Stream};
use harness::repo::Repo;

/// Programs, and Debian packages that have them.
const PROGRAMS: &[(&str, &str)] = &[
    ("memcached", "memcached"),
    ("memcaslap", "libmemcached-tools"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
];
const INSTALL_LIMIT: Duration = Duration::from_secs(600);
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
/// One load, on a machine that is busy too.
const LOAD_LIMIT: Duration = Duration::from_secs(120);
const LISTEN_LIMIT: Duration = Duration::from_secs(30);
/// Operations of a load with one request under way, and with many.
const ALONE: u32 = 20_000;
const PIPELINED: u32 = 200_000;
/// Ports: the case's number times two, and one more for the side.
const PORT: u16 = 22_000;
/// MTU of the link between two hosts.
const MTU: u32 = 1500;

/// Who serves and how it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// memcaslap, one connection, values of 8 bytes; all gets, or all sets.
    Memcached { sets: bool },
    /// redis-benchmark, one connection, values of 8 bytes, so many requests under way.
    Redis { pipelined: u32 },
}

/// A load and its bars, on one host and between two.
#[derive(Debug)]
struct Case {
    name: &'static str,
    load: Load,
    same_host: (Bar, Kind),
    two_hosts: (Bar, Kind),
}

fn cases() -> Vec<Case> {
    use Bar::{RatioAtLeast, RatioAtMost};
    use Kind::{Goal, Must};
    let half = (RatioAtMost(0.5), Must);
    let redis = (RatioAtMost(0.6), Must);
    let alone = Load::Redis { pipelined: 1 };
    let pipelined = Load::Redis { pipelined: 50 };
    vec![
        Case { name: "memcached, get of 8 B", load: Load::Memcached { sets: false }, same_host: half, two_hosts: half },
        Case { name: "memcached, set of 8 B", load: Load::Memcached { sets: true }, same_host: half, two_hosts: half },
        Case { name: "redis, get of 8 B", load: alone, same_host: redis, two_hosts: redis },
        Case {
            name: "redis, get of 8 B, 50 pipelined",
            load: pipelined,
            same_host: (RatioAtLeast(1.5), Goal),
            two_hosts: (RatioAtLeast(1.0), Goal),
        },
    ]
}

impl Load {
    /// Time of an operation where one is under way, else a rate.
    fn is_time(self) -> bool {
        self != Self::Redis { pipelined: 50 }
    }

    fn server(self, address: &str, port: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Memcached { .. } => &["memcached", "-u", "nobody", "-U", "0", "-t", "1", "-l", address, "-p", port],
            Self::Redis { .. } => {
                &["redis-server", "--save", "", "--protected-mode", "no", "--bind", address, "--port", port]
            }
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn client(self, address: &str, port: &str, place: &Place) -> Result<Vec<String>> {
        let words: Vec<String> = match self {
            Self::Memcached { sets } => {
                let file = place.file("load.cnf");
                let (set, get) = if sets { ("1.0", "0.0") } else { ("0.0", "1.0") };
                std::fs::write(&file, format!("key\n16 16 1\nvalue\n8 8 1\ncmd\n0 {set}\n1 {get}\n"))?;
                let (at, count) = (format!("{address}:{port}"), ALONE.to_string());
                let file = file.display().to_string();
                let words = ["memcaslap", "-s", &at, "-T", "1", "-c", "1", "-w", "1k", "-x", &count, "-F", &file];
                words.map(str::to_owned).to_vec()
            }
            Self::Redis { pipelined } => {
                let count = if pipelined == 1 { ALONE } else { PIPELINED }.to_string();
                let pipelined = pipelined.to_string();
                let words = ["redis-benchmark", "-h", address, "-p", port, "-c", "1", "-d", "8", "-P", &pipelined];
                [&words[..], &["-n", &count, "-t", "get", "--csv"]].concat().iter().map(|w| (*w).to_owned()).collect()
            }
        };
        Ok(words)
    }

    /// Operations a second, out of what the program printed.
    fn rate(self, text: &str) -> Result<f64> {
        let found = match self {
            Self::Memcached { .. } => {
                text.lines().find_map(|line| line.split_once("TPS:")?.1.split_whitespace().next()?.parse().ok())
            }
            Self::Redis { .. } => {
                text.lines().find_map(|line| line.strip_prefix("\"GET\",\"")?.split('"').next()?.parse().ok())
            }
        };
        found.filter(|rate| *rate > 0.0).with_context(|| format!("no rate in: {text}"))
    }

    fn figure(self, rate: f64) -> f64 {
        if self.is_time() { 1e6 / rate } else { rate }
    }
}

/// Installs what is not there, where this may be.
fn install() -> Result<()> {
    let missing = || PROGRAMS.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package);
    if missing().next().is_some() && rustix::process::geteuid().is_root() && has("apt-get") {
        let packages: Vec<&str> = missing().collect();
        println!("installing {} from Debian", packages.join(", "));
        let mut command = Command::new("apt-get");
        command.args(["install", "-y", "-q", "--no-install-recommends"]).args(packages);
        command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
        // Whether it helped is seen below.
        let _ = child::run_quiet(&mut command, INSTALL_LIMIT);
    }
    let missing: Vec<&str> = missing().collect();
    ensure!(missing.is_empty(), "these packages are needed and cannot be installed here: {}", missing.join(", "));
    Ok(())
}

/// Before the namespace is entered, in which there is no network.
pub(super) fn prepare() -> Result<()> {
    install()
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let build = ["build", "--release", "--package", "raas-preload"];
    let built = child::run_quiet(&mut repo.command("cargo", &build), BUILD_LIMIT)?;
    ensure!(built.success(), "building what `raas run` loads: {}\n{}", built.describe(), built.text(Stream::Err));
    let mut findings = Findings { rounds: args.rounds(), ..Findings::default() };
    findings.setting = json!({
        "mtu": MTU, "operations": ALONE, "operations_pipelined": PIPELINED, "value_bytes": 8,
        "processors_client_server": Place::processors()?,
    });
    // Memcached gives its rights up, and its daemon lets everybody in.
    let config = "socket_mode = \"0666\"\n";
    let two = Place::two_hosts(repo, "programs-two-hosts", MTU, config)?;
    at_place(two, "two hosts", args, &mut findings, |case| case.two_hosts)?;
    let one = Place::one_host(repo, "programs-one-host", config)?;
    at_place(one, "same host", args, &mut findings, |case| case.same_host)?;
    Ok(findings)
}

fn at_place(
    mut place: Place,
    name: &str,
    args: &Args,
    findings: &mut Findings,
    bar: impl Fn(&Case) -> (Bar, Kind),
) -> Result<()> {
    place.open_to_all()?;
    place.pin(true)?;
    for (number, case) in (0..).zip(cases()) {
        let full_name = format!("{}, {name}", case.name);
        if !args.wants(&full_name) {
            continue;
        }
        let [ours, theirs] = measure(&place, &case, number, args.rounds()).with_context(|| full_name.clone())?;
        println!("{full_name}: {} rounds done", args.rounds());
        let series = Series {
            case: full_name,
            unit: if case.load.is_time() { "us" } else { "operations_per_s" }.to_owned(),
            better: if case.load.is_time() { Better::Lower } else { Better::Higher },
            ours,
            rival: "tcp".to_owned(),
            rival_values: theirs,
        };
        findings.rows.push(Row { series, bar: Some(bar(&case)) });
    }
    Ok(())
}

/// The figures of all rounds, ours and those of TCP.
fn measure(place: &Place, case: &Case, number: u16, rounds: u32) -> Result<[Vec<f64>; 2]> {
    let raas = place.program("raas");
    let under: [&[&str]; 2] = [&[&raas, "run"], &[]];
    let ports = [0, 1].map(|side| (PORT + 2 * number + side).to_string());
    let mut servers = vec![];
    for (under, port) in under.iter().zip(&ports) {
        let words = case.load.server(place.server(), port);
        let words: Vec<&str> = under.iter().copied().chain(words.iter().map(String::as_str)).collect();
        servers.push(Beside::start(&mut place.command(End::Server, &words))?);
        wait_port(place, port)?;
    }
    let mut values = [vec![], vec![]];
    for round in 0..rounds as usize {
        for step in 0..2 {
            let side = (round + step) % 2;
            let words = case.load.client(place.server(), &ports[side], place)?;
            let words: Vec<&str> = under[side].iter().copied().chain(words.iter().map(String::as_str)).collect();
            let ended = child::run_quiet(&mut place.command(End::Client, &words), LOAD_LIMIT)?;
            ensure!(ended.success(), "{}: {}\n{}", words.join(" "), ended.describe(), ended.text(Stream::Err));
            values[side].push(case.load.figure(case.load.rate(&ended.text(Stream::Out))?));
        }
    }
    Ok(values)
}

/// Waits until the port is listened on, as the kernel of the server's host tells.
fn wait_port(place: &Place, port: &str) -> Result<()> {
    let wanted = format!(":{:04X}", port.parse::<u16>()?);
    let begin = Instant::now();
    while begin.elapsed() < LISTEN_LIMIT {
        let told = child::run_quiet(&mut place.command(End::Server, &["cat", "/proc/net/tcp"]), LISTEN_LIMIT)?;
        if told.text(Stream::Out).lines().any(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            cells.len() > 3 && cells[1].ends_with(&wanted) && cells[3] == "0A"
        }) {
            return Ok(());
        }
    }
    bail!("nobody listens on port {port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let slap = "object_bytes: 4\n\nRun time: 0.5s Ops: 21024 TPS: 40910 Net_rate: 2.5M/s\n";
        let memcached = Load::Memcached { sets: false };
        assert_eq!(memcached.rate(slap).expect("a rate"), 40_910.0);
        assert!((memcached.figure(40_000.0) - 25.0).abs() < 1e-9);
        assert!(memcached.rate("Run time: 0.5s TPS: 0").is_err());
        let redis = Load::Redis { pipelined: 50 };
        assert_eq!(redis.rate("\"test\",\"rps\"\n\"GET\",\"1250000.00\",\"0.038\"\n").expect("a rate"), 1_250_000.0);
        assert_eq!(redis.figure(5.0), 5.0);
    }

    #[test]
    fn bars_fit_their_units() {
        for case in cases() {
            for (bar, _) in [case.same_host, case.two_hosts] {
                assert_eq!(matches!(bar, Bar::RatioAtMost(_)), case.load.is_time(), "{}", case.name);
            }
        }
    }
}
