//! The application's end of a connection through the daemon: a session slot and its doorbell.
//!
//! Owns the application's half of the slot. It must never store to the engine's half.

use std::sync::atomic::Ordering;

use control::Reason;
use shm::{RingMemory, RingReader, RingWriter, SlotPlace, SlotWords, Word32, app_flag, engine_flag};

use crate::End;
use crate::side::{Side, failure};
use crate::stamp::mixed;

/// Reads the host's monotonic clock, in nanoseconds.
pub type Clock = fn() -> u64;

/// What this process can do for its lanes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    /// Its rings may give pages back: the kernel makes it pass the daemon's barrier.
    pub(crate) can_rest: bool,
    pub(crate) clock: Option<Clock>,
}

/// Names a slot, one of its connections, and a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotUse {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) pid: u32,
}

/// The rings of a slot.
#[derive(Debug)]
pub(crate) struct LaneRings {
    pub(crate) tx: RingMemory,
    pub(crate) rx: RingMemory,
    /// Used of either until it grows.
    pub(crate) first_bytes: u64,
}

/// One slot in use.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    slot: u32,
    words: SlotWords,
    /// The engine's doorbell.
    bell: SlotPlace,
    engine_sleep: Word32,
    clock: Option<Clock>,
    /// The slot is a datagram socket's: the engine looks for room when it has something to put there.
    is_datagram: bool,
}

/// A slot that was taken, and its rings.
#[derive(Debug)]
pub(crate) struct OpenedLane {
    pub(crate) end: LaneEnd,
    pub(crate) reader: RingReader,
    pub(crate) writer: RingWriter,
}

impl LaneEnd {
    /// Takes the slot for a new connection: both cursors at 0, then the generation, which makes them count.
    pub(crate) fn open(
        words: SlotWords,
        (bell, engine_sleep): (SlotPlace, Word32),
        place: SlotUse,
        rings: LaneRings,
        means: Means,
    ) -> Result<OpenedLane, shm::RegionError> {
        words.app_flags.store(0, Ordering::Relaxed);
        words.app_wait.store(0, Ordering::Relaxed);
        words.peer_timeout_ms.store(0, Ordering::Relaxed);
        words.tx_verb.store(0, Ordering::Relaxed);
        words.tx_written.store(0, Ordering::Relaxed);
        words.direct_tx.store(0, Ordering::Relaxed);
        words.direct_rx.store(0, Ordering::Relaxed);
        words.app_owner_pid.store(place.pid, Ordering::Relaxed);
        let LaneRings { tx, rx, first_bytes } = rings;
        let received = (words.rx_tail.clone(), words.rx_head.clone(), words.rx_grown_at.clone());
        let reader = RingReader::growing(rx, first_bytes, received, 0)?;
        let sent = (words.tx_tail.clone(), words.tx_head.clone(), words.tx_grown_at.clone());
        let writer = RingWriter::growing_when_told(tx, first_bytes, sent, 0)?;
        let writer = if means.can_rest { writer.may_rest(&words)? } else { writer };
        words.app_generation.store(place.generation, Ordering::Release);
        let end = Self { slot: place.slot, words, bell, engine_sleep, clock: means.clock, is_datagram: false };
        Ok(OpenedLane { end, reader, writer })
    }

    /// As a datagram socket's.
    pub(crate) fn of_datagrams(mut self) -> Self {
        self.is_datagram = true;
        self
    }

    /// Gives back a slot whose connection cannot be used.
    pub(crate) fn refuse(session: &shm::Session, slot: u32, generation: u32) {
        let words = session.slot(slot);
        let flags = app_flag::FIN | app_flag::STOP | app_flag::CLOSED | app_flag::ABORT;
        words.tx_tail.store(0, Ordering::Relaxed);
        words.rx_head.store(0, Ordering::Relaxed);
        words.app_flags.store(flags, Ordering::Relaxed);
        words.app_generation.store(generation, Ordering::Release);
        if let Some(place) = session.place_of(slot) {
            place.ring();
        }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// See [`crate::Endpoint::stamp`].
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        let SlotWords { rx_tail, tx_head, tx_grown_at, rx_grown_at, state, engine_flags, generation, .. } = &self.words;
        let now = Ordering::Relaxed;
        let narrow = u64::from(state.load(now)) << 32 | u64::from(engine_flags.load(now));
        let wide = [rx_tail.load(now), tx_head.load(now), tx_grown_at.load(now), rx_grown_at.load(now)];
        mixed(&wide) ^ mixed(&[narrow, generation.load(now).into()])
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.is_datagram
    }

