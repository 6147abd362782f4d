//! A simulated application: what the client library does with a session, without threads.
//!
//! It looks at a connection only when the engine rang its doorbell (or the test told it to do something): a lost
//! doorbell shows as a test that does not end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use control::{Connection, Path, Reason};
use shm::{
    Doorbell, RingMemory, RingReader, RingWriter, Session, SessionShape, SlotWords, Word32, app_flag, engine_flag,
};
use verbs::Region;

use crate::sockets::SimSocket;

/// Byte `offset` of a stream.
pub(crate) fn pattern(key: u64, offset: u64) -> u8 {
    let mut x = (offset / 8).wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    (x >> (8 * (offset % 8))) as u8
}

fn fill(key: u64, offset: u64, out: &mut [u8]) {
    for (i, b) in out.iter_mut().enumerate() {
        *b = pattern(key, offset + i as u64);
    }
}

/// One end of a connection.
pub(crate) struct SimConn {
    pub(crate) connection: Connection,
    pub(crate) words: SlotWords,
    pub(crate) writer: RingWriter,
    pub(crate) reader: RingReader,
    /// Keys of the two directions' contents.
    pub(crate) tx_key: u64,
    rx_key: u64,
    /// Bytes to write in all.
    pub(crate) to_send: u64,
    /// Longest single write.
    pub(crate) write_max: usize,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Bytes that it wants to read in all.
    pub(crate) read_limit: u64,
    /// Says FIN when everything is written.
    pub(crate) fin_after: bool,
    pub(crate) fin_said: bool,
    pub(crate) eof: bool,
    pub(crate) stopped: bool,
    pub(crate) reset: Option<Reason>,
    /// Gives the slot back when both directions ended, or at reset.
    pub(crate) close_when_done: bool,
    pub(crate) closed: bool,
}

impl SimConn {
    fn new(session: &Session, chunks: &BTreeMap<u32, Region>, connection: Connection, opener: bool) -> Self {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, grown_bytes } =
            connection.path
        else {
            panic!("not a lane: {connection:?}")
        };
        let words = session.slot(slot);
        let ring =
            |chunk: u32, offset| RingMemory { region: chunks[&chunk].clone(), offset, bytes: grown_bytes.into() };
        words.app_flags.store(0, Ordering::Relaxed);
        // All that happens to a connection is news for its application.
        shm::arm_slot(&words.app_wait, shm::waiting::ANY);
        let received = (words.rx_tail.clone(), words.rx_head.clone(), words.rx_grown_at.clone());
        let reader = RingReader::growing(ring(rx_chunk, rx_offset), ring_bytes.into(), received, 0).unwrap();
        let sent = (words.tx_tail.clone(), words.tx_head.clone(), words.tx_grown_at.clone());
        let writer = RingWriter::growing_when_told(ring(tx_chunk, tx_offset), ring_bytes.into(), sent, 0).unwrap();
        let writer = writer.may_rest(&words).unwrap();
        words.app_generation.store(generation, Ordering::Release);
        // Ports name the connection on both ends.
        let (from, to) = if opener {
            (connection.local.port(), connection.peer.port())
        } else {
            (connection.peer.port(), connection.local.port())
        };
        let key = u64::from(from) << 17 | u64::from(to) << 1;
        let (tx_key, rx_key) = if opener { (key, key | 1) } else { (key | 1, key) };
        Self {
            connection,
            words,
            writer,
            reader,
            tx_key,
            rx_key,
            to_send: 0,
            write_max: 1 << 20,
            sent: 0,
            received: 0,
            read_limit: u64::MAX,
            fin_after: false,
            fin_said: false,
            eof: false,
            stopped: false,
            reset: None,
            close_when_done: false,
            closed: false,
        }
    }

    pub(crate) fn slot(&self) -> u32 {
        match self.connection.path {
            Path::Lane { slot, .. } => slot,
            _ => unreachable!("checked when made"),
        }
    }

    /// Reads and writes what is possible. Says whether the engine must be told.
    fn work(&mut self) -> bool {
        if self.closed {
            return false;
        }
        let flags = self.words.engine_flags.load(Ordering::Acquire);
        let mut changed = self.read();
        if flags & engine_flag::RESET != 0 {
            self.reset = Some(Reason::from_code(self.words.reason.load(Ordering::Acquire)));
        } else if flags & engine_flag::FIN != 0 && self.reader.available().unwrap() == 0 {
            self.eof = true;
        }
        self.stopped |= flags & engine_flag::STOP != 0;
        if self.reset.is_none() && !self.stopped {
            changed |= self.write();
        }
        if self.fin_after && !self.fin_said && (self.sent == self.to_send || self.stopped) {
            self.fin_said = true;
            self.words.app_flags.fetch_or(app_flag::FIN, Ordering::Release);
            changed = true;
        }
        if self.close_when_done && (self.reset.is_some() || (self.eof && self.fin_said)) {
            self.give_back(0);
            changed = true;
        }
        changed
    }

    fn read(&mut self) -> bool {
        let mut buf = [0u8; 8192];
        let mut any = false;
        while self.received < self.read_limit {
            let want = (self.read_limit - self.received).min(buf.len() as u64) as usize;
            let n = self.reader.read(&mut buf[..want]).expect("the engine keeps to the rules");
            if n == 0 {
                break;
            }
            any = true;
            for (i, b) in buf[..n].iter().enumerate() {
                let at = self.received + i as u64;
                assert_eq!(*b, pattern(self.rx_key, at), "byte {at} of {:?}", self.connection);
            }
            self.received += n as u64;
        }
        any
    }

    fn write(&mut self) -> bool {
        let mut buf = vec![0u8; self.write_max.min(1 << 16)];
        let mut any = false;
        while self.sent < self.to_send {
            // As the library does where the engine holds it back.
            let hold = match self.words.tx_hold.load(Ordering::Relaxed) {
                0 => u64::MAX,
                hold => u64::from(hold).saturating_sub(self.sent - self.words.tx_head.load(Ordering::Relaxed)),
            };
            let want = (self.to_send - self.sent).min(buf.len() as u64).min(hold) as usize;
            fill(self.tx_key, self.sent, &mut buf[..want]);
            let n = self.writer.write(&buf[..want]).expect("the engine keeps to the rules");
            if n == 0 {
                break;
            }
            any = true;
            self.sent += n as u64;
        }
        any
    }

    /// CLOSED and what the client library says with it.
    pub(crate) fn give_back(&mut self, more: u32) {
        self.closed = true;
        let flags = app_flag::FIN | app_flag::STOP | app_flag::CLOSED | more;
        self.words.app_flags.fetch_or(flags, Ordering::Release);
    }
}

