//! The measuring programs do what they say: every test of sockbench over the kernel's sockets and bare paths, and
//! qpbench on two loopback addresses. What they measure here is nobody's claim. Over RaaS they run in
//! `cargo xtask bench`, which starts the daemons.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::running::{BENCH, Running, WATCHDOG};
use serde_json::Value;

/// Server and client of one test; what the client reports.
fn sockbench(transport: &str, at: &str, busy: bool, test: &[&str]) -> Value {
    let busy: &[&str] = if busy { &["--busy"] } else { &[] };
    let mut server = Running::bench(&[&["sockbench", "server", "--transport", transport, "--at", at], busy].concat());
    let to = server.line("ready ");
    let words = [&["sockbench", "client", "--transport", transport, "--to", &to], busy, test].concat();
    let report = Running::bench(&words).end();
    server.end();
    serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e}: {report}"))
}

#[test]
fn ping_pongs_and_streams_run_over_kernel_sockets() {
    let dir = std::env::temp_dir().join(format!("sockbench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    for (place, busy) in [false, true].into_iter().enumerate() {
        let path = dir.join(format!("{place}-lat")).display().to_string();
        let other = dir.join(format!("{place}-bw")).display().to_string();
        for (transport, lat_at, bw_at) in [("tcp", "127.0.0.1:0", "127.0.0.1:0"), ("unix", &path, &other)] {
            let lat = sockbench(transport, lat_at, busy, &["--test", "lat", "--size", "64", "--seconds", "0.1"]);
            for key in ["half_rtt_us", "p50_us", "p99_us", "trips"] {
                assert!(lat[key].as_f64().is_some_and(|value| value > 0.0), "{transport} {key}: {lat}");
            }
            assert_eq!(lat["path"], transport);
            let bw = sockbench(transport, bw_at, busy, &["--test", "bw", "--size", "65536", "--seconds", "0.1"]);
            assert!(bw["bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes % 65536 == 0), "{bw}");
            assert!(bw["cpu_seconds_per_gb"].as_f64().is_some_and(|value| value > 0.0), "{bw}");
            assert_eq!(bw["path"], transport);
        }
    }
    let _ = std::fs::remove_dir_all(dir);
}

/// What `lat` and `bw` must report over a bare path.
fn check_bare(report: &Value, keys: &[&str]) {
    for key in keys {
        assert!(report[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {report}");
    }
    assert_eq!(report["path"], "bare");
}

#[test]
fn the_bare_ring_carries_ping_pongs_and_streams() {
    for busy in [false, true] {
        let lat = sockbench("bare", "new", busy, &["--test", "lat", "--size", "64", "--seconds", "0.1"]);
        check_bare(&lat, &["half_rtt_us", "p50_us", "p99_us", "trips"]);
        let bw = sockbench("bare", "new", busy, &["--test", "bw", "--size", "65536", "--seconds", "0.1"]);
        check_bare(&bw, &["gbit_per_s"]);
        let counted = ["--test", "bw", "--size", "8", "--seconds", "1", "--messages", "6400"];
        assert_eq!(sockbench("bare", "new", busy, &counted)["bytes"], 8 * 6400);
        assert!(bw["bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes % 65536 == 0), "{bw}");
    }
    let many = ["--transport", "bare", "--to", "x", "--test", "many", "--size", "64", "--seconds", "1"];
    let refused = Command::new(BENCH).args(["sockbench", "client"]).args(many).output().expect("it starts");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("one connection"));
}

#[test]
fn two_bare_relays_carry_ping_pongs_between_two_rings() {
    let relay = |words: &[&str]| {
        let mut relay = Running::bench(&[&["barerelay"], words].concat());
        let (bound, ring) = (relay.line("bound "), relay.line("ready "));
        (relay, bound, ring)
    };
    let (far, far_at, far_ring) = relay(&["--local", "127.0.0.1:0"]);
    let (near, _, near_ring) = relay(&["--local", "127.0.0.1:0", "--peer", &far_at]);
    let mut server = Running::bench(&["sockbench", "server", "--transport", "bare", "--at", &far_ring]);
    server.line("ready ");
    let words = ["sockbench", "client", "--transport", "bare", "--to", &near_ring, "--test", "lat", "--size", "64"];
    let report = Running::bench(&[&words[..], &["--seconds", "0.1"]].concat()).end();
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e}: {report}"));
    check_bare(&report, &["half_rtt_us", "p50_us", "p99_us", "trips"]);
    near.end();
    // The server's peer never says that it has finished: that does not cross the relays.
    drop(server);
    far.end();
}

#[test]
fn many_connections_take_turns_and_rest() {
    let many = ["--test", "many", "--size", "16384", "--connections", "50", "--base", "10", "--rounds", "3"];
    let report = sockbench("tcp", "127.0.0.1:0", false, &[&many[..], &["--seconds", "0.02"]].concat());
    for key in ["gbit_per_s", "base_gbit_per_s"] {
        let values: Vec<f64> = report[key].as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
        assert!(values.len() == 3 && values.iter().all(|value| *value > 0.0), "{key}: {report}");
    }
    let mut server = Running::bench(&["sockbench", "server", "--transport", "tcp", "--at", "127.0.0.1:0"]);
    let to = server.line("ready ");
    let words =
        ["sockbench", "client", "--transport", "tcp", "--to", &to, "--test", "hold", "--size", "64", "--seconds", "1"];
    let mut client = Running::bench(&[&words[..], &["--connections", "20"]].concat());
    assert_eq!(client.line("holding "), "20");
    client.end();
    server.end();
}

/// Streams of `count` connections for so long.
fn streams(count: &str, seconds: &str) -> Value {
    let words = ["--test", "streams", "--size", "65536", "--warm-up", "0.05", "--connections", count];
    sockbench("tcp", "127.0.0.1:0", false, &[&words[..], &["--seconds", seconds]].concat())
}

#[test]
fn streams_at_the_same_time_are_measured_where_they_arrive() {
    for count in ["1", "20"] {
        // On a busy machine nothing may arrive in a short time. Then a longer one is measured.
        let reports = [0.2, 2.0, 20.0].into_iter().map(|seconds: f64| (seconds, streams(count, &seconds.to_string())));
        let something = |(_, report): &(f64, Value)| report["bytes"].as_u64().is_some_and(|bytes| bytes > 0);
        let (asked, report) = reports.into_iter().find(something).expect("something arrives");
        for key in ["gbit_per_s", "fairness", "fastest_gbit_per_s"] {
            assert!(report[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {report}");
        }
        assert_eq!(report["connections"].to_string(), count);
        assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds >= asked), "{report}");
    }
}

#[test]
fn a_client_says_how_far_it_is_while_it_runs() {
    for test in ["lat", "bw"] {
        let mut server = Running::bench(&["sockbench", "server", "--transport", "tcp", "--at", "127.0.0.1:0"]);
        let to = server.line("ready ");
        // It runs for longer than this test looks at it, and is ended.
        let load = ["--test", test, "--size", "64", "--seconds", "3600"];
        let words = [&["sockbench", "client", "--transport", "tcp", "--to", &to], &load[..]].concat();
        let mut client = Running::bench(&words);
        let mut messages = || -> u64 {
            client.say("");
            client.line("messages ").parse().expect("a number")
        };
        let (first, begin) = (messages(), Instant::now());
        while messages() == first {
            assert!(begin.elapsed() < WATCHDOG, "it says {first} messages again and again");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_congestion_control_that_the_kernel_lacks_is_named() {
    let list = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    if list.split_whitespace().any(|name| name == "bbr") {
        let report = sockbench("tcp-bbr", "127.0.0.1:0", false, &["--test", "lat", "--size", "8", "--seconds", "0.1"]);
        assert!(report["trips"].as_u64().is_some_and(|trips| trips > 0), "{report}");
        return;
    }
    let words = ["sockbench", "server", "--transport", "tcp-bbr", "--at", "127.0.0.1:0"];
    let refused = Command::new(BENCH).args(words).output().expect("it starts");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("no TCP bbr") && told.contains("tcp_bbr"), "{told}");
}

#[test]
fn a_queue_pair_for_each_connection_carries_its_messages() {
    let pid = std::process::id();
    let address = |n: u8| format!("127.{}.{}.{n}", 1 + pid / 250 % 250, 1 + pid % 250);
    let (client, server_at) = (address(201), address(202));
    let mut server = Running::bench(&["qpbench", "--address", &server_at]);
    let to = server.line("ready ");
    let words = ["qpbench", "--address", &client, "--to", &to, "--connections", "16", "--seconds", "0.1"];
    let report = Running::bench(&words).end();
    server.end();
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e}: {report}"));
    assert_eq!(report["connections"], 16);
    assert!(report["messages"].as_u64().is_some_and(|count| count > 16), "{report}");
}
