//! `raas send` and `raas recv` between two hosts and on one host.

use std::io::Write;
use std::process::Stdio;

use crate::rig::{Cluster, Daemon, Running, pattern, run};

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

/// Names in a directory, without what the test rig put there.
fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_only_when_the_new_one_is_whole() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    let kept =
        || (std::fs::read(&target).unwrap(), names(place.path())) == (b"precious".to_vec(), vec!["target".to_owned()]);
    // Nobody connects.
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let mut receiver = Running::start(b.command(&["recv", "7004", "-o"]).arg(&target));
        receiver.wait_for("listening on ");
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        receiver.signal(signal);
        assert_eq!(receiver.end().code(), 1);
        assert!(kept(), "{:?}", names(place.path()));
    }
    // The sender dies in the middle.
    let mut receiver = Running::start(b.command(&["recv", "7004", "-o"]).arg(&target));
    receiver.wait_for("listening on ");
    let mut sender = Running::start(a.command(&["send", "-", &format!("{}:7004", b.ip)]).stdin(Stdio::piped()));
    let mut stdin = sender.stdin();
    stdin.write_all(&[1; 100_000]).unwrap();
    sender.kill();
    drop(stdin);
    let ended = receiver.end();
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert!(kept(), "{:?}", names(place.path()));
    // A whole file, over a link.
    std::os::unix::fs::symlink("target", place.path().join("link")).unwrap();
    let mut receiver = Running::start(b.command(&["recv", "7004", "-o"]).arg(place.path().join("link")));
    receiver.wait_for("listening on ");
    let sent = run(&mut a.command(&["send", "/proc/self/status", &format!("{}:7004", b.ip)]));
    assert_eq!((sent.code(), receiver.end().code()), (0, 0), "{sent:?}");
    assert!(std::fs::read_to_string(&target).unwrap().contains("Name:\traas"));
    assert_eq!(names(place.path()), ["link", "target"]);
    assert!(place.path().join("link").is_symlink());
    // What is no file, and what cannot be one.
    let mut receiver = Running::start(&mut b.command(&["recv", "7004", "-o", "/dev/stdout"]));
    receiver.wait_for("listening on ");
    assert_eq!(run(&mut a.command(&["send", "/proc/self/status", &format!("{}:7004", b.ip)])).code(), 0);
    assert!(receiver.end().stdout.contains("Name:\traas"));
    for bad in [place.path().to_path_buf(), place.path().join("nowhere/file")] {
        let ended = run(b.command(&["recv", "7004", "-o"]).arg(bad));
        assert_eq!(ended.code(), 2, "{ended:?}");
    }
    a.stop();
    b.stop();
}
