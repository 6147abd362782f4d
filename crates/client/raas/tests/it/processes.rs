//! Two processes: the test runs itself again in another role.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use raas::{Listener, PathKind, Reason, Session, Stream, StreamError};

use crate::Watchdog;
use crate::fake_daemon::{FakeDaemon, HERE, THERE};

/// Says to a child what it is.
const ROLE: &str = "RAAS_TEST_ROLE";

/// Runs this very test in another process, as `role`.
fn child(test: &str, role: &str, socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{test}"), "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env("RAAS_SOCKET", socket)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The address that a child printed after `listening on `.
fn address_of(child: &mut Child, host: &str) -> (SocketAddr, BufReader<std::process::ChildStdout>) {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while out.read_line(&mut line).unwrap() > 0 {
        if let Some(at) = line.find("listening on ") {
            let addr: SocketAddr = line[at + 13..].trim().parse().unwrap();
            return (SocketAddr::new(host.parse().unwrap(), addr.port()), out);
        }
        line.clear();
    }
    panic!("the child said no address");
}

/// Role: answers one connection with what it gets, in the process-wide session.
fn echo_once() {
    let listener = Listener::bind("0.0.0.0:0").unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    let (stream, _) = listener.accept().unwrap();
    let (mut reader, mut writer) = stream.split();
    std::io::copy(&mut reader, &mut writer).unwrap();
}

#[test]
fn two_processes_exchange_bytes() {
    if role().is_some() {
        return echo_once();
    }
    let _watchdog = Watchdog::start("two_processes_exchange_bytes");
    for (host, path) in [(HERE, PathKind::Shm), (THERE, PathKind::Lane)] {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let mut echo = child("two_processes_exchange_bytes", "echo", daemon.path());
        let (to, _out) = address_of(&mut echo, host);
        let stream = Stream::connect_with(&session, to).unwrap();
        assert_eq!(stream.path(), path);
        assert_eq!(stream.peer_pid(), (path == PathKind::Shm).then_some(echo.id()));
        let data: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let (mut reader, mut writer) = stream.split();
        let copy = data.clone();
        let sending = std::thread::spawn(move || writer.write_all(&copy).unwrap());
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert!(got == data, "{} bytes came back", got.len());
        sending.join().unwrap();
        assert!(echo.wait().unwrap().success());
    }
}

/// Role: accepts, writes something, and waits to be killed.
fn victim() {
    let listener = Listener::bind("0.0.0.0:0").unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"my will").unwrap();
    let (mut second, _) = listener.accept().unwrap();
    second.write_all(b"x").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_killed_peer_resets_its_connections() {
    if role().is_some() {
        return victim();
    }
    let _watchdog = Watchdog::start("a_killed_peer_resets_its_connections");
    for host in [HERE, THERE] {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let mut peer = child("a_killed_peer_resets_its_connections", "victim", daemon.path());
        let (to, _out) = address_of(&mut peer, host);
        let mut first = Stream::connect_with(&session, to).unwrap();
        let mut second = Stream::connect_with(&session, to).unwrap();
        second.read_exact(&mut [0]).unwrap();
        // A writer that waits for room, and two readers that wait for bytes, when the peer dies.
        std::thread::scope(|s| {
            let (mut reader, mut writer) = (&second, &second);
            let reading = s.spawn(move || reader.read(&mut [0]).unwrap_err());
            let writing = s.spawn(move || writer.write_all(&[0; 1 << 20]).unwrap_err());
            std::thread::sleep(Duration::from_millis(50));
            peer.kill().unwrap();
            peer.wait().unwrap();
            for error in [reading.join().unwrap(), writing.join().unwrap()] {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerAppDied));
            }
        });
        let mut will = [0; 7];
        first.read_exact(&mut will).unwrap();
        assert_eq!(&will, b"my will", "what arrived before the death is delivered");
        let error = first.read(&mut will).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerAppDied));
        // Until the daemon has seen the death, a connect may still come through; it is worth nothing then.
        let refused = loop {
            match Stream::connect_with(&session, to) {
                Ok(mut late) => assert_eq!(late.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset),
                Err(refused) => break refused,
            }
        };
        assert!(matches!(refused.reason(), Some(Reason::NoListener | Reason::PeerAppDied)), "{refused}");
    }
}

/// Role: writes, closes and is gone at once, before the other side looked.
fn hasty() {
    let mut to = String::new();
    std::io::stdin().read_line(&mut to).unwrap();
    let mut stream = Stream::connect(to.trim()).unwrap();
    stream.write_all(&[5; 60_000]).unwrap();
}

#[test]
fn a_peer_that_closed_and_left_is_read_to_the_end() {
    if role().is_some() {
        return hasty();
    }
    let _watchdog = Watchdog::start("a_peer_that_closed_and_left_is_read_to_the_end");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let listener = Listener::bind_with(&session, "0.0.0.0:0").unwrap();
    let mut peer = child("a_peer_that_closed_and_left_is_read_to_the_end", "hasty", daemon.path());
    writeln!(peer.stdin.take().unwrap(), "{}", listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    assert!(peer.wait().unwrap().success());
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got.len() == 60_000 && got.iter().all(|&b| b == 5));
}

/// Role: the process-wide session, before and after its daemon died.
fn global() {
    let first = Session::global().unwrap();
    assert_eq!(Session::global().unwrap().number(), first.number(), "made once");
    println!("listening on 127.0.0.1:1");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // It notices on its own. A process that another test is just starting may
    // hold the daemon's descriptors until it runs its program.
    let started = std::time::Instant::now();
    while first.is_usable() {
        assert!(started.elapsed() < Duration::from_secs(60), "the daemon's end is not noticed");
        std::thread::yield_now();
    }
    // It is asked of the next daemon, which does not come.
    let error = Stream::connect("127.0.0.1:1").unwrap_err();
    assert_eq!(error.reason(), Some(Reason::DaemonLost), "{error}");
    // From then on it does not wait, and says that nobody serves the socket.
    let error = Stream::connect("127.0.0.1:1").unwrap_err();
    assert!(error.to_string().contains("raas daemon"), "{error}");
    let error = Stream::connect_with(&first, "127.0.0.1:1").unwrap_err();
    assert_eq!(error.reason(), Some(Reason::DaemonLost));
}

#[test]
fn the_global_session_finds_the_daemon_by_the_rule() {
    if role().is_some() {
        return global();
    }
    let _watchdog = Watchdog::start("the_global_session_finds_the_daemon_by_the_rule");
    let mut daemon = FakeDaemon::start();
    let mut user = child("the_global_session_finds_the_daemon_by_the_rule", "global", daemon.path());
    let (_, _out) = address_of(&mut user, HERE);
    daemon.die();
    writeln!(user.stdin.take().unwrap(), "dead").unwrap();
    assert!(user.wait().unwrap().success());
}
