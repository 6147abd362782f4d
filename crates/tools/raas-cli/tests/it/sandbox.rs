//! What a daemon may no longer do: each thing is tried in a process that is confined as a daemon, and daemons that are
//! confined do their work.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::rig::{Cluster, Ended, Running, address, raas, run, wait_until, write_key};
use landlock::{AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr};
use rustix::process::Signal;
use serde_json::Value;

/// Nobody's number on every Linux.
const NOBODY: u32 = 65_534;
/// SIGSYS, with which the kernel kills a process for a system call.
const SIGSYS: i32 = 31;

/// A configuration of a daemon in `place`, with these lines besides.
fn configure(place: &Path, further: &str) -> PathBuf {
    let (config, socket) = (place.join("raasd.toml"), place.join("run/raasd.sock"));
    std::fs::write(&config, format!("listen = \"{}\"\nsocket = {socket:?}\n{further}\n", address())).unwrap();
    config
}

fn probe(config: &Path, what: &str) -> Ended {
    run(raas().args(["daemon", "--until-stdin-closes", "--config"]).arg(config).arg(format!("--sandbox-probe={what}")))
}

fn by_name(told: &Value) -> impl Iterator<Item = (&str, bool)> {
    let attempts = told["attempts"].as_array().unwrap().iter();
    attempts.map(|a| (a["name"].as_str().unwrap(), a["refused"].as_bool().unwrap()))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn what_is_forbidden_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ended = probe(&configure(dir.path(), "sandbox = \"required\""), "all");
    let told = ended.json();
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert_eq!(told["calls_filtered"], true, "{told}");
    assert!(told["landlock_abi"].as_u64().unwrap() > 0, "{told}");
    assert!(by_name(&told).count() >= 15);
    assert!(by_name(&told).all(|(_, refused)| refused), "{told}");
    assert!(!dir.path().join("run").exists(), "a probe makes nothing");
}

#[test]
fn the_same_is_done_where_nothing_forbids_it() {
    let dir = tempfile::tempdir().unwrap();
    let ended = probe(&configure(dir.path(), "sandbox = \"off\""), "fork");
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert!(by_name(&ended.json()).all(|(_, refused)| !refused), "{ended:?}");
    let ended = probe(&configure(dir.path(), "sandbox = \"off\""), "no-such-attempt");
    assert_eq!(ended.code(), 2, "{ended:?}");
}

#[test]
fn a_forbidden_call_kills_where_that_is_configured() {
    let dir = tempfile::tempdir().unwrap();
    let config = configure(dir.path(), "sandbox_violation = \"kill\"");
    for what in ["mount", "fork", "socket-packet", "exec"] {
        let ended = probe(&config, what);
        assert_eq!(ended.status.signal(), Some(SIGSYS), "{what}: {ended:?}");
    }
    // And the daemon's own work kills nobody.
    let mut daemon = Running::start(raas().args(["daemon", "--config"]).arg(&config).stdin(Stdio::null()));
    daemon.wait_for("ready socket=");
    assert!(works(&dir.path().join("run/raasd.sock")));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), 0);
}

/// Whether bytes go through a stream of this daemon, and what it says of itself can be read.
fn works(socket: &Path) -> bool {
    use std::io::{Read, Write};
    let session = raas::Session::builder().socket(socket).name("works").background(true).connect().unwrap();
    let listener = raas::Listener::bind_with(&session, "127.0.0.1:0").unwrap_or_else(|_| {
        let own = session.addresses()[0];
        raas::Listener::bind_with(&session, (own, 0)).unwrap()
    });
    let mut client = raas::Stream::connect_with(&session, listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"through").unwrap();
    let mut got = [0; 7];
    server.read_exact(&mut got).unwrap();
    let stat = run(raas().args(["stat", "--json", "--socket"]).arg(socket)).json();
    &got == b"through" && stat["fds"].as_u64().unwrap() > 0
}

/// The values of a key in /proc/PID/task/*/status, of all threads.
fn of_all_threads(pid: u32, key: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let value = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    };
    tasks.map(|task| value(std::fs::read_to_string(task.unwrap().path().join("status")).unwrap())).collect()
}

