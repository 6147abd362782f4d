//! What a daemon tells the service manager: that it serves, that it lives and no longer lives, that it stops.

mod rig;

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

use rig::{Cluster, Running, WATCHDOG, address, raas};
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
