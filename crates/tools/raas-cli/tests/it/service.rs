//! What a daemon tells the service manager: that it serves, that it lives and no longer lives, that it stops. And what the
//! manager gives it: the control socket that it may have opened before, and descriptors that it kept over a restart.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::{self, Cluster, Running, WATCHDOG, address, raas};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal};
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};
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

/// A service manager with a descriptor store: what daemons had it keep, by name.
struct Manager {
    socket: UnixDatagram,
    kept: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new(cluster: &Cluster) -> Self {
        let socket = UnixDatagram::bind(cluster.dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(WATCHDOG)).unwrap();
        Self { socket, kept: BTreeMap::new() }
    }

    /// Takes one message as systemd does; its words.
    fn hear(&mut self) -> String {
        let mut words = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut words)];
        let n = rustix::net::recvmsg(&self.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
        let fds =
            control.drain().find_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None });
        let words = String::from_utf8_lossy(&words[..n]).into_owned();
        let name = || words.lines().find_map(|line| line.strip_prefix("FDNAME=")).expect("it has a name").to_owned();
        if words.contains("FDSTOREREMOVE=1") {
            // Of a name that is not there systemd removes nothing.
            self.kept.remove(&name());
        } else if words.contains("FDSTORE=1") {
            let fd = fds.and_then(|mut fds| fds.next()).expect("a descriptor");
            assert!(self.kept.insert(name(), fd).is_none(), "kept twice: {words}");
        }
        words
    }

    fn hear_until(&mut self, is_it: impl Fn(&Self, &str) -> bool) {
        while let words = self.hear()
            && !is_it(self, &words)
        {}
    }

    /// Starts a daemon with all that is kept.
    fn start(&self, cluster: &Cluster, listen: IpAddr) -> Running {
        let mut script = String::new();
        for (number, fd) in (3..).zip(self.kept.values()) {
            rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap();
            // Numbers of the test are far above those of the daemon.
            assert!(fd.as_raw_fd() > 2 + self.kept.len() as i32);
            script += &format!("exec {number}<&{fd} {fd}<&-\n", fd = fd.as_raw_fd());
        }
        script += r#"LISTEN_PID=$$ exec "$@""#;
        let names: Vec<&str> = self.kept.keys().map(String::as_str).collect();
        // bash: a descriptor of sh has one digit.
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_raas"), "daemon", "--listen", &listen.to_string()]);
        command.arg("--key-file").arg(cluster.key()).arg("--socket").arg(cluster.dir.path().join("raasd.sock"));
        command.env("NOTIFY_SOCKET", cluster.dir.path().join("notify"));
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        Running::start(command.stdin(Stdio::null()))
    }
}

#[test]
fn a_region_that_nobody_owns_goes_on_over_the_death_of_its_daemon() {
    let cluster = Cluster::new();
    let listen = address();
    let mut manager = Manager::new(&cluster);
    // So that what the manager keeps has high numbers.
    let _low: Vec<_> = (0..24).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let key = RegionKey::new([9; 16]);
    let here = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let attach = |name: &str| {
        raas::Session::builder().socket(cluster.dir.path().join("raasd.sock")).name(name).connect().unwrap()
    };
    let content: Vec<u8> = rig::pattern(3 << 20);
    let access = RegionAccess::ALL;
    let mut daemon = manager.start(&cluster, listen);
    manager.hear_until(|_, words| words.contains("READY=1"));
    {
        let owner = attach("owner");
        let region =
            RegionOptions::new().key(key).access(access).outlives(true).create(&owner, "left", 3 << 20).unwrap();
        region.write(0, &content).unwrap();
        let passing = RegionOptions::new().create(&owner, "passing", 64).unwrap();
        passing.write(0, &[1; 64]).unwrap();
    }
    manager.hear_until(|manager, _| manager.kept.len() == 2);
    let reader = attach("reader");
    let held = Region::open_for(&reader, here, "left", key, access).unwrap();
    held.fetch_add(0, 5).unwrap();
    let map = held.map(0, 64).unwrap();
    for death in 1..=2_u64 {
        daemon.kill();
        if death == 2 {
            // Nothing of these is believed, and nothing of it stops the daemon.
            let junk = std::fs::File::open("/dev/null").unwrap();
            manager.kept.insert("raas-record-1-1".into(), junk.try_clone().unwrap().into());
            manager.kept.insert("raas-region-1-1".into(), junk.into());
            let alone = manager.kept.values().next().unwrap().try_clone().unwrap();
            manager.kept.insert("raas-region-1-2".into(), alone);
        }
        let before: Vec<String> = manager.kept.keys().cloned().collect();
        daemon = manager.start(&cluster, listen);
        // The new memory and its record take the place of all that was kept.
        manager
            .hear_until(|manager, _| manager.kept.len() == 2 && !before.iter().any(|n| manager.kept.contains_key(n)));
        let session = attach("next");
        let region = Region::open_for(&session, here, "left", key, access).unwrap();
        assert_eq!(region.epoch(), 1 + death);
        assert_eq!(region.fetch_add(0, 5).unwrap(), u64::from_le_bytes(content[..8].try_into().unwrap()) + 5 * death);
        let mut found = vec![0; content.len() - 8];
        region.read(8, &mut found).unwrap();
        assert!(found == content[8..], "the bytes are others after {death} deaths");
        let gone = Region::open_for(&session, here, "passing", key, RegionAccess::READ).unwrap_err();
        assert!(matches!(gone, RegionError::Refused { why: RegionRefusal::Unknown, .. }), "{gone:?}");
        // What was mapped before is not the region's any more, and the handle goes on.
        let late = map.check().unwrap_err();
        assert!(matches!(late, RegionError::DaemonLost { .. }), "{late:?}");
        held.read(8, &mut found).unwrap();
        assert!(found == content[8..] && held.epoch() == 1 + death, "after {death} deaths");
    }
    let session = attach("last");
    Region::revoke_by_name(&session, "left", key, None).unwrap();
    manager.hear_until(|manager, _| manager.kept.is_empty());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), 0);
}
