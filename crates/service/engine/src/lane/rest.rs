//! The rest of a lane: when something last went over it, and whether the peer has it.
//!
//! Owns the last use, and what the ends say of it: an end cannot see what the other's READs and WRITEs of regions do, so
//! who would rest asks (Unused), and the other one rests the lane if it does not use it either. What "nothing to send"
//! means is the lane's ([`Lane::is_quiet`]): one with something to send, or with a message of which it is not known
//! whether it arrived, is never at rest.
//!
//! [`Lane::is_quiet`]: super::Lane::is_quiet

use std::time::Duration;

use verbs::Time;

use crate::frame::{FrameWriter, LaneRecord};

/// See the module.
#[derive(Debug)]
pub(crate) struct Rest {
    /// No queue pair, because nothing used it; connections keep everything.
    is_resting: bool,
    /// When something last went over it that was more than credits.
    used_at: Time,
    /// The timer of rests is running.
    has_timer: bool,
    /// The last work request that was more than credits.
    last_use: u64,
    /// A completion is wanted for it.
    is_flush_due: bool,
    /// The work request that was sent for that.
    flush: u64,
    /// The peer is to be told that this end has not used it for so long.
    to_ask: Option<Duration>,
    /// The last use when it was told.
    told_at: Option<Time>,
    /// The peer has not used it for so long, and waits for an answer.
    asked: Option<Duration>,
}

impl Rest {
    pub(super) fn new() -> Self {
        Self {
            is_resting: false,
            used_at: Time::ZERO,
            has_timer: false,
            last_use: 0,
            is_flush_due: false,
            flush: 0,
            to_ask: None,
            told_at: None,
            asked: None,
        }
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.is_resting
    }

    /// It rests, or does not.
    pub(super) fn set_resting(&mut self, is_resting: bool) {
        self.is_resting = is_resting;
    }

    /// Something went over it that was more than credits.
    #[inline]
    pub(crate) fn touch(&mut self, now: Time) {
        self.used_at = now;
    }

    pub(crate) fn used_at(&self) -> Time {
        self.used_at
    }

    /// Something was sent that was more than credits, by this work request at last.
    pub(super) fn on_sent(&mut self, now: Time, last: u64) {
        self.touch(now);
        self.last_use = last;
    }

    /// That work request.
    pub(super) fn last_use(&self) -> u64 {
        self.last_use
    }

    /// True: the timer that looks whether the lane is used must be started.
    pub(super) fn watch(&mut self) -> bool {
        !std::mem::replace(&mut self.has_timer, true)
    }

    /// That timer fired.
    pub(crate) fn on_timer(&mut self) {
        self.has_timer = false;
    }

    // ---- flushes

    /// A frame without records is to be completed, and with it everything before. False: it is under way.
    pub(crate) fn want_flush(&mut self) -> bool {
        self.is_flush_due = self.flush <= self.last_use;
        self.is_flush_due
    }

    /// A frame is to leave, though it may say nothing.
    pub(crate) fn owe_flush(&mut self) {
        self.is_flush_due = true;
    }

    #[inline]
    pub(super) fn is_flush_due(&self) -> bool {
        self.is_flush_due
    }

    /// Whether the frame that is made now, by this work request, is that frame.
    pub(crate) fn take_flush(&mut self, wr: u64) -> bool {
        let is_flush = std::mem::take(&mut self.is_flush_due);
        if is_flush {
            self.flush = wr;
        }
        is_flush
    }

    // ---- asking the peer

    /// The peer is asked whether it used the lane in this time.
    pub(crate) fn ask(&mut self, unused: Duration) {
        self.to_ask = Some(unused);
    }

    /// Whether a frame should leave for that.
    #[inline]
    pub(super) fn has_to_ask(&self) -> bool {
        self.to_ask.is_some()
    }

    /// Asks. It comes early in a frame, so that it fits any.
    pub(crate) fn write(&mut self, frame: &mut FrameWriter<'_>) {
        if let Some(unused) = self.to_ask.take() {
            self.told_at = Some(self.used_at);
            frame.push(&LaneRecord::Unused { us: unused.as_micros().try_into().unwrap_or(u32::MAX) });
        }
    }

    /// Whether the peer was asked, and this end has not used it since: the peer may end the queue pair at any moment.
    pub(crate) fn is_asking(&self) -> bool {
        self.told_at == Some(self.used_at)
    }

    /// The peer asks.
    pub(crate) fn on_asked(&mut self, us: u32) {
        self.asked = Some(Duration::from_micros(us.into()));
    }

    /// What it asked.
    #[inline]
    pub(crate) fn take_asked(&mut self) -> Option<Duration> {
        self.asked.take()
    }

    /// The queue pair is destroyed.
    pub(super) fn forget(&mut self) {
        self.is_flush_due = false;
        (self.to_ask, self.told_at, self.asked) = (None, None, None);
    }
}
