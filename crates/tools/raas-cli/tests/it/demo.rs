//! The demo in small, as a user runs it: figures, exit codes, and that nothing stays behind.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::rig::{Running, address, pattern, raas, run, wait_until};
use serde_json::json;

const DOCUMENTATION: &str = include_str!("../../../../../docs/operate/commands.md");

/// A few files of different sizes.
fn small_files(dir: &Path) {
    for (i, bytes) in [1usize, 100, 4096, 70_000, 300_000, 1_000_000].into_iter().enumerate() {
        std::fs::write(dir.join(format!("file{i}")), pattern(bytes)).unwrap();
    }
}

fn hosts() -> String {
    format!("{},{}", address(), address())
}

#[test]
fn a_small_demo_verifies_every_byte_and_tells_every_figure() {
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    let temporary = tempfile::tempdir().unwrap();
    let mut command = raas();
    command.args(["demo", "--connections", "16", "--apps", "2", "--json", "--hosts", &hosts(), "--path"]);
    let ended = run(command.arg(dir.path()).env("TMPDIR", temporary.path()));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let report = ended.json();
    assert_eq!(report["schema"], "raas.demo/1");
    assert_eq!(report["verified"], true);
    assert_eq!(report["connections"], 16);
    assert_eq!(report["application_processes"], 4);
    assert_eq!(report["files"], 32, "each direction of each connection carries a file");
    assert!(report["bytes"].as_u64().unwrap() > 1_474_197);
    assert_eq!(report["rc_qps_per_host"], serde_json::json!([1, 1]));
    assert_eq!(report["srqs_per_host"], serde_json::json!([1, 1]));
    assert_eq!(report["errors"], serde_json::json!([]));
    for key in
        ["seconds", "gbit_per_s", "p50_us", "p99_us", "msgs_per_s", "one_host_p50_us", "run_p50_us", "run_p99_us"]
    {
        for key in [key.to_owned(), format!("tcp_{key}")] {
            assert!(report[&key].as_f64().is_some_and(|v| v > 0.0), "{key}: {report}");
        }
    }
    // 16 connections of 2 + 2 applications: a quarter of the ends are the killed one's.
    for kill in [&report["kill"], &report["tcp_kill"]] {
        assert_eq!((&kill["connections"], &kill["connections_of_killed"]), (&json!(16), &json!(8)), "{report}");
        assert_eq!(kill["connections_lost"], 8, "{report}");
        assert!(kill["bytes"].as_u64().unwrap() > 0 && kill["told_ms"].as_f64().unwrap() > 0.0, "{report}");
    }
    let reset = &report["lane_reset"];
    assert_eq!((&reset["connections"], &reset["connections_lost"]), (&json!(16), &json!(0)), "{report}");
    assert!(reset["bytes"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(reset["resets_per_host"], json!([1, 1]), "{report}");
    assert_eq!(report["run_path"], "shm", "{report}");
    let death = &report["daemon_kill"];
    assert_eq!((&death["connections"], &death["connections_lost"]), (&json!(16), &json!(0)), "{report}");
    assert_eq!(death["connections_adopted"], 16, "{report}");
    assert!(death["bytes"].as_u64().unwrap() > 0 && death["pause_ms"].as_f64().unwrap() > 0.0, "{report}");
    let parts = [&report, reset, death, &report["kill"]];
    let mut undocumented: Vec<&String> = parts.iter().flat_map(|part| part.as_object().unwrap().keys()).collect();
    undocumented.retain(|key| !DOCUMENTATION.contains(&format!("`{key}`")));
    assert!(undocumented.is_empty(), "not in docs/operate/commands.md: {undocumented:?}");
    for key in ["cqs_per_host", "daemon_rss_bytes", "daemon_rss_idle_bytes"] {
        let both = report[key].as_array().unwrap();
        assert!(both.len() == 2 && both.iter().all(|v| v.as_u64().unwrap() > 0), "{key}: {report}");
    }
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "the temporary directory is gone");
}

#[test]
fn the_table_names_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    let mut command = raas();
    command.args(["demo", "--connections", "2", "--apps", "1", "--hosts", &hosts(), "--path"]).arg(dir.path());
    let ended = run(command.env("COLUMNS", "60"));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let parts = [
        "RaaS",
        "TCP ",
        "one host",
        "a TCP program as it is, under `raas run` (path shm)",
        "two hosts, 2 connections on one queue pair",
        "the queue pair           0 of 2 lost, pause",
        "a daemon, killed         0 of 2 lost, pause",
        "a program, killed        its 2 ended, 0 went on",
        "real files",
        "VERIFIED",
    ];
    for text in parts {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    assert!(ended.stdout.lines().all(|line| line.chars().count() <= 60), "{}", ended.stdout);
    assert!(ended.stdout.lines().count() <= 40, "it fits a terminal: {}", ended.stdout);
}

/// A part that cannot run fails the demo, and says why.
#[test]
fn without_the_library_of_raas_run_the_demo_fails() {
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    let mut command = raas();
    command.args(["demo", "--json", "--connections", "2", "--apps", "1", "--hosts", &hosts(), "--path"]);
    let ended = run(command.arg(dir.path()).env("RAAS_PRELOAD", "/nonexistent/libraas_preload.so"));
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert!(ended.stderr.contains("/nonexistent/libraas_preload.so"), "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["verified"], &report["run_path"]), (&json!(false), &json!(null)), "{report}");
    assert!(report["errors"][0].as_str().unwrap().contains("TCP program"), "{report}");
    assert!(report["one_host_p50_us"].is_f64(), "what was reached before is told: {report}");
}

/// The same over either wire, and by default over the one that the daemons choose.
#[test]
fn the_lane_is_on_the_wire_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    for (args, wire) in [(&["--wire", "roce"][..], "roce"), (&["--wire", "iwarp"], "iwarp")] {
        let mut command = raas();
        command.args(["demo", "--json", "--connections", "4", "--apps", "2", "--hosts", &hosts(), "--path"]);
        let ended = run(command.arg(dir.path()).args(args));
        assert_eq!(ended.code(), 0, "{wire}: {ended:?}");
        let report = ended.json();
        assert_eq!((&report["wire"], &report["verified"]), (&json!(wire), &json!(true)), "{report}");
    }
    let ended = run(raas().args(["demo", "--wire", "tcp"]));
    assert_eq!(ended.code(), 2, "{ended:?}");
    assert!(ended.stderr.contains("\"iwarp\""), "{ended:?}");
}

#[test]
fn a_taken_port_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    let (a, b) = (address(), address());
    let _taken = UdpSocket::bind((b, 4791)).unwrap();
    let hosts = format!("{a},{b}");
    let of_tcp = (address(), address());
    let _tcp_taken = TcpListener::bind((of_tcp.0, 4791)).unwrap();
    let of_tcp = format!("{},{}", of_tcp.0, of_tcp.1);
    let ended = run(raas().args(["demo", "--connections", "2", "--hosts", &of_tcp, "--path"]).arg(dir.path()));
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert!(ended.stderr.contains("TCP port 4791 (iWARP)"), "{ended:?}");
    let ended = run(raas().args(["demo", "--json", "--connections", "2", "--hosts", &hosts, "--path"]).arg(dir.path()));
    assert_eq!(ended.code(), 1, "{ended:?}");
    for text in ["4791", &b.to_string(), "--hosts", "--listen-port 5791"] {
        assert!(ended.stderr.contains(text), "{text}: {ended:?}");
    }
    let report = ended.json();
    assert_eq!(report["verified"], false);
    assert_eq!(report["errors"].as_array().unwrap().len(), 1);
    // No table of what was not measured; and the way out is one.
    let ended = run(raas().args(["demo", "--connections", "2", "--hosts", &hosts, "--path"]).arg(dir.path()));
    assert_eq!((ended.code(), &*ended.stdout), (1, ""), "{ended:?}");
    let mut command = raas();
    command.args([
        "demo",
        "--json",
        "--connections",
        "2",
        "--apps",
        "1",
        "--listen-port",
        "5791",
        "--hosts",
        &hosts,
        "--path",
    ]);
    let ended = run(command.arg(dir.path()));
    assert_eq!((ended.code(), &ended.json()["listen_port"]), (0, &json!(5791)), "{ended:?}");
    assert_eq!(ended.json()["peer_port"], 5790, "{ended:?}");
}

