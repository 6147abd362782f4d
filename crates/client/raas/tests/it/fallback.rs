//! Kernel TCP where no daemon carries a connection: only when asked for, and never without saying so.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use control::Reason;
use raas::{
    AcceptError, ConnectError, ConnectOptions, Fallback, FallbackCause, ListenOptions, Listener, MessageStream,
    NotOverTcp, PathKind, Readiness, Session, SessionError, Stream, StreamError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Watchdog;
use crate::fake_daemon::{FakeDaemon, HERE};
use crate::world::pattern;

/// A host at which the daemon of these tests finds no other daemon.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

fn asked() -> ConnectOptions {
    ConnectOptions::new().fallback(Fallback::Tcp)
}

fn nobody() -> Result<Session, SessionError> {
    let dir = tempfile::tempdir().unwrap();
    Session::connect(dir.path().join("nobody.sock"))
}

/// Two ends without any daemon.
fn two() -> (Stream, Stream) {
    let listener = ListenOptions::new().fallback(Fallback::Tcp).listen(nobody(), "127.0.0.1:0").unwrap();
    let client = asked().dial(nobody(), listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Whether the descriptor turns readable; `true` is waited for, `false` is looked at once.
fn readable(fd: BorrowedFd<'_>, expected: bool) -> bool {
    let bound = Timespec { tv_sec: if expected { 60 } else { 0 }, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&bound)).unwrap() > 0
}

fn not_over_tcp(error: &io::Error) -> Option<&NotOverTcp> {
    error.get_ref()?.downcast_ref()
}

/// The daemon learns of a connection after the program has it. The watchdog ends a wait without end.
fn wait_for(daemon: &FakeDaemon, rows: usize) {
    while daemon.facts().tcp.len() != rows {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_a_daemon_bytes_flow_both_ways_and_the_stream_says_why() {
    let _watchdog = Watchdog::start("without_a_daemon");
    let (client, server) = two();
    for (stream, cause) in [(&client, FallbackCause::NoDaemon), (&server, FallbackCause::Accepted)] {
        assert_eq!((stream.path(), stream.reason()), (PathKind::Tcp, Reason::TcpFallback));
        assert_eq!((stream.fallback(), stream.failure(), stream.id()), (Some(cause), None, 0));
    }
    assert_eq!(
        (client.local_addr().unwrap(), client.peer_addr().unwrap()),
        (server.peer_addr().unwrap(), server.local_addr().unwrap())
    );
    let sent = pattern(3 << 20, 5);
    let (mut from_client, mut to_server) = client.split();
    let copy = sent.clone();
    let echo = thread::spawn(move || {
        let mut got = Vec::new();
        (&server).read_to_end(&mut got).unwrap();
        (&server).write_all(&got).unwrap();
    });
    let writing = thread::spawn(move || {
        assert!(to_server.write_vectored(&[IoSlice::new(&copy[..3]), IoSlice::new(&copy[3..9])]).unwrap() == 9);
        to_server.write_all(&copy[9..]).unwrap();
        // Dropping the half ends the writing.
    });
    let mut back = Vec::new();
    from_client.read_to_end(&mut back).unwrap();
    assert!(back == sent, "{} bytes came back", back.len());
    writing.join().unwrap();
    echo.join().unwrap();
}

#[test]
fn who_did_not_ask_hears_the_old_error() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = tcp.local_addr().unwrap();
    let error = ConnectOptions::new().dial(nobody(), to).unwrap_err();
    assert!(matches!(&error, ConnectError::Session(SessionError::NoDaemon { .. })), "{error:?}");
    assert_eq!(io::Error::from(error).kind(), ErrorKind::NotFound);
    assert!(ListenOptions::new().listen(nobody(), "127.0.0.1:0").is_err());

    let daemon = FakeDaemon::start();
    let elsewhere = TcpListener::bind((ELSEWHERE, 0)).unwrap();
    let error = Stream::connect_with(&daemon.session(), elsewhere.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::PeerUnreachable), "{error:?}");
    for listener in [tcp, elsewhere] {
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody came");
    }
}

#[test]
fn a_peer_without_a_daemon_is_reached_and_this_hosts_daemon_is_told() {
    let _watchdog = Watchdog::start("a_peer_without_a_daemon");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let tcp = TcpListener::bind((ELSEWHERE, 0)).unwrap();
    let mut stream = asked().connect(&session, tcp.local_addr().unwrap()).unwrap();
    assert_eq!((stream.path(), stream.fallback()), (PathKind::Tcp, Some(FallbackCause::PeerUnreachable)));
    let (mut peer, _) = tcp.accept().unwrap();
    stream.write_all(b"ping").unwrap();
    let mut got = [0; 4];
    peer.read_exact(&mut got).unwrap();
    peer.write_all(&got).unwrap();
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
    wait_for(&daemon, 1);
    drop(stream);
    wait_for(&daemon, 0);
}

#[test]
fn a_daemon_that_answers_is_taken_at_its_word() {
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let tcp = TcpListener::bind((HERE, 0)).unwrap();
    let error = asked().connect(&session, tcp.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::NoListener), "{error:?}");
    // Nobody on kernel TCP either: the error names both.
    let gone = TcpListener::bind((ELSEWHERE, 0)).unwrap().local_addr().unwrap();
    let error = asked().connect(&session, gone).unwrap_err();
    assert!(matches!(&error, ConnectError::Tcp { cause: FallbackCause::PeerUnreachable, .. }), "{error:?}");
    assert!(error.to_string().contains("kernel TCP"), "{error}");
    assert_eq!(io::Error::from(error).kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn one_listener_takes_connections_of_both_kinds() {
    let _watchdog = Watchdog::start("one_listener_takes_connections_of_both_kinds");
    let daemon = FakeDaemon::start();
    let sessions = [daemon.session(), daemon.session()];
    let listener = ListenOptions::new().fallback(Fallback::Tcp).bind(&sessions[1], (HERE, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let mut paths = Vec::new();
    // A thread that sleeps in accept is woken by either.
    for over_tcp in [true, false, true] {
        thread::scope(|s| {
            let accepted = s.spawn(|| listener.accept().unwrap().0);
            thread::sleep(Duration::from_millis(20));
            if over_tcp {
                TcpStream::connect(to).unwrap().write_all(b"x").unwrap();
            } else {
                Stream::connect_with(&sessions[0], to).unwrap().write_all(b"x").unwrap();
            }
            let mut stream = accepted.join().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            paths.push(stream.path());
        });
    }
    assert_eq!(paths, [PathKind::Tcp, PathKind::Shm, PathKind::Tcp]);
    assert!(matches!(listener.accept_timeout(Duration::from_millis(1)), Err(AcceptError::TimedOut(_))));

    listener.set_nonblocking(true).unwrap();
    let fd = listener.ready_fd().unwrap();
    assert!(listener.readiness().unwrap().is_empty());
    let waiting = TcpStream::connect(to).unwrap();
    assert!(readable(fd, true), "told by the descriptor");
    assert_eq!(listener.readiness().unwrap(), Readiness::READ);
    assert_eq!(listener.accept().unwrap().1, waiting.local_addr().unwrap());
    assert!(matches!(listener.accept(), Err(AcceptError::WouldBlock)));
    drop(listener);
    assert_eq!(TcpStream::connect(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // A program that does not ask for it does not listen there.
    let plain = Listener::bind_with(&sessions[1], (HERE, 0)).unwrap();
    assert_eq!(TcpStream::connect(plain.local_addr().unwrap()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn callers_over_kernel_tcp_do_not_wait_for_the_daemons_to_end() {
    const CALLERS: usize = 40;
    let _watchdog = Watchdog::start("callers_over_kernel_tcp_do_not_wait");
    let daemon = FakeDaemon::start();
    let sessions = [daemon.session(), daemon.session()];
    let listener = ListenOptions::new().fallback(Fallback::Tcp).bind(&sessions[1], (HERE, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    thread::scope(|s| {
        let callers: Vec<_> =
            (0..CALLERS).map(|_| s.spawn(|| Stream::connect_with(&sessions[0], to).unwrap())).collect();
        // Somebody must answer the daemon meanwhile; this one takes nothing.
        while !listener.readiness().unwrap().contains(Readiness::READ) {
            thread::yield_now();
        }
        let over_tcp: Vec<_> = (0..3).map(|_| TcpStream::connect(to).unwrap()).collect();
        let accepted: Vec<_> = (0..CALLERS + over_tcp.len()).map(|_| listener.accept().unwrap().0).collect();
        let paths: Vec<_> = accepted.iter().map(Stream::path).collect();
        let early = paths.iter().take(6).filter(|p| **p == PathKind::Tcp).count();
        assert_eq!(early, over_tcp.len(), "each at its turn: {paths:?}");
        assert_eq!(paths.iter().filter(|p| **p == PathKind::Shm).count(), CALLERS);
        callers.into_iter().for_each(|c| drop(c.join().unwrap()));
    });
}

#[test]
fn timeouts_ends_and_resets_are_told_as_on_the_other_paths() {
    let _watchdog = Watchdog::start("timeouts_ends_and_resets");
    let (mut client, mut server) = two();
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(client.read_timeout(), Some(Duration::from_millis(20)));
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(client.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    client.set_read_timeout(None).unwrap();
    server.write_all(b"abc").unwrap();
    let mut seen = [0; 3];
    while client.peek(&mut seen).unwrap() < 3 {}
    assert_eq!((&seen, client.unread_bytes().unwrap()), (b"abc", 3));
    // A thread that waits leaves when another ends its direction.
    thread::scope(|s| {
        let waiting = s.spawn(|| (&server).read(&mut [0]));
        thread::sleep(Duration::from_millis(20));
        server.shutdown(Shutdown::Read).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 0);
    });
    server.shutdown(Shutdown::Write).unwrap();
    let error = server.write(b"x").unwrap_err();
    assert_eq!((error.kind(), StreamError::reason_of(&error)), (ErrorKind::BrokenPipe, Some(Reason::Closed)));
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"abc");

    // Closed with bytes unread: a reset, which stays.
    let (client, server) = two();
    (&client).write_all(b"unread").unwrap();
    while server.unread_bytes().unwrap() < 6 {}
    drop(server);
    for _ in 0..2 {
        let error = (&client).read(&mut [0]).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::ResetByPeer), "{error:?}");
    }
    assert_eq!(client.failure(), Some(Reason::ResetByPeer));
    assert!(client.readiness().unwrap().contains(Readiness::ERR | Readiness::READ));
}

#[test]
fn readiness_changes_and_the_descriptor_tells() {
    let _watchdog = Watchdog::start("readiness_changes_and_the_descriptor_tells");
    let (client, server) = two();
    client.set_nonblocking(true).unwrap();
    let fd = client.ready_fd().unwrap();
    assert!(readable(fd, true), "readable at first");
    assert_eq!(client.readiness().unwrap(), Readiness::WRITE);
    assert!(!readable(fd, false), "nothing changed since");
    assert_eq!((&client).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    (&server).write_all(b"x").unwrap();
    assert!(readable(fd, true));
    assert!(client.readiness().unwrap().contains(Readiness::READ | Readiness::WRITE));
    assert_eq!((&client).read(&mut [0; 9]).unwrap(), 1);

    while (&client).write(&[7; 65_536]).is_ok() {}
    assert!(!client.readiness().unwrap().contains(Readiness::WRITE), "full");
    server.set_nonblocking(true).unwrap();
    loop {
        // Until everything was taken: then there is room, and the descriptor has said so.
        while matches!((&server).read(&mut [0; 65_536]), Ok(1..)) {}
        if readable(fd, false) && client.readiness().unwrap().contains(Readiness::WRITE) {
            break;
        }
        thread::yield_now();
    }
    server.shutdown(Shutdown::Write).unwrap();
    assert!(readable(fd, true));
    assert!(client.readiness().unwrap().contains(Readiness::READ | Readiness::HUP));
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_tcp_cannot_do_is_refused_by_name() {
    let (client, _server) = two();
    assert_eq!(not_over_tcp(&client.reserve(8).unwrap_err()), Some(&NotOverTcp::Loans));
    assert_eq!(client.loan().unwrap_err().kind(), ErrorKind::Unsupported);
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let to = SocketAddr::from((ELSEWHERE, 1));
    let refused = MessageStream::connect_with(&session, to, asked()).unwrap_err();
    assert!(matches!(refused, ConnectError::NotOverTcp(NotOverTcp::Messages)), "{refused:?}");
    let listening = ListenOptions::new().fallback(Fallback::Tcp);
    assert!(raas::MessageListener::bind_with(&session, (HERE, 0), listening).is_err());
    assert!(matches!(asked().start(&session, to), Err(ConnectError::NotOverTcp(NotOverTcp::Starting))));
}

/// What the log says.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_says_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // For the whole process: a subscriber of one thread can miss what other threads log first, because tracing caches
    // the interest.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let (client, server) = two();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let says = |address: SocketAddr, words: &[&str]| {
        let address = address.to_string();
        text.lines().any(|line| line.contains(&address) && words.iter().all(|word| line.contains(word)))
    };
    assert!(says(client.peer_addr().unwrap(), &["WARN", "tcp-fallback", "no RaaS daemon"]), "{text}");
    assert!(says(server.peer_addr().unwrap(), &["INFO", "tcp-fallback", "accepted over kernel TCP"]), "{text}");
}
