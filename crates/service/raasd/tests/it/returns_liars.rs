//! Programs that come back with lies: they lose what they lie about, and nobody else loses anything (docs/operate/restart.md).

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;

use control::{APP_VERSION, ChunkKind, Kind, Path, Reason, Reply, Request, Role};
use raas::{Listener, Session, Stream};
use shm::{LAYOUT_VERSION, Segment, SessionShape, Sharing, SlotWords, engine_flag};

use crate::control_socket::RawClient;
use crate::hosts::{Host, PATIENCE, bounded, eventually};

/// What a program kept of its session.
pub(crate) struct Kept {
    pub(crate) segment: OwnedFd,
    pub(crate) shape: SessionShape,
    pub(crate) chunks: Vec<(u32, ChunkKind, u64, OwnedFd)>,
    pub(crate) ticket: Vec<u8>,
    pub(crate) slot: u32,
    pub(crate) words: SlotWords,
}

/// A connection of a raw program of this host, and its other end.
pub(crate) fn connected(host: &Host, listener: &Listener) -> (RawClient, Kept, Stream) {
    let mut client = RawClient::connected(host);
    client.send(&hello(Role::Application));
    let Some(Reply::Welcome { slots, engines, .. }) = client.next() else { panic!("no Welcome") };
    let mut fds = client.take_fds().into_iter();
    let segment = fds.next().unwrap();
    // The wake sockets stay open, as those of a program.
    std::mem::forget(fds.collect::<Vec<_>>());
    let to = listener.local_addr().unwrap();
    client.send(&Request::Connect { request: 1, to, ring_bytes: 0, kind: Kind::Stream });
    let mut chunks = Vec::new();
    let connection = loop {
        match client.next().unwrap() {
            Reply::Chunk { chunk, kind, bytes } => chunks.push((chunk, kind, bytes, client.take_fds().pop().unwrap())),
            Reply::Connected { result, .. } => break result.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let Path::Lane { slot, generation, .. } = connection.path else { panic!("{connection:?}") };
    let shape = SessionShape { slots, engines };
    let words = words_of(&segment, shape, slot);
    words.app_generation.store(generation, Ordering::Release);
    let (accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    (client, Kept { segment, shape, chunks, ticket: connection.ticket, slot, words }, accepted)
}

pub(crate) fn words_of(segment: &OwnedFd, shape: SessionShape, slot: u32) -> SlotWords {
    let (copy, bytes) = (segment.try_clone().unwrap(), shm::Session::bytes(shape));
    let region = Segment::accept(copy, bytes, Sharing::ReadWrite).unwrap().into_region();
    shm::Session::open(region, shape).unwrap().slot(slot)
}

pub(crate) fn hello(role: Role) -> Request {
    Request::Hello { version: APP_VERSION, layout: LAYOUT_VERSION, role, name: "raw".into() }
}

impl Kept {
    fn session(&self) -> Request {
        let SessionShape { slots, engines } = self.shape;
        let mut used = vec![0; slots.div_ceil(8) as usize];
        used[self.slot as usize / 8] = 1 << (self.slot % 8);
        let session_bytes = shm::Session::bytes(self.shape);
        Request::Return { slots, engines, session_bytes, next_chunk: 10, used }
    }

    /// Comes back; the daemon's answer.
    pub(crate) fn come_back(&self, host: &Host, tickets: Vec<Vec<u8>>) -> (RawClient, Option<Reply>) {
        self.come_back_by(RawClient::connected(host), tickets)
    }

    pub(crate) fn come_back_by(&self, mut client: RawClient, tickets: Vec<Vec<u8>>) -> (RawClient, Option<Reply>) {
        client.send(&hello(Role::Returning));
        client.send_with(&self.session(), &[self.segment.as_fd()]);
        for (chunk, kind, bytes, fd) in &self.chunks {
            let request = Request::ReturnChunk { chunk: *chunk, kind: *kind, bytes: *bytes };
            client.send_with(&request, &[fd.as_fd()]);
        }
        client.send(&Request::ReturnConnections { tickets });
        client.send(&Request::ReturnEnd);
        let answer = client.next();
        (client, answer)
    }

    pub(crate) fn reset_reason(&self) -> Option<Reason> {
        let is_reset = self.words.engine_flags.load(Ordering::Acquire) & engine_flag::RESET != 0;
        is_reset.then(|| Reason::from_code(self.words.reason.load(Ordering::Acquire)))
    }
}

/// Two hosts, and a polite connection beside everything.
pub(crate) struct World {
    pub(crate) hosts: [Host; 2],
    _sessions: [Session; 2],
    pub(crate) listener: Listener,
    polite: (Stream, Stream),
}

pub(crate) fn world() -> World {
    let mut hosts = [Host::new(), Host::new()];
    for host in &mut hosts {
        host.config.set_limit("peer_return_ms", 10_000).unwrap();
        std::fs::set_permissions(host.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        host.config.socket_mode = 0o666;
        host.start();
    }
    let sessions = [hosts[0].followed(), hosts[1].followed()];
    let listener = Listener::bind_with(&sessions[1], (hosts[1].address(), 0)).unwrap();
    let client = Stream::connect_with(&sessions[0], listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    World { hosts, _sessions: sessions, listener, polite: (client, server) }
}

impl World {
    pub(crate) fn restart(&mut self) {
        self.hosts[0].hand_over();
        self.hosts[0].start();
    }

    pub(crate) fn check_polite(&mut self) {
        let (client, server) = &mut self.polite;
        client.write_all(b"polite").unwrap();
        let mut got = [0; 6];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"polite");
    }

    pub(crate) fn check_lanes(&self) {
        for host in &self.hosts {
            assert_eq!((host.counter("violations"), host.counter("lane_failures")), (0, 0));
        }
    }
}

/// What a program stores in its session while there is no daemon.
type Lie = (&'static str, fn(&SlotWords));

const LIES: &[Lie] = &[
    ("more arrived than was sent", |w| w.rx_tail.store(1000, Ordering::Relaxed)),
    ("less was consumed than arrived, by more than a ring", |w| w.rx_head.store(u64::MAX / 2, Ordering::Relaxed)),
    ("the peer consumed what was never written", |w| w.tx_head.store(77, Ordering::Relaxed)),
    ("more was written than a ring holds", |w| w.tx_tail.store(1 << 40, Ordering::Relaxed)),
    ("the transmit ring has grown", |w| w.tx_grown_at.store(1 << 20, Ordering::Relaxed)),
    ("the receive ring has grown", |w| w.rx_grown_at.store(1 << 20, Ordering::Relaxed)),
    ("the receive ring has grown within a lap", |w| w.rx_grown_at.store(12_345, Ordering::Relaxed)),
    ("the peer has ended", |w| w.engine_flags.store(engine_flag::FIN, Ordering::Relaxed)),
];

#[test]
fn who_lies_about_cursors_loses_that_connection_alone() {
    bounded(|| {
        let mut world = world();
        for (what, lie) in LIES {
            let (_old, kept, mut far) = connected(&world.hosts[0], &world.listener);
            world.hosts[0].hand_over();
            lie(&kept.words);
            world.hosts[0].start();
            let (_client, answer) = kept.come_back(&world.hosts[0], vec![kept.ticket.clone()]);
            assert!(matches!(answer, Some(Reply::Welcome { .. })), "{what}: {answer:?}");
            let error = far.write_all(&[1; 100]).and_then(|()| far.read(&mut [0; 1])).expect_err(what);
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{what}: {error}");
            eventually(what, || kept.reset_reason() == Some(Reason::AppFault));
            world.check_polite();
            world.check_lanes();
        }
    });
}

#[test]
fn who_forges_a_ticket_gets_nothing_and_the_true_one_goes_on() {
    bounded(|| {
        let mut world = world();
        let (_old, kept, mut far) = connected(&world.hosts[0], &world.listener);
        world.restart();
        let mut forged = kept.ticket.clone();
        forged[3] ^= 1;
        let short = kept.ticket[..kept.ticket.len() - 1].to_vec();
        let (liar, answer) = kept.come_back(&world.hosts[0], vec![forged, short, Vec::new()]);
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        assert_eq!(kept.reset_reason(), Some(Reason::DaemonLost));
        drop(liar);
        // Nobody has taken it over: the other end waits, and then ends.
        let error = far.read(&mut [0; 1]).unwrap_err();
        assert_eq!(raas::StreamError::reason_of(&error), Some(Reason::PeerLost), "{error}");

        let (_old, kept, mut far) = connected(&world.hosts[0], &world.listener);
        world.restart();
        // The same ticket twice is one connection.
        let (_client, answer) = kept.come_back(&world.hosts[0], vec![kept.ticket.clone(), kept.ticket.clone()]);
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        far.write_all(b"hello").unwrap();
        eventually("it arrives", || kept.words.rx_tail.load(Ordering::Acquire) == 5);
        // Another session brings the same: its name is taken.
        let (_second, answer) = kept.come_back(&world.hosts[0], vec![kept.ticket.clone()]);
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        world.check_polite();
        world.check_lanes();
    });
}

#[test]
fn memory_that_is_not_as_it_must_be_is_refused() {
    bounded(|| {
        let mut world = world();
        let (_old, kept, _far) = connected(&world.hosts[0], &world.listener);
        world.restart();
        let host = &world.hosts[0];
        let bytes = shm::Session::bytes(kept.shape);
        let plain = rustix::fs::memfd_create("lie", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&plain, bytes).unwrap();
        let empty = Segment::create("lie", bytes, Sharing::ReadWrite).unwrap();
        let short = Segment::create("lie", bytes - 4096, Sharing::ReadWrite).unwrap();
        let file = std::fs::File::open("/dev/zero").unwrap();
        let no_memory: [(&str, BorrowedFd<'_>); 4] = [
            ("without seals", plain.as_fd()),
            ("without a header", empty.fd()),
            ("too short", short.fd()),
            ("no memory", file.as_fd()),
        ];
        let said = |first: &Request, fds: &[BorrowedFd<'_>], then: Option<&Request>| {
            let mut client = RawClient::connected(host);
            client.send(&hello(Role::Returning));
            client.send_with(first, fds);
            then.iter().for_each(|then| client.send(then));
            client.next()
        };
        for (what, fd) in no_memory {
            let answer = said(&kept.session(), &[fd], None);
            assert!(matches!(answer, Some(Reply::Detached { reason: Reason::AppFault, .. })), "{what}: {answer:?}");
        }
        let detached = |answer: Option<Reply>| matches!(answer, Some(Reply::Detached { reason: Reason::AppFault, .. }));
        assert!(detached(said(&kept.session(), &[], None)), "without memory");
        assert!(detached(said(&Request::ReturnEnd, &[], None)), "without a session");
        let connect =
            Request::Connect { request: 1, to: ([127, 0, 0, 9], 1).into(), ring_bytes: 0, kind: Kind::Stream };
        assert!(detached(said(&kept.session(), &[kept.segment.as_fd()], Some(&connect))), "a connect before its end");
        assert!(detached(said(&kept.session(), &[kept.segment.as_fd()], Some(&kept.session()))), "two sessions");
        let chunk = Request::ReturnChunk { chunk: 0, kind: ChunkKind::Rx, bytes: 4096 };
        assert!(detached(said(&kept.session(), &[kept.segment.as_fd()], Some(&chunk))), "a chunk without memory");
        let mut other = kept.session();
        if let Request::Return { slots, .. } = &mut other {
            *slots *= 2;
        }
        let answer = said(&other, &[kept.segment.as_fd()], None);
        assert!(matches!(answer, Some(Reply::Refused { reason: Reason::DaemonLost, .. })), "{answer:?}");
        // Who goes in the middle leaves nothing behind.
        for _ in 0..50 {
            let client = RawClient::connected(host);
            client.send(&hello(Role::Returning));
            client.send_with(&kept.session(), &[kept.segment.as_fd()]);
            client.send(&Request::ReturnConnections { tickets: vec![kept.ticket.clone()] });
        }
        eventually("only the polite program is there", || host.stat().apps.len() == 1);
        world.check_polite();
        world.check_lanes();
    });
}
