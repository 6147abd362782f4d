//! Programs that lie, die or sulk at the control socket: they lose their own session and nothing else.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use control::{
    APP_VERSION, ChannelError, Cursor, InspectAnswer, InspectQuery, Reason, Reply, Request, Role, recv_message,
    send_frame, send_message,
};
use raas::Stream;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shm::{LAYOUT_VERSION, Pair, Segment, Sharing};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};

/// A kernel that refuses descriptors for so long will not take them.
const REFUSED_FOR_EVER: Duration = Duration::from_millis(300);

/// A program without the library's manners.
#[derive(Debug)]
pub(crate) struct RawClient {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Descriptors that came, kept as a program would.
    fds: Vec<OwnedFd>,
    segments: Vec<Segment>,
}

impl RawClient {
    pub(crate) fn connected(host: &Host) -> Self {
        Self::connected_to(&host.config.socket)
    }

    pub(crate) fn connected_to(path: &Path) -> Self {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { socket, buffer: Vec::new(), fds: Vec::new(), segments: Vec::new() }
    }

    pub(crate) fn attached(host: &Host) -> Self {
        let mut client = Self::connected(host);
        client.hello(APP_VERSION, LAYOUT_VERSION, Role::Application);
        let reply = client.next();
        assert!(matches!(reply, Some(Reply::Welcome { .. })), "{reply:?}");
        assert_eq!(client.fds.len(), 2 + host.config.engines as usize);
        client
    }

    fn inspector(host: &Host) -> Self {
        let mut client = Self::connected(host);
        client.hello(APP_VERSION, LAYOUT_VERSION, Role::Inspector);
        let reply = client.next();
        assert!(matches!(reply, Some(Reply::Welcome { .. })), "{reply:?}");
        client
    }

    /// A page, and where the next one begins.
    fn page(&mut self, query: InspectQuery, from: Cursor) -> (InspectAnswer, Option<Cursor>) {
        self.send(&Request::Inspect { request: 7, query, from });
        match self.next() {
            Some(Reply::Inspected { request: 7, answer, next }) => (answer, next),
            other => panic!("{other:?}"),
        }
    }

    /// The descriptors that came so far.
    pub(crate) fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    fn hello(&self, version: u32, layout: u32, role: Role) {
        self.send(&Request::Hello { version, layout, role, name: "raw".into() });
    }

    pub(crate) fn send(&self, request: &Request) {
        self.send_with(request, &[]);
    }

