//! The application's end of a connection through the daemon: a session slot and its doorbell.
//!
//! Owns the application's half of the slot. It must never store to the engine's half, and never give the slot back twice.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use control::Reason;
use shm::{Doorbell, RingMemory, RingReader, RingWriter, SlotWords, Word32, app_flag, engine_flag};

use crate::conn::{Conn, End, Side};

/// One slot in use.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    slot: u32,
    words: SlotWords,
    a2e: Doorbell,
    engine_sleep: Word32,
    /// The slot is a datagram socket's: the engine looks for room when it has something to put there.
    pub(crate) is_datagram: bool,
}

/// The connections of the session's slots, for the doorbell.
#[derive(Debug, Default)]
pub(crate) struct LaneSlots(Vec<Weak<Conn>>);

impl LaneSlots {
    pub(crate) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| Weak::new()).collect())
    }

    pub(crate) fn at(&self, slot: u32) -> Option<&Weak<Conn>> {
        self.0.get(slot as usize)
    }

    pub(crate) fn set(&mut self, slot: u32, conn: Weak<Conn>) {
        if let Some(place) = self.0.get_mut(slot as usize) {
            *place = conn;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Weak<Conn>> {
        self.0.iter()
    }
}

impl LaneEnd {
    /// Takes the slot for a new connection: both cursors at 0, then the generation, which makes them count.
    pub(crate) fn open(
        session: &shm::Session,
        engine_sleep: Word32,
        (slot, generation, pid): (u32, u32, u32),
        tx: RingMemory,
        rx: RingMemory,
    ) -> Result<(Self, RingReader, RingWriter), shm::RegionError> {
        let words = session.slot(slot);
        words.app_flags.store(0, Ordering::Relaxed);
        words.app_wait.store(0, Ordering::Relaxed);
        words.peer_timeout_ms.store(0, Ordering::Relaxed);
        words.app_owner_pid.store(pid, Ordering::Relaxed);
        let reader = RingReader::new(rx, words.rx_tail.clone(), words.rx_head.clone(), 0)?;
        let writer = RingWriter::new(tx, words.tx_tail.clone(), words.tx_head.clone(), 0)?;
        // Where the kernel cannot make this process pass the daemon's barrier its rings keep their pages.
        let writer = if shm::join_rest_barrier() { writer.may_rest(&words)? } else { writer };
        words.app_generation.store(generation, Ordering::Release);
        Ok((Self { slot, words, a2e: session.a2e(), engine_sleep, is_datagram: false }, reader, writer))
    }

    /// Gives back a slot whose connection cannot be used.
    pub(crate) fn refuse(session: &shm::Session, slot: u32, generation: u32) {
        let words = session.slot(slot);
        let flags = app_flag::FIN | app_flag::STOP | app_flag::CLOSED | app_flag::ABORT;
        words.tx_tail.store(0, Ordering::Relaxed);
        words.rx_head.store(0, Ordering::Relaxed);
        words.app_flags.store(flags, Ordering::Relaxed);
        words.app_generation.store(generation, Ordering::Release);
        session.a2e().ring(slot);
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// How reading ends, if it does once the ring is empty. The ring is looked at after this. FIN comes after the last
    /// byte, so a reset that follows it takes nothing from the reader.
    pub(crate) fn read_end(&self) -> Option<End> {
        let flags = self.words.engine_flags.load(Ordering::Acquire);
        if flags & engine_flag::FIN != 0 {
            Some(End::Finished)
        } else if flags & engine_flag::RESET != 0 {
            Some(End::Reset(self.reason()))
        } else {
            None
        }
    }

    /// Why writing is over, if it is.
    pub(crate) fn write_end(&self) -> Option<End> {
        let flags = self.words.engine_flags.load(Ordering::Acquire);
        if flags & engine_flag::RESET != 0 {
            Some(End::Reset(self.reason()))
        } else if flags & engine_flag::STOP != 0 {
            Some(End::Finished)
        } else {
            None
        }
    }

    fn reason(&self) -> Reason {
        failure(self.words.reason.load(Ordering::Acquire))
    }

    /// Silence of the peer's daemon, in milliseconds, after which the engine gives the connection up; 0: as its own limit.
    pub(crate) fn set_peer_timeout(&self, ms: u32) {
        self.words.peer_timeout_ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn peer_timeout(&self) -> u32 {
        self.words.peer_timeout_ms.load(Ordering::Relaxed)
    }

    /// Datagrams of the socket in this slot that the engine dropped because they did not fit their way.
    pub(crate) fn paths_changed(&self) -> u64 {
        self.words.epoch.load(Ordering::Acquire)
    }

    /// Tells the engine that the slot changed. True: it sleeps and must be woken.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        self.a2e.mark(self.slot) && self.a2e.must_wake(&self.engine_sleep)
    }

    pub(crate) fn arm(&self, side: Side) {
        shm::arm_slot(&self.words.app_wait, side.bit());
    }

    pub(crate) fn disarm(&self, side: Side) {
        self.words.app_wait.fetch_and(!side.bit(), Ordering::Relaxed);
    }

    /// Adds flags, after the final cursors. The doorbell is the caller's.
    pub(crate) fn raise(&self, flags: u32) {
        self.words.app_flags.fetch_or(flags, Ordering::Release);
    }

    /// Gives the slot back. The caller took it out of the table of slots before.
    pub(crate) fn close(&self, abort: bool) -> bool {
        let abort = if abort { app_flag::ABORT } else { 0 };
        self.raise(app_flag::FIN | app_flag::STOP | app_flag::CLOSED | abort);
        self.ring()
    }
}

/// A reason found in shared memory: one that tells of a failure, whatever is there.
pub(crate) fn failure(code: u32) -> Reason {
    match Reason::from_code(code) {
        Reason::Unspecified | Reason::Closed | Reason::SameHost | Reason::OtherHost | Reason::TcpFallback => {
            Reason::ResetByPeer
        }
        reason => reason,
    }
}
