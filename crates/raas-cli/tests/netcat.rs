//! `raas send` and `raas recv` between two hosts and on one host.

mod rig;

use std::io::Write;
use std::process::Stdio;

use rig::{Cluster, Daemon, Running, pattern, run};

const FILE_BYTES: usize = 10_000_000;

fn round_trip(from: &Daemon, to: &Daemon, cluster: &Cluster) {
    let source = cluster.dir.path().join("source");
    let target = cluster.dir.path().join("target");
    let bytes = pattern(FILE_BYTES);
    std::fs::write(&source, &bytes).unwrap();
    let mut receiver = Running::start(to.command(&["recv", "7001", "-o"]).arg(&target));
    receiver.wait_for("listening on ");
    let sent = run(&mut from.command(&["send", source.to_str().unwrap(), &format!("{}:7001", to.ip)]));
    assert_eq!(sent.code(), 0, "{sent:?}");
    let received = receiver.end();
    assert_eq!(received.code(), 0, "{received:?}");
    assert!(std::fs::read(&target).unwrap() == bytes, "the file arrived changed");
}

#[test]
fn a_file_goes_from_host_to_host() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    round_trip(&a, &b, &cluster);
    round_trip(&b, &a, &cluster);
    a.stop();
    b.stop();
}

#[test]
fn a_file_goes_within_one_host() {
    let cluster = Cluster::new();
    let a = cluster.daemon();
    round_trip(&a, &a, &cluster);
    a.stop();
}

#[test]
fn stdin_goes_to_stdout_and_nothing_else_does() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let mut receiver = Running::start(&mut b.command(&["recv", "7002"]));
    receiver.wait_for("listening on ");
    let mut sender = Running::start(a.command(&["send", "-", &format!("{}:7002", b.ip)]).stdin(Stdio::piped()));
    let mut stdin = sender.stdin();
    stdin.write_all(b"first, ").unwrap();
    receiver.wait_for("first, ");
    stdin.write_all(b"last").unwrap();
    drop(stdin);
    assert_eq!(sender.end().code(), 0);
    let received = receiver.end();
    assert_eq!(received.code(), 0);
    assert_eq!(received.stdout, "first, last");
    a.stop();
    b.stop();
}

#[test]
fn a_killed_receiver_fails_the_sender() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let mut receiver = Running::start(&mut b.command(&["recv", "7003"]));
    receiver.wait_for("listening on ");
    let mut sender = Running::start(a.command(&["send", "-", &format!("{}:7003", b.ip)]).stdin(Stdio::piped()));
    let mut stdin = sender.stdin();
    stdin.write_all(b"hello").unwrap();
    receiver.wait_for("hello");
    receiver.kill();
    // Nothing more is sent: the sender must notice by the reset alone, at the latest when its input ends.
    drop(stdin);
    let ended = sender.end();
    assert_eq!(ended.code(), 1, "{ended:?}");
    a.stop();
    b.stop();
}
