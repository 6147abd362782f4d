//! A stream with a TCP connection of its own beside the lane: both are models that cut and delay their bytes anywhere,
//! from one seed. Every byte comes once and in order, ends are told only behind the last byte, and a stream that breaks
//! never looks like one that ended.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // tests may use everything

mod conversation;
mod messages;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use control::{ChunkKind, Connection as Described, Kind, PathKind, Reason};
use raas_core::{
    Answer, Connection, DaemonMessage, Direct, DirectBroken, DirectSocket, End, EngineEnd, Readiness, Reserved,
    Session, SessionMemory, Side, Wake,
};
use shm::{Region, app_flag, engine_flag};

const RING: u32 = 4096;
/// Bytes that one direction of the TCP connection holds at first.
const PIPE: usize = 3000;
/// More steps than any run needs.
const STEPS_MAX: u32 = 2_000_000;

/// Runs of a test, each of a seed of its own.
fn seeds() -> u64 {
    if std::env::var_os("RAAS_TEST_FULL").is_some() { 400 } else { 100 }
}

#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Both directions of a TCP connection.
#[derive(Debug)]
struct Pipe {
    rng: Rng,
    /// On the way from each end; the bytes that have arrived are the first of them.
    bytes: [VecDeque<u8>; 2],
    arrived: [usize; 2],
    is_ended: [bool; 2],
    is_broken: bool,
    /// Bytes that one direction holds.
    room: usize,
}

#[derive(Debug, Clone)]
struct PipeEnd {
    pipe: Arc<Mutex<Pipe>>,
    end: usize,
}

impl PipeEnd {
    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.pipe.lock().unwrap()
    }
}

impl DirectSocket for PipeEnd {
    fn recv(&self, buf: &mut [u8]) -> Result<Option<usize>, DirectBroken> {
        let mut guard = self.lock();
        let pipe = &mut *guard;
        let from = 1 - self.end;
        if pipe.arrived[from] == 0 {
            return match (pipe.is_broken, pipe.is_ended[from] && pipe.bytes[from].is_empty()) {
                (_, true) => Ok(Some(0)),
                (true, false) => Err(DirectBroken(Reason::DirectLost)),
                (false, false) => Ok(None),
            };
        }
        let most = pipe.arrived[from].min(buf.len()) as u64;
        let count = 1 + pipe.rng.below(most) as usize;
        for (to, byte) in buf.iter_mut().zip(pipe.bytes[from].drain(..count)) {
            *to = byte;
        }
        pipe.arrived[from] -= count;
        Ok(Some(count))
    }

    fn send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, DirectBroken> {
        let mut guard = self.lock();
        let pipe = &mut *guard;
        if pipe.is_broken || pipe.is_ended[self.end] {
            return Err(DirectBroken(Reason::DirectLost));
        }
        let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let room = pipe.room.saturating_sub(pipe.bytes[self.end].len()).min(all.len());
        let count = if room == 0 { 0 } else { 1 + pipe.rng.below(room as u64) as usize };
        // An empty socket takes a word whole.
        let count = if all.len() == 1 { room } else { count };
        pipe.bytes[self.end].extend(&all[..count]);
        Ok(count)
    }

    fn end_sending(&self) {
        let mut pipe = self.lock();
        pipe.is_ended[self.end] |= !pipe.is_broken;
    }

    fn is_ready(&self, side: Side) -> bool {
        let pipe = self.lock();
        let from = 1 - self.end;
        pipe.is_broken
            || match side {
                Side::Read => pipe.arrived[from] > 0 || (pipe.is_ended[from] && pipe.bytes[from].is_empty()),
                Side::Write => pipe.bytes[self.end].len() < pipe.room,
            }
    }

    fn has_end(&self) -> bool {
        let pipe = self.lock();
        pipe.is_ended[1 - self.end] && pipe.arrived[1 - self.end] == pipe.bytes[1 - self.end].len()
    }

    fn arm(&self, _side: Side) {}

    fn disarm(&self) {}

    fn wait_room(&self) {
        // Its reader cannot run meanwhile.
        self.lock().room += PIPE;
    }
}

#[derive(Debug)]
struct Asleep;

