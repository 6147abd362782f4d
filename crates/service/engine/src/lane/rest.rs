//! A lane at rest: when nothing uses it, and the way back.
//!
//! Owns what "nothing" means. A lane with something to send, or with a message of which it is not known whether it
//! arrived, is never at rest.

use verbs::Time;

use super::{Lane, LaneState};

impl Lane {
    /// Something was sent over it that was more than credits.
    pub(crate) fn on_used(&mut self, now: Time) {
        self.used_at = now;
        self.last_use = self.sendq.next().saturating_sub(1);
    }

    /// Something arrived over it that was more than credits.
    #[inline]
    pub(crate) fn touch(&mut self, now: Time) {
        self.used_at = now;
    }

    pub(crate) fn used_at(&self) -> Time {
        self.used_at
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.is_resting
    }

    /// It is up. True: the timer that looks whether it is used must be started.
    pub(crate) fn watch_rest(&mut self) -> bool {
        self.state == LaneState::Up && !std::mem::replace(&mut self.has_rest_timer, true)
    }

    /// That timer fired.
    pub(crate) fn on_rest_timer(&mut self) {
        self.has_rest_timer = false;
    }

    /// Whether there is nothing to send, nothing to answer, and no connect under way.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_empty = self.control.is_empty()
            && self.opens.is_empty()
            && self.naks.is_empty()
            && self.gone.is_empty()
            && self.lazy_heads.is_empty()
            && self.closing.is_empty()
            && self.parked.is_empty()
            && self.unreliable.is_settled()
            && self.drr.is_empty()
            && self.flight.is_quiet();
        let is_answered = self.opens_sent == 0 && self.opens_received == 0;
        is_empty && is_answered && self.failing.is_none() && self.stall.is_none()
    }

    /// Whether it is known that everything that was sent arrived, except credits, which end with the queue pair.
    pub(crate) fn is_delivered(&self) -> bool {
        self.sendq.is_completed(self.last_use)
    }

    /// A frame without records is to be completed, and with it everything before. False: it is under way.
    pub(crate) fn want_flush(&mut self) -> bool {
        self.is_flush_due = self.flush <= self.last_use;
        self.is_flush_due
    }

    /// Whether the frame that is made now is that frame.
    pub(super) fn take_flush(&mut self) -> bool {
        let is_flush = std::mem::take(&mut self.is_flush_due);
        if is_flush {
            self.flush = self.sendq.next();
        }
        is_flush
    }
}
