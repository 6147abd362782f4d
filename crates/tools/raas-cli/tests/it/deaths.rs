//! SIGKILL of applications and daemons: the others learn of it at once, what does not depend on the dead goes on, and
//! everything that it held returns.

use std::io::{ErrorKind, Read, Write};
use std::process::Stdio;
use std::time::Duration;

use crate::rig::{Cluster, Daemon, Running, WATCHDOG, run, wait_until};
use raas::{Listener, Reason, Stream, StreamError};

fn stat(daemon: &Daemon) -> serde_json::Value {
    let ended = run(&mut daemon.command(&["stat", "--json"]));
    assert_eq!(ended.code(), 0, "{ended:?}");
    ended.json()
}

/// Reads until an error comes, and says which.
fn read_to_failure(mut stream: &Stream) -> std::io::Error {
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("an orderly end after a kill"),
            Ok(_) => {}
            Err(e) => return e,
        }
    }
}

#[test]
fn a_killed_application_resets_its_peer_and_gives_everything_back() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let session = b.session("survivor");
    let listener = Listener::bind_with(&session, (b.ip, 7000)).unwrap();
    let mut victim = Running::start(a.command(&["send", "-", &format!("{}:7000", b.ip)]).stdin(Stdio::piped()));
    let mut stdin = victim.stdin();
    stdin.write_all(b"hello").unwrap();
    let (mut stream, _) = listener.accept_timeout(WATCHDOG).unwrap();
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(stat(&a)["apps"].as_array().unwrap().len(), 1);
    victim.kill();
    let error = read_to_failure(&stream);
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let reason = StreamError::reason_of(&error);
    assert!(matches!(reason, Some(Reason::PeerAppDied | Reason::ResetByPeer)), "{reason:?}");
    wait_until("the victim's resources", || {
        let stat = stat(&a);
        stat["apps"].as_array().unwrap().is_empty() && stat["lanes"][0]["connections"] == 0
    });
    drop((stream, listener, session));
    wait_until("the survivor's resources", || stat(&b)["apps"].as_array().unwrap().is_empty());
    // The lane lives on and carries the next one.
    let session = b.session("second");
    let listener = Listener::bind_with(&session, (b.ip, 7001)).unwrap();
    let sender = Running::start(&mut a.command(&["send", "/proc/self/status", &format!("{}:7001", b.ip)]));
    let (mut stream, _) = listener.accept_timeout(WATCHDOG).unwrap();
    let mut text = String::new();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("Name:\traas"), "{text}");
    drop(stream);
    assert_eq!(sender.end().code(), 0);
    assert_eq!(stat(&a)["rc_qps"], 1);
    drop((listener, session));
    a.stop();
    b.stop();
}

#[test]
fn a_killed_daemon_fails_other_hosts_at_once_and_same_host_goes_on() {
    let cluster = Cluster::new();
    let (mut a, b) = (cluster.daemon(), cluster.daemon());
    let target = cluster.dir.path().join("target");
    let mut same_host = Running::start(a.command(&["recv", "7000", "-o"]).arg(&target));
    same_host.wait_for("listening on ");
    let session_a = a.session("on-a");
    let session_b = b.session("on-b");
    let listener = Listener::bind_with(&session_b, (b.ip, 7000)).unwrap();
    let far = Stream::connect_with(&session_a, (b.ip, 7000)).unwrap();
    let (far_peer, _) = listener.accept_timeout(WATCHDOG).unwrap();
    let mut near = Stream::connect_with(&session_a, (a.ip, 7000)).unwrap();
    assert_eq!((far.path(), near.path()), (raas::PathKind::Lane, raas::PathKind::Shm));
    near.write_all(b"before, ").unwrap();

    // One end waits in a read while the daemon dies: it must be woken.
    let waiting = std::thread::spawn(move || {
        let error = read_to_failure(&far);
        (error, far)
    });
    std::thread::sleep(Duration::from_millis(100));
    a.process.kill();
    let (error, mut far) = waiting.join().unwrap();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::DaemonLost), "{error}");
    let error = far.write_all(b"x").unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::DaemonLost), "{error}");
    let error = read_to_failure(&far_peer);
    assert!(matches!(StreamError::reason_of(&error), Some(Reason::PeerLost | Reason::LaneFailed)), "{error}");

    near.write_all(b"after").unwrap();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let ended = same_host.end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert_eq!(std::fs::read(&target).unwrap(), b"before, after");
    // New sessions get the error that there is no daemon.
    let ended = run(&mut a.command(&["ss"]));
    assert_eq!(ended.code(), 3, "{ended:?}");
    drop((far_peer, listener, session_b));
    b.stop();
}

#[test]
fn a_daemon_whose_parent_ends_ends_in_order() {
    let cluster = Cluster::new();
    let a = cluster.daemon();
    let socket = a.socket.clone();
    let session = a.session("client");
    let (ip, near_port) = (a.ip, 7000);
    let listener = Listener::bind_with(&session, (ip, near_port)).unwrap();
    a.stop();
    assert!(!socket.exists(), "an orderly end removes the socket");
    let error = listener.accept_timeout(WATCHDOG).unwrap_err();
    assert!(matches!(error, raas::AcceptError::Session(_)), "{error}");
}