impl Wake for Asleep {
    fn wake(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One application, its memory as the engine sees it, and what it did.
struct Host {
    words: shm::SlotWords,
    tx: Region,
    rx: Region,
    /// None: closed.
    connection: Option<Connection>,
    direct: Option<Arc<Direct>>,
    wrote: u64,
    total: u64,
    read: u64,
    is_shut: bool,
    end: Option<End>,
}

fn host(total: u64) -> Host {
    let bytes = usize::try_from(shm::Session::bytes(64)).unwrap();
    let memory = shm::Session::format(Region::anonymous(bytes).unwrap(), 64, 1).unwrap();
    let page = Region::anonymous(usize::try_from(shm::EnginePage::BYTES).unwrap()).unwrap();
    let sleep = shm::EnginePage::format(page, 1).unwrap().engine_sleep(0);
    let wake = Arc::new(Asleep) as Arc<dyn Wake>;
    let parts = SessionMemory {
        session: memory.clone(),
        engines: vec![EngineEnd { sleep, wake }],
        can_rest: false,
        clock: None,
    };
    let mut session = Session::new(parts).unwrap();
    let [tx, rx] = [0, 1].map(|_| Region::anonymous(RING as usize).unwrap());
    for (chunk, kind, region) in [(0, ChunkKind::Tx, &tx), (1, ChunkKind::Rx, &rx)] {
        let region = Some(region.clone());
        session.on_message(DaemonMessage::Chunk { chunk, kind, region, kept: None }).unwrap();
    }
    let (id, _) = session.connect("127.0.0.2:7".parse().unwrap(), 0, Kind::Stream);
    let addr = "127.0.0.2:7".parse().unwrap();
    let path = control::Path::Lane {
        slot: 0,
        generation: 3,
        tx_chunk: 0,
        tx_offset: 0,
        rx_chunk: 1,
        rx_offset: 0,
        ring_bytes: RING,
        grown_bytes: RING,
    };
    let described = Described { id: 9, local: addr, peer: addr, path, ticket: Vec::new() };
    session.on_message(DaemonMessage::Connected { request: id.number(), result: Ok(described) }).unwrap();
    let Some(Answer::Connected(Ok(connection))) = session.finish(id) else { panic!("no connection") };
    let words = memory.slot(0);
    let connection = Some(*connection);
    Host { words, tx, rx, connection, direct: None, wrote: 0, total, read: 0, is_shut: false, end: None }
}

/// The byte of a direction at an offset.
fn byte(from: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ (from as u8 * 85)
}

/// Two hosts, the lane and the TCP connection between them.
struct World {
    rng: Rng,
    hosts: [Host; 2],
    pipe: Arc<Mutex<Pipe>>,
    /// Programs lend room of the ring, too.
    lends: bool,
    /// Programs offer more bytes at once than the ring takes, mostly.
    writes_large: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        for _ in 0..8 {
            rng.below(2);
        }
        let totals = [0, 1].map(|_| [0, 20_000, 60_000, 200_000][rng.below(4) as usize] + rng.below(1000));
        let inner = Rng(rng.below(u64::MAX) | 1);
        let (bytes, arrived) = (Default::default(), [0; 2]);
        let pipe = Pipe { rng: inner, bytes, arrived, is_ended: [false; 2], is_broken: false, room: PIPE };
        Self {
            rng,
            hosts: totals.map(host),
            pipe: Arc::new(Mutex::new(pipe)),
            lends: seed.is_multiple_of(8),
            writes_large: !seed.is_multiple_of(5),
        }
    }

    /// As over a long path.
    fn hold(&self, bytes: u32) {
        self.hosts.iter().for_each(|host| host.words.tx_hold.store(bytes, Ordering::Relaxed));
    }

    /// The daemon's message comes.
    fn attach(&mut self, end: usize) {
        let Some(connection) = &self.hosts[end].connection else {
            // The socket is closed.
            self.pipe.lock().unwrap().is_ended[end] = true;
            return;
        };
        let place = connection.endpoint.direct_place().unwrap();
        let socket = Box::new(PipeEnd { pipe: Arc::clone(&self.pipe), end });
        let direct = Direct::new(socket, place.carries_messages());
        assert!(place.put(Arc::clone(&direct)));
        self.hosts[end].direct = Some(direct);
    }

    fn attach_if_due(&mut self, step: u32, at: [u64; 2]) {
        (0..2).filter(|end| at[*end] == u64::from(step)).for_each(|end| self.attach(end));
    }

    /// The lane carries some bytes of one direction, what was consumed, and the end.
    fn lane(&mut self, from: usize) {
        let most = 1 + self.rng.below(u64::from(RING));
        let (sender, receiver) = match &self.hosts {
            [a, b] if from == 0 => (a, b),
            [a, b] => (b, a),
        };
        // As the engine does: the flags before the tail that they make final.
        let flags = sender.words.app_flags.load(Ordering::Acquire);
        let (tail, arrived) =
            (sender.words.tx_tail.load(Ordering::Acquire), receiver.words.rx_tail.load(Ordering::Relaxed));
        let count = most.min(tail - arrived);
        for at in arrived..arrived + count {
            let mut one = [0];
            sender.tx.read(at % u64::from(RING), &mut one).unwrap();
            receiver.rx.write(at % u64::from(RING), &one).unwrap();
        }
        receiver.words.rx_tail.store(arrived + count, Ordering::Release);
        sender.words.tx_head.store(receiver.words.rx_head.load(Ordering::Acquire), Ordering::Release);
        let raise = |flag| receiver.words.engine_flags.fetch_or(flag, Ordering::Release);
        if flags & app_flag::ABORT != 0 {
            receiver.words.reason.store(Reason::ResetByPeer.code(), Ordering::Relaxed);
            raise(engine_flag::RESET);
        } else if flags & app_flag::FIN != 0 && arrived + count == tail {
            raise(engine_flag::FIN);
        }
        if flags & app_flag::STOP != 0 {
            raise(engine_flag::STOP);
        }
    }

    fn tcp(&mut self, from: usize) {
        let some = 1 + self.rng.below(900) as usize;
        let mut pipe = self.pipe.lock().unwrap();
        pipe.arrived[from] = (pipe.arrived[from] + some).min(pipe.bytes[from].len());
    }

    fn write(&mut self, end: usize) {
        let longest = if self.writes_large && self.rng.below(8) > 0 { 50_000 } else { 2500 };
        let len = (1 + self.rng.below(longest)).min(self.hosts[end].total - self.hosts[end].wrote) as usize;
        let how = self.rng.below(20);
        let host = &mut self.hosts[end];
        let Some(connection) = host.connection.as_mut().filter(|_| !host.is_shut) else { return };
        if len == 0 {
            connection.shut(Side::Write).unwrap();
            host.is_shut = true;
            return;
        }
        let bytes: Vec<u8> = (host.wrote..).take(len).map(|at| byte(end, at)).collect();
        let Connection { endpoint, tx, .. } = connection;
        let wrote = match how {
            // Lent room of the ring keeps a direction there.
            0 if len <= 2500 && (self.lends || tx.is_direct()) => {
                let Ok(Ok(mut room)) = Reserved::try_new(&mut *tx, endpoint, len) else { return };
                assert!(room.write_ahead(1, &bytes[1..]) && room.write_ahead(0, &bytes[..1]));
                let is_sent = room.commit(endpoint, len as u64);
                drop(room);
                if is_sent { len } else { 0 }
            }
            _ => tx
                .try_write(endpoint, &[IoSlice::new(&bytes[..len / 2]), IoSlice::new(&bytes[len / 2..])])
                .unwrap_or(None)
                .unwrap_or(0),
        };
        host.wrote += wrote as u64;
    }

    fn read(&mut self, end: usize) {
        let (len, how) = (1 + self.rng.below(3000) as usize, self.rng.below(4));
        let host = &mut self.hosts[end];
        let Some(Connection { endpoint, rx, tx }) = &mut host.connection else { return };
        if host.end.is_some() {
            return;
        }
        let mut buf = vec![0; len];
        let is_told = raas_core::readiness(endpoint, Some(&mut *rx), Some(&mut *tx), 1).contains(Readiness::READ);
        let got = match how {
            0 => rx.look(endpoint, &mut |rx| rx.peek(endpoint, &mut buf)).map(|count| count.map(|count| (count, true))),
            1 => rx.look(endpoint, &mut |rx| Ok(rx.available(endpoint)? as usize)).map(|count| {
                count.map(|count| {
                    let count = rx.peek_ahead(0, &mut buf[..count.min(len)]);
                    rx.consume(endpoint, count as u64);
                    (count, false)
                })
            }),
            _ => rx.try_read(endpoint, &mut buf).map(|count| count.map(|count| (count, false))),
        };
        let now = raas_core::readiness(endpoint, Some(&mut *rx), Some(&mut *tx), 1);
        match got {
            Ok(Some((count, is_peek))) => {
                for (n, got) in buf[..count].iter().enumerate() {
                    let at = host.read + n as u64;
                    assert_eq!(*got, byte(1 - end, at), "at {at} of the stream to {end}");
                }
                host.read += if is_peek { 0 } else { count as u64 };
            }
            Ok(None) => assert!(!is_told, "a read that was told of something finds nothing"),
            Err(why) => {
                assert!(now.contains(Readiness::READ | Readiness::HUP), "{now:?} at the end");
                host.end = Some(why);
            }
        }
    }

    /// One random thing happens.
    fn step(&mut self) {
        let end = self.rng.below(2) as usize;
        match self.rng.below(7) {
            0 => self.lane(end),
            1 => self.tcp(end),
            2 | 3 => self.write(end),
            4 | 5 => self.read(end),
            _ => {
                if let Some(direct) = &self.hosts[end].direct {
                    direct.handle_event();
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.end.is_some() || host.connection.is_none())
    }
}

#[test]
fn every_byte_comes_once_and_in_order_wherever_the_two_parts_are_cut() {
    let (mut switched, mut stayed) = (0, 0);
    for seed in 1..=seeds() {
        let mut world = World::new(seed);
        if seed.is_multiple_of(3) {
            world.hold(2500);
        }
        let attach_at = [0, 1].map(|_| world.rng.below(300));
        let mut steps = 0;
        while !world.is_over() {
            world.attach_if_due(steps, attach_at);
            world.step();
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {seed} hangs");
        }
        for end in 0..2 {
            let (host, other) = (&world.hosts[end], &world.hosts[1 - end]);
            assert_eq!((host.end, host.read), (Some(End::Finished), other.total), "seed {seed}");
            let connection = host.connection.as_ref().unwrap();
            if connection.endpoint.path() == PathKind::TcpDirect {
                switched += 1;
            } else {
                stayed += 1;
            }
            if !world.writes_large {
                assert_eq!(connection.endpoint.path(), PathKind::Lane, "seed {seed}: short writes stay on the ring");
            }
            let direct = host.words.direct_rx.load(Ordering::Relaxed);
            assert_eq!(direct, other.words.direct_tx.load(Ordering::Relaxed), "seed {seed}: both count the same bytes");
            assert_eq!(direct + other.words.tx_tail.load(Ordering::Relaxed), other.total, "seed {seed}");
        }
    }
    assert!(
        switched > seeds() / 3 && stayed > seeds() / 10,
        "{switched} went by TCP, {stayed} did not: both are to be tried"
    );
}

/// What one write of a host took, and whether it could have been called.
fn try_write(host: &mut Host, bytes: &[u8]) -> (usize, bool) {
    let Connection { endpoint, tx, rx } = host.connection.as_mut().unwrap();
    let is_ready = raas_core::readiness(endpoint, Some(&mut *rx), Some(&mut *tx), 1).contains(Readiness::WRITE);
    (tx.try_write(endpoint, &[IoSlice::new(bytes)]).unwrap().unwrap_or(0), is_ready)
}

#[test]
fn a_writer_that_is_held_back_keeps_little_in_its_ring_until_its_connection_is_there_or_does_not_come() {
    let mut world = World::new(1);
    world.hold(1000);
    let host = &mut world.hosts[0];
    assert_eq!(try_write(host, &[1; 600]), (600, true));
    assert_eq!(try_write(host, &[1; 600]), (400, true));
    assert_eq!(try_write(host, &[1; 600]), (0, false), "though the ring has room");
    host.words.tx_head.store(250, Ordering::Release);
    assert_eq!(try_write(host, &[1; 600]), (250, true));
    // None comes: 1 MiB later it is not waited for.
    let mut wrote = 1250;
    while wrote < 1 << 20 {
        host.words.tx_head.store(wrote, Ordering::Release);
        wrote += try_write(host, &[1; 5000]).0 as u64;
    }
    host.words.tx_head.store(wrote, Ordering::Release);
    assert_eq!(try_write(host, &[1; 5000]), (RING as usize, true));

    let mut world = World::new(1);
    world.hold(1000);
    assert_eq!(try_write(&mut world.hosts[0], &[1; 900]), (900, true));
    (0..2).for_each(|end| world.attach(end));
    for _ in 0..10 {
        (0..2).for_each(|end| world.tcp(end));
        world.hosts.iter().for_each(|host| host.direct.as_ref().unwrap().handle_event());
    }
    // Short writes stay in the ring, and have all of it.
    assert_eq!(try_write(&mut world.hosts[0], &[1; 900]), (900, true));
    assert_eq!(world.hosts[0].words.tx_tail.load(Ordering::Relaxed), 1800);
}

#[test]
fn a_large_write_that_found_no_room_goes_by_tcp_as_soon_as_that_may_be() {
    let mut world = World::new(2);
    assert_eq!(try_write(&mut world.hosts[0], &[1; 50_000]), (RING as usize, true));
    assert_eq!(try_write(&mut world.hosts[0], &[1; 50_000]), (0, false));
    (0..2).for_each(|end| world.attach(end));
    assert_eq!(try_write(&mut world.hosts[0], &[1; 50_000]), (0, false), "nobody said that it may");
    for _ in 0..10 {
        (0..2).for_each(|end| world.tcp(end));
        world.hosts.iter().for_each(|host| host.direct.as_ref().unwrap().handle_event());
    }
    let (taken, is_ready) = try_write(&mut world.hosts[0], &[1; 50_000]);
    assert!(is_ready, "its waiter is called");
    assert!(taken > 0 || world.hosts[0].connection.as_ref().unwrap().tx.is_direct());
}

#[test]
fn a_connection_that_breaks_or_a_program_that_dies_never_looks_like_an_end() {
    let mut resets = 0;
    for seed in 1..=seeds() {
        let mut world = World::new(seed);
        let attach_at = [0, 1].map(|_| world.rng.below(300));
        let (ends_at, dies) = (world.rng.below(4000), world.rng.below(2) == 0);
        let mut steps = 0;
        while !world.is_over() {
            world.attach_if_due(steps, attach_at);
            if u64::from(steps) == ends_at {
                if dies {
                    // The kernel ends its side, and the daemon says what happened.
                    let dead = &mut world.hosts[0];
                    dead.connection.as_ref().unwrap().endpoint.direct_place().unwrap();
                    std::mem::forget(dead.connection.take());
                    dead.direct = None;
                    world.pipe.lock().unwrap().is_ended[0] = true;
                    if dead.words.app_flags.load(Ordering::Relaxed) & app_flag::FIN == 0 {
                        let words = &world.hosts[1].words;
                        words.reason.store(Reason::PeerAppDied.code(), Ordering::Relaxed);
                        words.engine_flags.fetch_or(engine_flag::RESET, Ordering::Release);
                    }
                } else {
                    let mut pipe = world.pipe.lock().unwrap();
                    pipe.is_broken = true;
                    // What had arrived is there, the rest is lost.
                    for end in 0..2 {
                        let arrived = pipe.arrived[end];
                        pipe.is_ended[end] &= arrived == pipe.bytes[end].len();
                        pipe.bytes[end].truncate(arrived);
                    }
                }
            }
            world.step();
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {seed} hangs");
        }
        for end in 0..2 {
            let (host, other) = (&world.hosts[end], &world.hosts[1 - end]);
            if host.connection.is_none() {
                continue;
            }
            match host.end {
                Some(End::Finished) => assert!(
                    host.read == other.wrote && other.is_shut,
                    "seed {seed}: {} of {} bytes look like all",
                    host.read,
                    other.wrote
                ),
                Some(End::Reset(Reason::DirectLost | Reason::PeerAppDied)) => resets += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    assert!(resets > seeds() / 10, "{resets}: too few to show something");
}

#[test]
fn words_that_cannot_be_end_the_stream_alone() {
    for words in
        [&b"X"[..], b"QX", b"QGX\0\0\0\0\0\0\0\0", b"QGW\xff\xff\xff\xff\xff\xff\xff\xff", b"QGW\0\0\0\0\0\0\0\0"]
    {
        let mut world = World::new(1);
        world.attach(0);
        let stranger = PipeEnd { pipe: Arc::clone(&world.pipe), end: 1 };
        world.pipe.lock().unwrap().bytes[1].extend(words);
        (0..50).for_each(|_| world.tcp(1));
        // Three bytes by the ring, for a switch that lies before them.
        let words = &world.hosts[0].words;
        words.rx_tail.store(3, Ordering::Release);
        let host = &mut world.hosts[0];
        let connection = host.connection.as_mut().unwrap();
        let mut got = vec![0; 8];
        let first = connection.try_read(&mut got);
        assert_eq!(first, Ok(Some(3)), "what came before is read");
        (0..20).for_each(|_| host.direct.as_ref().unwrap().handle_event());
        let then = connection.try_read(&mut got);
        let is_late = words_are_late(&world.pipe, &stranger);
        match then {
            Ok(None) if is_late => {}
            Err(End::Reset(Reason::AppFault)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Whether the pipe still takes bytes: a switch that lies ahead is no fault, as bytes that never come are none.
fn words_are_late(pipe: &Arc<Mutex<Pipe>>, stranger: &PipeEnd) -> bool {
    let is_empty = pipe.lock().unwrap().bytes[1].is_empty();
    is_empty && stranger.send(&[IoSlice::new(b"z")]).is_ok()
}