    /// How reading ends, if it does once the ring is empty; `life` is how the session ended, looked at before. The ring
    /// is looked at afterwards. FIN comes after the last byte, so a reset that follows it takes nothing from the
    /// reader.
    #[inline]
    pub(crate) fn read_end(&self, life: Option<End>) -> Option<End> {
        let flags = self.words.engine_flags.load(Ordering::Acquire);
        if flags & engine_flag::FIN != 0 {
            Some(End::Finished)
        } else if flags & engine_flag::RESET != 0 {
            Some(End::Reset(self.reason()))
        } else {
            life
        }
    }

    /// Why writing is over, if it is; `life` as in [`LaneEnd::read_end`].
    #[inline]
    pub(crate) fn write_end(&self, life: Option<End>) -> Option<End> {
        let flags = self.words.engine_flags.load(Ordering::Acquire);
        if flags & engine_flag::RESET != 0 {
            Some(End::Reset(self.reason()))
        } else if flags & engine_flag::STOP != 0 {
            Some(End::Finished)
        } else {
            life
        }
    }

    #[cold]
    fn reason(&self) -> Reason {
        failure(self.words.reason.load(Ordering::Acquire))
    }

    /// Silence of the peer's daemon, in milliseconds, after which the engine gives the connection up; 0: as its own
    /// limit.
    pub(crate) fn set_peer_timeout(&self, ms: u32) {
        self.words.peer_timeout_ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn peer_timeout(&self) -> u32 {
        self.words.peer_timeout_ms.load(Ordering::Relaxed)
    }

    /// What bytes that the engine has not taken are to travel by: a value of [`shm::slot_verb`].
    pub(crate) fn set_verb(&self, verb: u32) {
        self.words.tx_verb.store(verb, Ordering::Relaxed);
    }

    /// Whether a verb is named for them.
    pub(crate) fn names_verb(&self) -> bool {
        self.words.tx_verb.load(Ordering::Relaxed) != 0
    }

    /// Datagrams of the socket in this slot that the engine dropped because they did not fit their way.
    pub(crate) fn paths_changed(&self) -> u64 {
        self.words.epoch.load(Ordering::Acquire)
    }

    /// The engine that carries the connection.
    pub(crate) fn engine(&self) -> u32 {
        self.bell.engine
    }

    /// Bytes of a direction that went by the stream's own TCP connection.
    pub(crate) fn count_direct(&self, side: Side, bytes: u64) {
        match side {
            Side::Read => self.words.direct_rx.store(bytes, Ordering::Relaxed),
            Side::Write => self.words.direct_tx.store(bytes, Ordering::Relaxed),
        }
    }

    /// Bytes from `from` to before `to` were written: says when, if the engine looks at any of them.
    #[inline]
    pub(crate) fn note_written(&self, from: u64, to: u64) {
        if let (Some(mark), Some(clock)) = (shm::mark(from, to), self.clock) {
            self.words.tx_written.store(shm::written_word(mark, clock()), Ordering::Relaxed);
        }
    }

    /// Tells the engine that the slot changed. True: it sleeps and must be woken.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        self.bell.a2e.mark(self.bell.in_range) && self.bell.a2e.must_wake(&self.engine_sleep)
    }

    /// Bytes that the engine has not taken out of the transmit ring yet, of `written` in all.
    pub(crate) fn untaken(&self, written: u64) -> u64 {
        written.wrapping_sub(self.words.tx_head.load(Ordering::Acquire))
    }

    /// Bytes that may be written behind `written` for now, if the engine holds the writer back.
    pub(crate) fn held_room(&self, written: u64) -> Option<u64> {
        let hold = self.words.tx_hold.load(Ordering::Relaxed);
        (hold > 0).then(|| u64::from(hold).saturating_sub(self.untaken(written)))
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

    /// Gives the slot back. True: the engine sleeps and must be woken.
    pub(crate) fn close(&self, abort: bool) -> bool {
        let abort = if abort { app_flag::ABORT } else { 0 };
        self.raise(app_flag::FIN | app_flag::STOP | app_flag::CLOSED | abort);
        self.ring()
    }
}
