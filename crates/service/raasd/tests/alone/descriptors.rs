//! What a daemon has open.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use control::{APP_VERSION, ChannelError, Reason, Reply, Request, Role, recv_message, send_message};
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

/// Programs that send descriptors with messages that bring none along: with the first one, which a kernel may refuse,
/// and with a later one.
fn send_descriptors(daemon: &Daemon) {
    let null = std::fs::File::open("/dev/null").unwrap();
    for (with_hello, with_listen) in [(0, 1), (0, 4), (1, 0), (4, 0)].repeat(50) {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(daemon.socket()).unwrap()).unwrap();
        let hello = Request::Hello {
            version: APP_VERSION,
            layout: shm::LAYOUT_VERSION,
            role: Role::Application,
            name: "generous".into(),
        };
        let listen = Request::Listen { request: 1, port: 0, backlog: 1, ring_bytes: 0, kind: control::Kind::Stream };
        if send_message(socket.as_fd(), &hello, &vec![null.as_fd(); with_hello]).is_err() {
            assert!(with_hello > 0);
            continue;
        }
        let first = next(&socket);
        if with_hello > 0 {
            assert!(matches!(first, Reply::Refused { reason: Reason::AppFault, .. }), "{first:?}");
            continue;
        }
        assert!(matches!(first, Reply::Welcome { .. }), "{first:?}");
        send_message(socket.as_fd(), &listen, &vec![null.as_fd(); with_listen]).unwrap();
        let Reply::Detached { reason: Reason::AppFault, detail } = next(&socket) else { panic!("it was served") };
        assert!(detail.contains("descriptors"), "{detail}");
    }
}

fn next(socket: &OwnedFd) -> Reply {
    let start = Instant::now();
    loop {
        match recv_message::<Reply>(socket.as_fd(), &mut Vec::new()) {
            Ok((message, _)) => return message,
            Err(ChannelError::WouldBlock) => assert!(start.elapsed() < PATIENCE, "the daemon says nothing"),
            Err(e) => panic!("{e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
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