    /// A daemon that has ended the session already does not hear it. The kernel may refuse descriptors until the daemon
    /// has read who this is, and for ever if it is nobody.
    pub(crate) fn send_with(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        let start = Instant::now();
        loop {
            match send_message(self.socket.as_fd(), request, fds) {
                Ok(()) | Err(ChannelError::Closed) => return,
                Err(ChannelError::Io(e)) if !fds.is_empty() && e.kind() == std::io::ErrorKind::PermissionDenied => {
                    if start.elapsed() > REFUSED_FOR_EVER {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// False: the daemon has not read what was sent before.
    pub(crate) fn try_send(&self, request: &Request) -> bool {
        match send_message(self.socket.as_fd(), request, &[]) {
            Ok(()) => true,
            Err(ChannelError::WouldBlock) => false,
            Err(e) => panic!("{e}"),
        }
    }

    /// A message, if there is one.
    pub(crate) fn try_next(&mut self) -> Option<Reply> {
        match recv_message::<Reply>(self.socket.as_fd(), &mut self.buffer) {
            Ok((reply, _)) => Some(reply),
            Err(ChannelError::WouldBlock) => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// The next message; none once the daemon has closed.
    pub(crate) fn next(&mut self) -> Option<Reply> {
        let start = Instant::now();
        loop {
            match recv_message::<Reply>(self.socket.as_fd(), &mut self.buffer) {
                Ok((reply, fds)) => {
                    self.fds.extend(fds);
                    return Some(reply);
                }
                Err(ChannelError::Closed) => return None,
                Err(ChannelError::WouldBlock) => {
                    assert!(start.elapsed() < PATIENCE, "the daemon says nothing");
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    pub(crate) fn connect(&self, request: u64, to: SocketAddr, ring_bytes: u32) {
        self.send(&Request::Connect { request, to, ring_bytes, kind: control::Kind::Stream });
    }

    /// Makes the segments that the daemon asks for until the connection is there.
    pub(crate) fn play_pairs_until_connected(&mut self) {
        loop {
            match self.next() {
                Some(Reply::PairSegmentWanted { pair, index, slots, ring_bytes }) => {
                    let bytes = Pair::bytes(slots, ring_bytes);
                    let segment = Segment::create("raw", bytes, Sharing::PeerReadOnly).unwrap();
                    Pair::format(segment.region().clone(), slots, ring_bytes).unwrap();
                    let request = Request::PairSegment { pair, index, slots, ring_bytes };
                    send_message(self.socket.as_fd(), &request, &[segment.fd()]).unwrap();
                    self.segments.push(segment);
                }
                Some(Reply::Connected { result, .. }) => {
                    result.unwrap();
                    return;
                }
                Some(Reply::PairOpened { .. } | Reply::PairSegment { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Takes what comes before the answer to a connect through a lane, and the answer.
    pub(crate) fn until_connected(&mut self) {
        loop {
            match self.next() {
                Some(Reply::Chunk { .. }) => {}
                Some(Reply::Connected { result, .. }) => {
                    result.unwrap();
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads without waiting.
    pub(crate) fn take_what_is_there(&mut self, mut each: impl FnMut(Reply)) {
        while let Ok((reply, _)) = recv_message::<Reply>(self.socket.as_fd(), &mut self.buffer) {
            each(reply);
        }
    }

    /// The daemon's last words, after which it closes.
    fn last_words(mut self) -> (Reason, String) {
        let mut last = None;
        while let Some(reply) = self.next() {
            last = Some(reply);
        }
        match last {
            Some(Reply::Detached { reason, detail } | Reply::Refused { reason, detail, .. }) => (reason, detail),
            other => panic!("{other:?}"),
        }
    }
}

/// The daemon still serves others.
pub(crate) fn check_service(host: &Host) {
    let (client, server) = (host.session(), host.session());
    let port = host.echo(&server);
    check_echo(Stream::connect_with(&client, (host.address(), port)).unwrap(), 1000, 1);
}

#[test]
fn versions_must_agree_and_both_are_named() {
    bounded(|| {
        let host = Host::started();
        for (version, layout) in [(APP_VERSION + 7, LAYOUT_VERSION), (APP_VERSION, LAYOUT_VERSION + 7)] {
            let mut client = RawClient::connected(&host);
            client.hello(version, layout, Role::Application);
            let Some(Reply::Refused { version: v, layout: l, reason, detail, .. }) = client.next() else { panic!() };
            assert_eq!((v, l, reason), (APP_VERSION, LAYOUT_VERSION, Reason::PeerVersion));
            assert!(detail.contains(&version.to_string()) && detail.contains(&APP_VERSION.to_string()), "{detail}");
            assert!(client.next().is_none());
        }
    });
}

#[test]
fn garbage_costs_the_sender_its_session() {
    bounded(|| {
        let host = Host::started();
        let frames: [&[u8]; 4] = [&[0xff; 40], &[], &[3], &[0; 70_000]];
        for frame in frames {
            for hello_first in [false, true] {
                let client = if hello_first { RawClient::attached(&host) } else { RawClient::connected(&host) };
                match send_frame(client.socket.as_fd(), frame, &[]) {
                    Ok(()) if frame.is_empty() => {}
                    Ok(()) => {
                        let (reason, _) = client.last_words();
                        assert_eq!(reason, Reason::AppFault);
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        }
        check_service(&host);
        eventually("nothing of them is left", || host.stat().apps.iter().all(|app| app.name != "raw"));
    });
}

#[test]
fn messages_out_of_place_are_faults() {
    bounded(|| {
        let host = Host::started();
        let hello =
            Request::Hello { version: APP_VERSION, layout: LAYOUT_VERSION, role: Role::Application, name: "x".into() };
        let segment = Request::PairSegment { pair: 1, index: 0, slots: 64, ring_bytes: 4096 };
        for request in [hello, segment] {
            let client = RawClient::attached(&host);
            client.send(&request);
            assert_eq!(client.last_words().0, Reason::AppFault);
        }
        let early = RawClient::connected(&host);
        early.send(&Request::Unlisten { port: 1 });
        assert_eq!(early.last_words().0, Reason::AppFault);
        let mut inspector = RawClient::connected(&host);
        inspector.hello(APP_VERSION, LAYOUT_VERSION, Role::Inspector);
        assert!(matches!(inspector.next(), Some(Reply::Welcome { slots: 0, .. })));
        assert!(inspector.fds.is_empty());
        inspector.send(&Request::Listen {
            request: 1,
            port: 0,
            backlog: 1,
            ring_bytes: 0,
            kind: control::Kind::Stream,
        });
        assert_eq!(inspector.last_words().0, Reason::AppFault);
        check_service(&host);
    });
}

#[test]
fn a_segment_that_could_shrink_is_refused() {
    bounded(|| {
        let host = Host::started();
        let server = host.session();
        let listener = raas::Listener::bind_with(&server, (host.address(), 0)).unwrap();
        let mut liar = RawClient::attached(&host);
        liar.connect(1, listener.local_addr().unwrap(), 0);
        let (pair, index, slots, ring_bytes) = loop {
            match liar.next() {
                Some(Reply::PairSegmentWanted { pair, index, slots, ring_bytes }) => {
                    break (pair, index, slots, ring_bytes);
                }
                Some(Reply::PairOpened { .. }) => {}
                other => panic!("{other:?}"),
            }
        };
        // Sealed, but writable by any process that gets it: not what was asked for.
        let segment = Segment::create("liar", Pair::bytes(slots, ring_bytes), Sharing::ReadWrite).unwrap();
        let request = Request::PairSegment { pair, index, slots, ring_bytes };
        send_message(liar.socket.as_fd(), &request, &[segment.fd()]).unwrap();
        let (reason, detail) = liar.last_words();
        assert_eq!(reason, Reason::AppFault);
        assert!(detail.contains("FUTURE_WRITE"), "{detail}");
        // The place in the backlog is free again, and the listener is none the worse.
        let honest = host.session();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap());
            let _stream = Stream::connect_with(&honest, listener.local_addr().unwrap()).unwrap();
            accepting.join().unwrap();
        });
    });
}

#[test]
fn a_program_that_does_not_read_is_detached() {
    bounded(|| {
        let mut host = Host::new();
        host.config.limits.client_queue_max = 16;
        host.start();
        let client = RawClient::attached(&host);
        let mut sent = 0u64;
        let start = Instant::now();
        loop {
            let listen =
                Request::Listen { request: sent, port: 0, backlog: 1, ring_bytes: 0, kind: control::Kind::Stream };
            match send_message(client.socket.as_fd(), &listen, &[]) {
                Ok(()) => sent += 1,
                Err(ChannelError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(1)),
                Err(ChannelError::Closed) => break,
                Err(e) => panic!("{e}"),
            }
            assert!(start.elapsed() < PATIENCE, "never detached");
        }
        eventually("its listeners are gone", || host.stat().apps.is_empty());
        check_service(&host);
    });
}

#[test]
fn a_silent_program_has_a_time() {
    bounded(|| {
        let mut host = Host::new();
        host.config.limits.handshake_ms = 100;
        host.start();
        assert_eq!(RawClient::connected(&host).last_words().0, Reason::TimedOut);
    });
}

#[test]
fn programs_have_a_limit() {
    bounded(|| {
        let mut host = Host::new();
        host.config.limits.clients_max = 3;
        host.start();
        let three = [RawClient::attached(&host), RawClient::attached(&host), RawClient::attached(&host)];
        let refused = RawClient::connected(&host);
        assert_eq!(refused.last_words().0, Reason::LocalLimit);
        drop(three);
        eventually("places are given back", || raas::inspect::stat(Some(&host.config.socket)).is_ok());
    });
}

#[test]
fn the_engines_limit_of_programs_is_told() {
    bounded(|| {
        let mut host = Host::new();
        host.config.set_limit("apps_max", 1).unwrap();
        host.start();
        let _first = RawClient::attached(&host);
        let second = RawClient::connected(&host);
        second.hello(APP_VERSION, LAYOUT_VERSION, Role::Application);
        assert_eq!(second.last_words().0, Reason::LocalLimit);
    });
}

#[test]
fn a_short_answer_is_one_page_and_a_long_one_has_every_row_once() {
    const PROGRAMS: usize = 200;
    bounded(|| {
        let mut host = Host::new();
        host.config.engines = 2;
        host.start();
        let mut tool = RawClient::inspector(&host);
        let mut programs = vec![RawClient::attached(&host), RawClient::attached(&host)];
        let (answer, next) = tool.page(InspectQuery::Stat, Cursor::default());
        let InspectAnswer::Stat(stat) = answer else { panic!("{answer:?}") };
        assert_eq!((stat.apps.len(), next), (4, None), "a row of each engine: {stat:?}");
        for query in [InspectQuery::Connections, InspectQuery::Datagrams, InspectQuery::Regions, InspectQuery::Trace] {
            assert_eq!(tool.page(query, Cursor::default()).1, None, "{query:?}");
        }
        programs.extend((2..PROGRAMS).map(|_| RawClient::attached(&host)));
        let (mut from, mut pages, mut sessions) = (Some(Cursor::default()), 0, Vec::new());
        while let Some(at) = from {
            let (answer, next) = tool.page(InspectQuery::Stat, at);
            match answer {
                InspectAnswer::Stat(stat) => sessions.extend(stat.apps.iter().map(|app| app.session)),
                InspectAnswer::StatRows { apps, .. } => sessions.extend(apps.iter().map(|app| app.session)),
                other => panic!("{other:?}"),
            }
            (from, pages) = (next, pages + 1);
        }
        assert_eq!(sessions.len(), 2 * PROGRAMS);
        sessions.sort_unstable();
        sessions.dedup();
        assert_eq!(sessions.len(), PROGRAMS, "each once of each engine");
        assert!((2..=4).contains(&pages), "{pages} pages");
    });
}

#[test]
fn too_many_questions_at_once_are_a_fault() {
    bounded(|| {
        let host = Host::started();
        let client = RawClient::inspector(&host);
        let mut refused = false;
        for request in 0..100_000 {
            let inspect = Request::Inspect { request, query: InspectQuery::Stat, from: Cursor::default() };
            match send_message(client.socket.as_fd(), &inspect, &[]) {
                Ok(()) => {}
                Err(ChannelError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(1)),
                Err(ChannelError::Closed) => {
                    refused = true;
                    break;
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert!(refused);
        check_service(&host);
    });
}

#[test]
fn what_a_program_said_is_heard_although_its_wake_socket_closed_first() {
    bounded(|| {
        let host = Host::started();
        let mut client = RawClient::attached(&host);
        // Session, engine page, wake socket.
        drop(client.fds.pop());
        // The engine has seen it when the program's last words come, and hears them for some seconds.
        std::thread::sleep(std::time::Duration::from_millis(200));
        client.send(&Request::Listen { request: 7, port: 0, backlog: 1, ring_bytes: 0, kind: control::Kind::Stream });
        let reply = client.next();
        assert!(matches!(reply, Some(Reply::Listening { request: 7, result: Ok(_) })), "{reply:?}");
        // One that lives on so is put out all the same.
        let (reason, detail) = client.last_words();
        assert_eq!(reason, Reason::AppFault);
        assert!(detail.contains("wake socket"), "{detail}");
        eventually("it is detached", || host.stat().apps.is_empty());
        check_service(&host);
    });
}

/// A connection with more unsent bytes than the kernel takes, whose close waits for as long as its peer does not read.
fn close_that_waits() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[1; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&ours, Some(std::time::Duration::from_secs(1000))).unwrap();
    (ours.into(), peer)
}

#[test]
fn a_socket_whose_close_waits_holds_nobody_up() {
    bounded(|| {
        let host = Host::started();
        let meet = Request::Meet { request: 1, end: control::TcpEnd::Connected };
        let hello = Request::Hello {
            version: APP_VERSION,
            layout: LAYOUT_VERSION,
            role: Role::Application,
            name: "raw".into(),
        };
        let mut kept = Vec::new();
        // With the request that it belongs to, with one of a program that did not attach, with another one, and with the
        // first message. Several times: the last descriptor may be the program's own, if the daemon is quick.
        let ways = [(true, &meet), (false, &meet), (true, &Request::Unmeet { request: 1 }), (false, &hello)];
        for (attaches, request) in ways.repeat(5) {
            let client = if attaches { RawClient::attached(&host) } else { RawClient::connected(&host) };
            let (socket, peer) = close_that_waits();
            client.send_with(request, &[socket.as_fd()]);
            let closes = std::thread::spawn(move || drop(socket));
            RawClient::attached(&host);
            kept.push((client, peer, closes));
        }
        for (client, peer, closes) in kept {
            drop((client, peer));
            closes.join().unwrap();
        }
    });
}