/// A simulated process.
pub(crate) struct SimApp {
    pub(crate) session: Session,
    a2e: Doorbell,
    e2a: Doorbell,
    engine_sleep: Word32,
    pub(crate) chunks: BTreeMap<u32, Region>,
    /// By slot.
    pub(crate) conns: BTreeMap<u32, SimConn>,
    /// Datagram sockets by slot.
    pub(crate) sockets: BTreeMap<u32, SimSocket>,
    /// Answers to questions for a path.
    pub(crate) paths: BTreeMap<u64, Result<u32, Reason>>,
    /// Answers to connects and binds: slot, or why not.
    pub(crate) answers: BTreeMap<u64, Result<u32, Reason>>,
    /// Slots of incoming connections in order, with the listener's port and the connection's number.
    pub(crate) incoming: Vec<(u32, u16, u64)>,
    ready: BTreeSet<u32>,
    /// What new connections do.
    pub(crate) defaults: fn(&mut SimConn),
    /// Says `accepted` for each incoming connection at once.
    pub(crate) auto_accept: bool,
    pub(crate) next_chunk: u32,
    pub(crate) chunks_gone: Vec<u32>,
}

impl SimApp {
    /// `slots`: of each engine up to the one with this number.
    pub(crate) fn new(slots: u32, engine: u32, engine_sleep: Word32) -> Self {
        let shape = SessionShape::for_engines(engine + 1, slots);
        let region = Region::anonymous(Session::bytes(shape) as usize).unwrap();
        let session = Session::format(region, shape, 1).unwrap();
        Self {
            a2e: session.a2e(engine),
            e2a: session.e2a(),
            engine_sleep,
            session,
            chunks: BTreeMap::new(),
            conns: BTreeMap::new(),
            sockets: BTreeMap::new(),
            paths: BTreeMap::new(),
            answers: BTreeMap::new(),
            incoming: Vec::new(),
            ready: BTreeSet::new(),
            defaults: |_| {},
            auto_accept: true,
            next_chunk: 0,
            chunks_gone: Vec::new(),
        }
    }

    /// The daemon told of a connection.
    pub(crate) fn adopt(&mut self, connection: Connection, opener: bool) -> u32 {
        let mut conn = SimConn::new(&self.session, &self.chunks, connection, opener);
        (self.defaults)(&mut conn);
        let slot = conn.slot();
        let old = self.conns.insert(slot, conn);
        assert!(old.is_none_or(|c| c.closed), "slot {slot} was given to two connections");
        self.ready.insert(slot);
        slot
    }

    /// A connection on which nothing was said goes on in the memory that its chunks have now.
    pub(crate) fn reopen(&mut self, slot: u32) {
        let Some(old) = self.conns.remove(&slot) else { return };
        let is_opener = old.tx_key & 1 == 0;
        self.conns.insert(slot, SimConn::new(&self.session, &self.chunks, old.connection, is_opener));
    }

    /// The daemon told of a datagram socket.
    pub(crate) fn open(&mut self, connection: Connection) -> u32 {
        let (slot, socket) = SimSocket::new(&self.session, &self.chunks, &connection);
        self.sockets.insert(slot, socket);
        slot
    }

    /// The test changed what a connection does.
    pub(crate) fn poke(&mut self, slot: u32) {
        self.ready.insert(slot);
        self.ring(slot);
    }

    fn ring(&self, slot: u32) {
        self.session.place_of(slot).unwrap().ring();
    }

    /// Follows the engine's doorbell. Says whether anything was done, and whether the engine must be woken.
    pub(crate) fn work(&mut self) -> (bool, bool) {
        let mut dirty = Vec::new();
        while self.e2a.take(&mut dirty, 1024) > 0 {}
        self.ready.extend(dirty);
        let mut any = false;
        for slot in std::mem::take(&mut self.ready) {
            any |= self.sockets.contains_key(&slot);
            let Some(conn) = self.conns.get_mut(&slot) else { continue };
            any = true;
            if conn.work() {
                self.ring(slot);
            }
        }
        let wake = any && self.a2e.must_wake(&self.engine_sleep);
        (any, wake)
    }

    /// Goes to sleep until the engine wakes it.
    pub(crate) fn sleep(&self) {
        shm::prepare_sleep(&self.session.app_sleep());
    }
}
