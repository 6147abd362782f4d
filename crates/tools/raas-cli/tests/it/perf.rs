//! `raas perf` over RaaS and over kernel TCP, and what its server does with strangers.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::rig::{self, Cluster, Daemon, Running, address, raas, run, wait_until};
use serde_json::Value;

fn check(report: &Value, test: &str, paths: &[&str]) {
    assert_eq!(report["schema"], "raas.perf/1");
    assert_eq!(report["test"], test, "{report}");
    assert!(report["path"].as_str().is_some_and(|path| paths.contains(&path)), "{report}");
    for key in ["gbit_per_s", "msgs_per_s", "cpu_seconds_per_gb"] {
        assert!(report[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {report}");
    }
    for key in ["p50_us", "p90_us", "p99_us", "p999_us"] {
        assert_eq!(report[key].as_f64().is_some_and(|v| v > 0.0), test == "lat", "{key}: {report}");
    }
    assert_eq!(report["histogram"].as_array().unwrap().is_empty(), test != "lat");
}

#[test]
fn every_test_runs_between_hosts_on_one_host_and_over_tcp() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let mut server = Running::start(&mut b.command(&["perf", "server", "4801"]));
    server.wait_for("listening on ");
    let tcp_ip = address();
    let mut tcp_server = Running::start(raas().args(["perf", "server", "--tcp", &tcp_port(&tcp_ip.to_string())]));
    tcp_server.wait_for("listening on ");
    for test in ["lat", "bw", "rate"] {
        let to = format!("{}:4801", b.ip);
        let args = ["perf", test, &to, "--seconds", "0.3", "--connections", "3", "--json"];
        // Bulk and conversations leave the lane, if there is time.
        for (daemon, paths) in [(&a, &["lane", "tcp-direct"][..]), (&b, &["shm"])] {
            let ended = run(&mut daemon.command(&args));
            assert_eq!(ended.code(), 0, "{test} over {paths:?}: {ended:?}");
            let report = ended.json();
            check(&report, test, paths);
            assert!(report["cpu_client_daemon_seconds"].is_f64(), "{report}");
            assert_eq!(report["cpu_server_daemon_seconds"].is_f64(), paths.contains(&"lane"), "{report}");
        }
        let to = format!("{tcp_ip}:{}", tcp_port(&tcp_ip.to_string()));
        let ended = run(raas().args(["perf", test, &to, "--tcp", "--seconds", "0.3", "--connections", "3", "--json"]));
        assert_eq!(ended.code(), 0, "{test} over TCP: {ended:?}");
        check(&ended.json(), test, &["tcp"]);
    }
    drop(server);
    a.stop();
    b.stop();
}

/// A TCP port that follows from the address, since `raas perf server` listens at every address.
fn tcp_port(ip: &str) -> String {
    let sum: u32 = ip.split('.').map(|p| p.parse::<u32>().unwrap()).fold(0, |a, p| (a * 31 + p) % 9000);
    (20_000 + sum).to_string()
}

#[test]
fn the_server_outlives_its_daemon() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let mut server = Running::start(&mut b.command(&["perf", "server", "4803"]));
    server.wait_for("listening on ");
    let to = format!("{}:4803", b.ip);
    let ask = |a: &Daemon| run(&mut a.command(&["perf", "lat", &to, "--seconds", "0.1", "--json"]));
    assert_eq!(ask(&a).code(), 0);
    let ip = b.ip;
    b.stop();
    wait_until("the loss is told", || server.stderr().contains("going on"));
    assert!(!server.has_ended());
    let b = Daemon::start(&cluster, &cluster.key(), ip);
    // The listener tries again by and by, and the first daemon finds the second.
    wait_until("the server serves again", || ask(&a).code() == 0);
    assert_eq!(server.stderr().matches("going on").count(), 1, "said once: {}", server.stderr());
    drop(server);
    a.stop();
    b.stop();
}

#[test]
fn strangers_are_refused_and_the_server_goes_on() {
    let port = tcp_port(&address().to_string());
    let mut server = Running::start(raas().args(["perf", "server", "--tcp", &port]));
    server.wait_for("listening on ");
    let at = format!("127.0.0.1:{port}");
    let talk = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&at).unwrap();
        stream.set_read_timeout(Some(rig::WATCHDOG)).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // A reset is as good an end as a closed stream.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert_eq!(talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n........"), b"");
    assert_eq!(talk(b"short"), b"");
    let hello = |kind: u8, size: u32| {
        let mut bytes = b"raasperf\x01\x00".to_vec();
        bytes.extend([kind, 0]);
        bytes.extend(size.to_le_bytes());
        bytes.resize(32, 0);
        bytes
    };
    // Status at byte 10: no such test, impossible size.
    assert_eq!(talk(&hello(9, 64)).get(10), Some(&2));
    assert_eq!(talk(&hello(1, 0)).get(10), Some(&3));
    assert_eq!(talk(&hello(1, u32::MAX)).get(10), Some(&3));
    assert!(!server.has_ended());
    let ended = run(raas().args(["perf", "lat", &at, "--tcp", "--seconds", "0.1", "--json"]));
    assert_eq!(ended.code(), 0, "{ended:?}");
    // Nobody there: refused.
    server.kill();
    let ended = run(raas().args(["perf", "lat", &at, "--tcp"]));
    assert_eq!(ended.code(), 4, "{ended:?}");
}
