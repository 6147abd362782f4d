//! What a daemon has open.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use control::{APP_VERSION, ChannelError, Reply, Request, Role, recv_message, send_message};
use raas::{Listener, Session, Stream};
use raasd::{Config, Daemon};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const PATIENCE: Duration = Duration::from_secs(60);

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn daemon(directory: &std::path::Path, last: u8) -> Daemon {
    let [.., b, c] = std::process::id().to_be_bytes();
    let mut config = Config::new([127, 128 | b, c, last].into());
    config.socket = directory.join(format!("{last}.sock"));
    Daemon::start(config).unwrap()
}

/// Connections through lanes and shared memory come and go, as do programs.
fn use_them(a: &Daemon, b: &Daemon) {
    let (client, server) = (Session::connect(a.socket()).unwrap(), Session::connect(b.socket()).unwrap());
    let host = b.peer_address().ip();
    let listener = Listener::bind_with(&server, (host, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let neighbour = Session::connect(b.socket()).unwrap();
    for session in [&client, &neighbour] {
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                for _ in 0..20 {
                    listener.accept_timeout(PATIENCE).unwrap();
                }
            });
            let streams: Vec<_> = (0..20).map(|_| Stream::connect_with(session, to).unwrap()).collect();
            assert_eq!(streams.len(), 20);
            accepting.join().unwrap();
        });
    }
}

/// A program that sends four descriptors with each message, none of which anybody asked for.
fn send_descriptors(daemon: &Daemon) {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(daemon.socket()).unwrap()).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut buffer = Vec::new();
    let mut next = || {
        let start = Instant::now();
        loop {
            match recv_message::<Reply>(socket.as_fd(), &mut buffer) {
                Ok(message) => return message,
                Err(ChannelError::WouldBlock) => assert!(start.elapsed() < PATIENCE, "the daemon says nothing"),
                Err(e) => panic!("{e}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let hello = Request::Hello {
        version: APP_VERSION,
        layout: shm::LAYOUT_VERSION,
        role: Role::Application,
        name: "generous".into(),
    };
    send_message(socket.as_fd(), &hello, &[null.as_fd(); 4]).unwrap();
    let _session = next();
    let before = open_descriptors();
    for request in 0..200 {
        let listen = Request::Listen { request, port: 0, backlog: 1, ring_bytes: 0, kind: control::Kind::Stream };
        send_message(socket.as_fd(), &listen, &[null.as_fd(); 4]).unwrap();
        assert!(matches!(next().0, Reply::Listening { .. }));
    }
    eventually("descriptors that nobody asked for are closed", || open_descriptors() <= before);
}

#[test]
fn descriptors_are_given_back() {
    let _alone = crate::alone();
    let directory = tempfile::tempdir().unwrap();
    // The runtime keeps a socket pair for signals as long as the process lives.
    drop(daemon(directory.path(), 1));
    let before_daemons = open_descriptors();
    let (a, b) = (daemon(directory.path(), 1), daemon(directory.path(), 2));
    use_them(&a, &b);
    let apps = |d: &Daemon| raas::inspect::stat(Some(d.socket())).unwrap().apps.len();
    eventually("the programs are released", || apps(&a) + apps(&b) == 0);
    // With the control link and the lane, which stay.
    let before = open_descriptors();
    for _ in 0..5 {
        use_them(&a, &b);
    }
    eventually("programs and connections leave none", || open_descriptors() <= before);
    send_descriptors(&a);
    eventually("nor does that one", || open_descriptors() <= before);
    drop((a, b));
    eventually("daemons leave none", || open_descriptors() <= before_daemons);
}
