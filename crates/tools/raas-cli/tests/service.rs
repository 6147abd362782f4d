//! What a daemon tells the service manager: that it serves, that it lives and no longer lives, that it stops. And the
//! control socket that the manager may have opened before.

mod rig;

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rig::{Cluster, Running, WATCHDOG, address, raas};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

/// A daemon whose service manager is this socket, and expects a sign of life in each `watchdog`.
fn serve(cluster: &Cluster, watchdog: Option<Duration>) -> (Running, UnixDatagram) {
    let place = cluster.dir.path().join("notify");
    let manager = UnixDatagram::bind(&place).unwrap();
    manager.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut command = raas();
    command.args(["daemon", "--listen", &address().to_string(), "--key-file"]).arg(cluster.key());
    command.arg("--socket").arg(cluster.dir.path().join("raasd.sock")).env("NOTIFY_SOCKET", &place);
    if let Some(limit) = watchdog {
        command.env("WATCHDOG_USEC", limit.as_micros().to_string());
    }
    (Running::start(command.stdin(Stdio::null())), manager)
}

fn hear(manager: &UnixDatagram) -> String {
    let mut words = [0; 512];
    let n = manager.recv(&mut words).unwrap();
    String::from_utf8_lossy(&words[..n]).into_owned()
}

#[test]
fn it_is_ready_when_it_serves_and_says_when_it_stops() {
    let cluster = Cluster::new();
    let (daemon, manager) = serve(&cluster, None);
    let first = hear(&manager);
    assert!(first.lines().any(|line| line == "READY=1"), "{first}");
    raas::Session::builder().socket(cluster.dir.path().join("raasd.sock")).name("early").connect().unwrap();
    daemon.signal(Signal::TERM);
    assert!(hear(&manager).lines().any(|line| line == "STOPPING=1"));
    assert_eq!(daemon.end().code(), 0);
}

#[test]
fn a_daemon_that_stands_still_gives_no_sign_of_life() {
    let cluster = Cluster::new();
    let (daemon, manager) = serve(&cluster, Some(Duration::from_millis(300)));
    assert!(hear(&manager).contains("READY=1"));
    (0..3).for_each(|_| assert!(hear(&manager).contains("WATCHDOG=1")));
    daemon.signal(Signal::STOP);
    manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while manager.recv(&mut [0; 512]).is_ok() {}
    daemon.signal(Signal::CONT);
    manager.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert!(hear(&manager).contains("WATCHDOG=1"));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), 0);
}

/// A socket that listens, as a socket unit with this type makes it.
fn opened(place: &Path, kind: SocketType) -> OwnedFd {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(place).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    socket
}

/// A daemon at `place` that got `socket` as number 3, as systemd starts it.
fn activated(cluster: &Cluster, place: &Path, socket: &OwnedFd) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", r#"LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&0 0</dev/null"#, "sh", env!("CARGO_BIN_EXE_raas")]);
    command.args(["daemon", "--listen", &address().to_string(), "--key-file"]).arg(cluster.key());
    command.arg("--socket").arg(place).stdin(Stdio::from(socket.try_clone().unwrap()));
    Running::start(&mut command)
}

#[test]
fn the_managers_socket_is_served_by_one_daemon_after_the_other() {
    let cluster = Cluster::new();
    let place = cluster.dir.path().join("raasd.sock");
    let socket = opened(&place, SocketType::SEQPACKET);
    let file = std::fs::metadata(&place).unwrap().ino();
    for turn in 0..2 {
        // It connects while no daemon is there, and waits for one.
        let early = {
            let place = place.clone();
            std::thread::spawn(move || raas::Session::builder().socket(place).name("early").connect().map(drop))
        };
        let mut daemon = activated(&cluster, &place, &socket);
        daemon.wait_for(&format!("ready socket={}", place.display()));
        early.join().unwrap().unwrap_or_else(|e| panic!("turn {turn}: {e}"));
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end().code(), 0);
        assert_eq!(std::fs::metadata(&place).unwrap().ino(), file, "the manager's socket was removed");
    }
}

#[test]
fn only_the_manager_replaces_a_daemon_at_its_socket() {
    let cluster = Cluster::new();
    let place = cluster.dir.path().join("raasd.sock");
    let socket = opened(&place, SocketType::SEQPACKET);
    let mut daemon = activated(&cluster, &place, &socket);
    daemon.wait_for("ready socket=");
    let session = raas::Session::builder().socket(&place).name("stays").connect().unwrap();
    let mut another = raas();
    another.args(["daemon", "--replace", "--listen", &address().to_string(), "--key-file"]).arg(cluster.key());
    let ended = rig::run(another.arg("--socket").arg(&place));
    assert_eq!(ended.code(), 2, "{ended:?}");
    assert!(ended.stderr.contains("systemctl restart"), "{ended:?}");
    raas::Listener::bind_with(&session, "0.0.0.0:0").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), 0);
}

#[test]
fn a_socket_of_another_place_or_kind_is_refused() {
    let cluster = Cluster::new();
    let (place, other) = (cluster.dir.path().join("raasd.sock"), cluster.dir.path().join("other.sock"));
    let stream = opened(&place, SocketType::STREAM);
    let elsewhere = opened(&other, SocketType::SEQPACKET);
    for (socket, why) in [(&stream, "ListenSequentialPacket="), (&elsewhere, "must be the same")] {
        let ended = activated(&cluster, &place, socket).end();
        assert_eq!(ended.code(), 1, "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
}
