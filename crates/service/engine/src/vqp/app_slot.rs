//! The slot of a connection: the words that it shares with its application.
//!
//! Owns whose the words are: before the application has taken the slot, they are those of a user before.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::Reason;
use shm::{SlotWords, Word64, engine_flag, slot_is_awaited, slot_state};

use crate::ids::{AppId, SlotAt};
use crate::slot::{TakenSlot, clear_slot};

/// See the module.
#[derive(Debug)]
pub(crate) struct AppSlot {
    at: SlotAt,
    generation: u32,
    words: Box<SlotWords>,
}

impl AppSlot {
    /// One that was just taken for the connection.
    pub(super) fn new(app: AppId, slot: TakenSlot) -> Self {
        let TakenSlot { number, generation, words } = slot;
        Self { at: SlotAt { app, slot: number }, generation, words }
    }

    #[inline]
    pub(crate) fn at(&self) -> SlotAt {
        self.at
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn words(&self) -> &SlotWords {
        &self.words
    }

    /// Whether the application has taken it, so that the words are its own.
    #[inline]
    pub(super) fn is_taken(&self) -> bool {
        self.words.app_generation.load(Ordering::Acquire) == self.generation
    }

    // ---- from the application

    /// For how long the application waits for a silent peer, if it said so.
    pub(crate) fn peer_timeout(&self) -> Option<Duration> {
        if !self.is_taken() {
            return None;
        }
        match self.words.peer_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into())),
        }
    }

    /// Whether a thread of the application waits for this [`shm::waiting`] event, which was just published.
    #[inline]
    pub(crate) fn is_awaited(&self, event: u32) -> bool {
        slot_is_awaited(&self.words.app_wait, event)
    }

    /// When its application wrote a byte, as it says: see [`shm::written_at`].
    pub(crate) fn written_word(&self) -> u64 {
        self.words.tx_written.load(Ordering::Relaxed)
    }

    /// Bytes sent and received by the stream's own TCP connection, as its application says.
    pub(super) fn direct(&self) -> (u64, u64) {
        if !self.is_taken() {
            return (0, 0);
        }
        (self.words.direct_tx.load(Ordering::Relaxed), self.words.direct_rx.load(Ordering::Relaxed))
    }

    /// How far a cursor of the application's is beyond `from`, at most `max`, or `known` if the word makes no sense.
    pub(super) fn fresh(&self, word: &Word64, known: u64, from: u64, max: u64) -> u64 {
        let of = |value: u64| value.wrapping_sub(from);
        let is_taken = self.is_taken();
        let seen = of(word.load(Ordering::Acquire));
        if is_taken && seen >= of(known) && seen <= max { seen } else { of(known) }
    }

    // ---- to the application

    /// Writes it for a new connection.
    pub(super) fn publish_new(&self, epoch: u32, is_outgoing: bool) {
        let state = if is_outgoing { slot_state::CONNECTING } else { slot_state::ESTABLISHED };
        clear_slot(&self.words, self.generation, epoch, state);
    }

    /// The application may use the connection.
    pub(crate) fn publish_established(&self) {
        self.words.state.store(slot_state::ESTABLISHED, Ordering::Release);
    }

    /// Which incarnation of the lane the connection is on, for the application to see.
    pub(crate) fn publish_epoch(&self, epoch: u32) {
        self.words.epoch.store(epoch.into(), Ordering::Relaxed);
    }

    /// Tells the application that the connection is over.
    pub(crate) fn publish_reset(&self, reason: Reason) {
        self.words.reason.store(reason.code(), Ordering::Relaxed);
        self.words.state.store(slot_state::CLOSED, Ordering::Relaxed);
        self.raise(engine_flag::RESET);
    }

    /// Bytes are in the receive ring up to there.
    #[inline]
    pub(super) fn publish_rx_tail(&self, tail: u64) {
        self.words.rx_tail.store(tail, Ordering::Release);
    }

    /// The transmit ring is free up to there.
    #[inline]
    pub(super) fn publish_tx_head(&self, head: u64) {
        self.words.tx_head.store(head, Ordering::Release);
    }

    pub(super) fn raise(&self, flag: u32) {
        self.words.engine_flags.fetch_or(flag, Ordering::Release);
    }

    /// The application keeps at most so many bytes in its transmit ring for now.
    pub(crate) fn hold(&self, bytes: u32) {
        self.words.tx_hold.store(bytes, Ordering::Relaxed);
    }

    // ---- rest

    /// Tells the application to wait with writing.
    pub(crate) fn begin_rest(&self) {
        shm::begin_rest(&self.words);
    }

    /// It may write again.
    pub(crate) fn end_rest(&self) {
        shm::end_rest(&self.words);
    }

    /// Whether the application is not writing, after the barrier that follows [`Self::begin_rest`].
    pub(crate) fn is_unused(&self) -> bool {
        shm::is_unused(&self.words)
    }
}
