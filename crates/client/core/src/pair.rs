//! This side of one connection to another process of the host.
//!
//! Owns this side's words in this side's segment. It must trust the peer's words only after the ring's cursor checks
//! and this file's masks. It must not need the daemon once the pair is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use control::Reason;
use shm::{PairSleeper, PairTeller, PairWaiter, PairWords, RegionError, app_flag, pair_must_wake, waiting};

use crate::End;
use crate::pair_socket::PairSocket;
use crate::side::{Side, failure};
use crate::stamp::mixed;

/// Flags of the peer that may end reading.
const ENDS_READING: u32 = app_flag::FIN | app_flag::ABORT | app_flag::CLOSED;
/// Flags of the peer that end writing.
const ENDS_WRITING: u32 = app_flag::STOP | app_flag::ABORT | app_flag::CLOSED;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct PairEnd {
    socket: Arc<PairSocket>,
    slot: u32,
    generation: u32,
    own: PairWords,
    peer: PairWords,
    /// The peer opened its end: its flags are those of this connection.
    met: AtomicBool,
    waiter: PairWaiter,
    sleeper: PairSleeper,
    teller: PairTeller,
}

impl PairEnd {
    /// Over words that were made fresh for the connection.
    pub(crate) fn new(
        socket: Arc<PairSocket>,
        slot: u32,
        generation: u32,
        own: PairWords,
        peer: PairWords,
        teller: PairTeller,
    ) -> Result<Self, RegionError> {
        let waiter = PairWaiter::new(own.waiting.clone())?;
        let sleeper = PairSleeper::new(peer.waiting.clone());
        Ok(Self { socket, slot, generation, own, peer, met: AtomicBool::new(false), waiter, sleeper, teller })
    }

    pub(crate) fn socket(&self) -> &Arc<PairSocket> {
        &self.socket
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    #[inline]
    fn has_met(&self) -> bool {
        if !self.met.load(Ordering::Relaxed) {
            if self.peer.generation.load(Ordering::Acquire) != self.generation {
                return false;
            }
            self.met.store(true, Ordering::Relaxed);
        }
        true
    }

    #[inline]
    fn peer_flags(&self) -> u32 {
        if self.has_met() { self.peer.flags.load(Ordering::Acquire) } else { 0 }
    }

    /// Loans of this side that the peer gave back, as it says: a bit turns round each time.
    #[inline]
    pub(crate) fn given_back(&self) -> u64 {
        // Acquire: the lender writes to the loan afterwards.
        if self.has_met() { self.peer.given_back.load(Ordering::Acquire) } else { 0 }
    }

    /// Gives a loan of the peer back, and wakes it if it waits for room.
    #[inline]
    pub(crate) fn give_back(&self, loan: u32) {
        let (word, turned) = (&self.own.given_back, 1u64 << loan);
        let mut before = word.load(Ordering::Relaxed);
        // Release: what was read of the loan was read before.
        while let Err(found) = word.compare_exchange(before, before ^ turned, Ordering::Release, Ordering::Relaxed) {
            before = found;
        }
        self.wake(waiting::WRITABLE);
    }

    /// See [`crate::Endpoint::stamp`].
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        let PairWords { tail, head, grown_at, given_back, flags, generation, .. } = &self.peer;
        let now = Ordering::Relaxed;
        let narrow = u64::from(flags.load(now)) << 32 | u64::from(generation.load(now));
        mixed(&[tail.load(now), head.load(now), grown_at.load(now), given_back.load(now), narrow])
    }

    fn reason(&self) -> Reason {
        failure(self.peer.reason.load(Ordering::Acquire))
    }

    /// How reading ends, if it does once the ring is empty; `life` is how the pair ended, looked at before, so that
    /// what the peer stored before it died is seen. The ring is looked at afterwards. FIN comes after the last byte, so
    /// an abort that follows it takes nothing from the reader.
    #[inline]
    pub(crate) fn read_end(&self, life: Option<End>) -> Option<End> {
        let flags = self.peer_flags();
        if flags & ENDS_READING == 0 { life } else { Some(self.reading_ended(flags)) }
    }

    #[cold]
    fn reading_ended(&self, flags: u32) -> End {
        if flags & app_flag::FIN == 0 && flags & app_flag::ABORT != 0 {
            End::Reset(self.reason())
        } else {
            End::Finished
        }
    }

    /// Why writing is over, if it is; `life` as in [`PairEnd::read_end`].
    #[inline]
    pub(crate) fn write_end(&self, life: Option<End>) -> Option<End> {
        let flags = self.peer_flags();
        if flags & ENDS_WRITING == 0 { life } else { Some(self.writing_ended(flags)) }
    }

    #[cold]
    fn writing_ended(&self, flags: u32) -> End {
        if flags & app_flag::ABORT != 0 { End::Reset(self.reason()) } else { End::Finished }
    }

    /// Wakes the peer if it sleeps until `sides` of its end are ready. Cursors and flags were stored before.
    #[inline]
    pub(crate) fn wake(&self, sides: u32) {
        // PAIRS WITH the fence in Endpoint::arm: one of the two sees the other.
        if self.sleeper.must_wake(sides) {
            self.wake_now();
        }
    }

    #[cold]
    fn wake_now(&self) {
        self.socket.tell(self.slot, &self.teller);
    }

    /// Announces a sleep, another one than all before. The caller fences and looks once more.
    pub(crate) fn arm(&self, side: Side) {
        self.waiter.arm(side.bit(), || false);
    }

    pub(crate) fn disarm(&self, side: Side) {
        self.waiter.disarm(side.bit());
    }

    /// Adds flags, after the final cursors, and wakes the peer.
    pub(crate) fn raise(&self, flags: u32) {
        self.own.flags.fetch_or(flags, Ordering::Release);
        self.wake(waiting::ANY);
    }

    /// Gives up the connection; its slot is finished by [`crate::Session::reap`] once the peer has closed too.
    pub(crate) fn close(&self, abort: Option<Reason>) {
        if let Some(reason) = abort {
            self.own.reason.store(reason.code(), Ordering::Relaxed);
        }
        // Asks the peer to say when it closes.
        self.own.waiting.store(waiting::ANY, Ordering::Relaxed);
        // No FIN with an abort: one that was said before stands, and its reader keeps its end in order.
        let end = if abort.is_some() { app_flag::ABORT } else { app_flag::FIN };
        self.own.flags.fetch_or(end | app_flag::STOP | app_flag::CLOSED, Ordering::Release);
        // Not once for each sleep: a peer that closed before stays announced until it learns of this.
        if pair_must_wake(&self.peer.waiting, waiting::ANY) {
            self.wake_now();
        }
    }
}