#[test]
fn a_daemon_of_root_becomes_the_user_that_is_configured() {
    let name = "a_daemon_of_root_becomes_the_user_that_is_configured";
    if !is_root() {
        return eprintln!("SKIP {name}: only root can become somebody else");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (key, policy) = (dir.path().join("key"), dir.path().join("policy.toml"));
    write_key(&key, 9);
    chown(&key, Some(NOBODY), None).unwrap();
    std::fs::write(&policy, "").unwrap();
    let lines = format!(
        "user = \"{NOBODY}\"\ngroup = \"{NOBODY}\"\nsocket_mode = \"0666\"\nkey_file = {key:?}\npolicy = {policy:?}\npcap = {:?}",
        dir.path().join("run/packets.pcap")
    );
    let config = configure(dir.path(), &lines);
    for turn in 0..2 {
        let mut daemon = Running::start(raas().args(["daemon", "--config"]).arg(&config).stdin(Stdio::null()));
        daemon.wait_for("ready socket=");
        let pid = daemon.pid();
        let id = NOBODY.to_string();
        for (key, expected) in [("Uid:", [&*id; 4].join(" ")), ("Gid:", [&*id; 4].join(" "))] {
            assert!(of_all_threads(pid, key).iter().all(|found| *found == expected), "{key} {turn}");
        }
        // By CAP_LINUX_IMMUTABLE nobody punches holes into regions.
        for (key, expected) in [("CapInh:", 0), ("CapPrm:", 1 << 9), ("CapEff:", 1 << 9), ("CapAmb:", 0)] {
            let held = of_all_threads(pid, key).iter().map(|found| u64::from_str_radix(found, 16).unwrap()).max();
            assert_eq!(held, Some(expected), "{key}");
        }
        assert!(of_all_threads(pid, "Groups:").iter().all(|found| *found == id));
        assert!(of_all_threads(pid, "NoNewPrivs:").iter().all(|found| found == "1"));
        let filtered = of_all_threads(pid, "Seccomp:");
        assert!(filtered.len() >= 3 && filtered.iter().all(|found| found == "2"), "{filtered:?}");
        let socket = dir.path().join("run/raasd.sock");
        assert_eq!(std::fs::metadata(&socket).unwrap().uid(), NOBODY);
        assert!(works(&socket));
        // What is read again is read as that user, below Landlock.
        daemon.signal(Signal::HUP);
        daemon.wait_for("the policy is read again");
        assert!(!daemon.stderr().contains("not read again"), "{}", daemon.stderr());
        let doctor = run(raas().args(["doctor", "--json", "--socket"]).arg(&socket)).json();
        let found = |id: &str| doctor["findings"].as_array().unwrap().iter().find(|f| f["id"] == id).unwrap().clone();
        assert_eq!((&found("user")["value"], &found("user")["level"]), (&NOBODY.into(), &"ok".into()));
        assert_eq!(found("sandbox")["level"], "ok", "{doctor}");
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end().code(), 0);
        assert!(!socket.exists(), "it removes its socket as that user");
    }
    let probed = probe(&config, "all");
    assert_eq!(probed.code(), 0, "{probed:?}");
}

#[test]
fn check_refuses_the_user_that_the_start_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let config = configure(dir.path(), "user = \"no-such-user-here\"");
    let start = run(raas().args(["daemon", "--until-stdin-closes", "--config"]).arg(&config));
    let check = run(raas().args(["daemon", "--check", "--config"]).arg(&config));
    assert_eq!((start.code(), check.code()), (2, 2), "{start:?} {check:?}");
    assert!(start.stderr.contains("no-such-user-here") && start.stderr == check.stderr, "{start:?} {check:?}");
    let config = configure(dir.path(), "group = \"root\"");
    let check = run(raas().args(["daemon", "--check", "--config"]).arg(&config));
    assert!(check.code() == 2 && check.stderr.contains("`user`"), "{check:?}");
    let config = configure(dir.path(), "sandbox = \"perhaps\"\nsandbox_violation = \"shout\"");
    let check = run(raas().args(["daemon", "--check", "--config"]).arg(&config));
    assert!(check.code() == 2 && check.stderr.contains(":3: ") && check.stderr.contains(":4: "), "{check:?}");
}

/// Runs a command from a thread with as many restrictions as Landlock allows, none of which forbids anything: one more
/// is refused, as by a kernel without Landlock.
fn without_landlock<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> T {
    let restricted = move || {
        let layer = || {
            let root = landlock::path_beneath_rules(["/"], AccessFs::Execute);
            Ruleset::default().handle_access(AccessFs::Execute)?.create()?.add_rules(root)?.restrict_self()
        };
        let mut layers = 0;
        while layer().is_ok() {
            layers += 1;
            assert!(layers < 1000);
        }
        assert!(layers > 0, "not a single layer can be had");
        does()
    };
    std::thread::spawn(restricted).join().unwrap()
}

#[test]
fn where_files_cannot_be_restricted_required_refuses_and_auto_says_so() {
    let cluster = Cluster::new();
    let place = cluster.dir.path().to_path_buf();
    let config = configure(&place, "sandbox = \"required\"");
    let (start, check) = without_landlock({
        let config = config.clone();
        move || {
            let start = run(raas().args(["daemon", "--until-stdin-closes", "--config"]).arg(&config));
            (start, run(raas().args(["daemon", "--check", "--config"]).arg(&config)))
        }
    });
    assert_eq!((start.code(), check.code()), (2, 2), "{start:?} {check:?}");
    assert!(start.stderr.contains("Landlock") && start.stderr == check.stderr, "{start:?} {check:?}");
    let config = configure(&place, "");
    let mut daemon = without_landlock(move || {
        let check = run(raas().args(["daemon", "--check", "--config"]).arg(&config));
        assert!(check.code() == 0 && check.stdout.contains("warning: files are not restricted"), "{check:?}");
        Running::start(raas().args(["daemon", "--config"]).arg(&config).stdin(Stdio::null()))
    });
    daemon.wait_for("files are not restricted");
    daemon.wait_for("ready socket=");
    let socket = place.join("run/raasd.sock");
    let stat = run(raas().args(["stat", "--json", "--socket"]).arg(&socket)).json();
    assert_eq!(stat["sandbox"]["landlock_abi"], 0, "{stat}");
    assert_eq!(stat["sandbox"]["calls_filtered"], true, "{stat}");
    let text = run(raas().args(["stat", "--socket"]).arg(&socket)).stdout;
    assert!(text.contains("files are NOT restricted"), "{text}");
    let doctor = run(raas().args(["doctor", "--json", "--socket"]).arg(&socket)).json();
    let findings = doctor["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["id"] == "sandbox" && f["level"] == "warn"), "{doctor}");
    wait_until("its end", || {
        daemon.signal(Signal::TERM);
        daemon.has_ended()
    });
}
