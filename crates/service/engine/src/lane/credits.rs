//! The receive credits of a lane, in both directions (the rules are in `crate::credit`).
//!
//! Owns when the grant is looked at, and what counts as one stall.

use verbs::Time;

use super::queue_pair::{OwnEnd, PeerEnd};
use crate::credit::{CreditError, RecvCredits, SendCredits};
use crate::frame::{FrameWriter, LaneRecord};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LaneCredits {
    tx: SendCredits,
    rx: RecvCredits,
    /// The grant's size is looked at when a period ends.
    has_timer: bool,
    /// Out of credits since the last frame that brought some.
    is_stalled: bool,
}

impl LaneCredits {
    /// The queue pair was made, with this grant.
    pub(super) fn on_offered(&mut self, own: &OwnEnd) {
        self.rx = RecvCredits::new(own.credits);
    }

    /// The peer's offer was taken, with its grant.
    pub(super) fn on_accepted(&mut self, peer: &PeerEnd) {
        self.tx = SendCredits::new(peer.credits);
    }

    /// The queue pair is destroyed. The timer goes on.
    pub(super) fn forget(&mut self) {
        (self.tx, self.rx) = (SendCredits::default(), RecvCredits::default());
        self.is_stalled = false;
    }

    // ---- the peer's

    /// How many there are.
    pub(super) fn available(&self) -> u64 {
        self.tx.available()
    }

    /// Whether ring data may leave.
    #[inline]
    pub(crate) fn allow_data(&self) -> bool {
        self.tx.ordinary() > 0
    }

    /// Whether a frame may leave.
    #[inline]
    pub(super) fn allow_frame(&self) -> bool {
        self.tx.allow_frame(self.rx.owed())
    }

    /// A message leaves.
    #[inline]
    pub(crate) fn take(&mut self) {
        self.tx.take();
    }

    /// There is none left where one is needed. True: that is news.
    #[inline]
    pub(crate) fn stall(&mut self) -> bool {
        !std::mem::replace(&mut self.is_stalled, true)
    }

    /// A frame says how many there were in all.
    pub(super) fn on_total(&mut self, total: u64) -> Result<(), CreditError> {
        self.tx.on_total(total)?;
        self.is_stalled = false;
        Ok(())
    }

    /// The peer wants some back.
    pub(crate) fn on_reclaim(&mut self, most: u32) -> Result<(), CreditError> {
        self.tx.on_reclaim(most)
    }

    // ---- this host's

    /// The entries that the lane's peer uses, or may use.
    #[inline]
    pub(crate) fn grant(&self) -> &RecvCredits {
        &self.rx
    }

    #[inline]
    pub(crate) fn grant_mut(&mut self) -> &mut RecvCredits {
        &mut self.rx
    }

    /// The grant is larger than the fewest. True: the timer that looks at its size must be started.
    pub(crate) fn watch(&mut self) -> bool {
        self.rx.is_raised() && !std::mem::replace(&mut self.has_timer, true)
    }

    /// That timer fired. By how many entries the grant gets smaller at once.
    pub(crate) fn on_timer(&mut self, now: Time) -> u64 {
        self.has_timer = false;
        self.rx.on_period(now)
    }

    // ---- frames

    /// Whether a frame should leave for them.
    #[inline]
    pub(super) fn wants_frame(&self) -> bool {
        self.rx.is_due() || self.tx.has_excess()
    }

    /// Says what is to be given back. It comes first, so that it fits any frame.
    pub(crate) fn write(&mut self, frame: &mut FrameWriter<'_>) {
        if let Some(most) = self.rx.take_reclaim() {
            frame.push(&LaneRecord::Reclaim { most });
        }
        if let Some(count) = self.tx.give_up() {
            frame.push(&LaneRecord::Yield { count });
        }
    }

    /// Whether the frame must leave, though it says nothing else.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.rx.is_due()
    }

    /// The frame leaves: what its header says.
    pub(crate) fn give_back(&mut self) -> u64 {
        self.rx.give_back()
    }
}