#[test]
fn too_few_descriptors_are_named_before_anything_begins() {
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    let script = format!("ulimit -n 64; exec '{}' demo --path '{}'", env!("CARGO_BIN_EXE_raas"), dir.path().display());
    let ended = run(Command::new("sh").args(["-c", &script]).env_remove("RUST_LOG"));
    assert_eq!((ended.code(), &*ended.stdout), (1, ""), "{ended:?}");
    for text in ["over kernel TCP needs 3", "allows 64", "ulimit -Hn", "--connections"] {
        assert!(ended.stderr.contains(text), "{text}: {ended:?}");
    }
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

#[test]
fn a_time_limit_ends_the_run_with_code_1() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = pattern(20_000_000);
    for i in 0..40 {
        std::fs::write(dir.path().join(format!("big{i}")), &bytes).unwrap();
    }
    let mut command = raas();
    command.args(["demo", "--json", "--connections", "4", "--apps", "1", "--seconds-max", "1", "--hosts", &hosts()]);
    let ended = run(command.arg("--path").arg(dir.path()));
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert!(ended.json()["errors"][0].as_str().unwrap().contains("--seconds-max"), "{ended:?}");
}

/// Processes below `parent`, by the kernel's list.
fn children_of(parent: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().map(|p| p.parse().unwrap()).collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie without parent is gone as soon as init looks.
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn nothing_stays_behind_after_any_signal() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    small_files(dir.path());
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let temporary = tempfile::tempdir().unwrap();
        let mut command = raas();
        command.args(["demo", "--connections", "8", "--apps", "2", "--hosts", &hosts(), "--path"]).arg(dir.path());
        let mut demo = Running::start(command.env("TMPDIR", temporary.path()).process_group(0));
        demo.wait_for("applications are ready");
        let children = children_of(demo.pid());
        assert_eq!(children.len(), 2 + 4, "two daemons and four applications");
        assert!(!demo.has_ended());
        // As a terminal does, to the whole group.
        rustix::process::kill_process_group(demo.group(), signal).unwrap();
        let ended = demo.end();
        wait_until("the children's end", || !children.iter().any(|pid| is_alive(*pid)));
        let left = || std::fs::read_dir(temporary.path()).unwrap().count();
        if signal != Signal::KILL {
            assert_eq!((ended.code(), left(), &*ended.stdout), (1, 0, ""));
            assert!(!ended.stderr.contains("raas:") && !ended.stderr.contains("ERROR"), "{}", ended.stderr);
            continue;
        }
        assert_eq!((ended.status.code(), left()), (None, 1));
        // The next one removes what this one could not.
        let mut command = raas();
        command.args(["demo", "--connections", "0"]);
        assert_eq!(run(command.env("TMPDIR", temporary.path())).code(), 2);
        assert_eq!(left(), 1);
        let mut command = raas();
        command.args(["demo", "--path", "/nonexistent/dir"]);
        assert_eq!(run(command.env("TMPDIR", temporary.path())).code(), 2);
        assert_eq!(left(), 0);
    }
}
