//! How often a lane was reset, and whether that brought anything.
//!
//! Owns the bounds: a lane must never be reset for ever.

use std::collections::VecDeque;

use verbs::Time;

use crate::limits::{LANE_RESET_WINDOW, LANE_RESETS_FRUITLESS_MAX, LANE_RESETS_MAX};

/// What a reset is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The keys are worn, which is no fault: the bounds are for faults. The device has counted the records.
    Keys,
    /// A fault of an incarnation that had time, and something to send.
    HadTime,
    /// Anything else.
    Fault,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    /// Since the daemon knows the peer.
    count: u64,
    times: VecDeque<Time>,
    /// Those of incarnations that had time and carried nothing, since one did.
    fruitless: u32,
}

impl Resets {
    /// Since the daemon knows the peer.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Counts one. False: there were too many.
    pub(super) fn begin(&mut self, now: Time, cause: Cause) -> bool {
        while self.times.front().is_some_and(|at| now.saturating_since(*at) >= LANE_RESET_WINDOW) {
            self.times.pop_front();
        }
        if self.times.len() >= LANE_RESETS_MAX || self.fruitless >= LANE_RESETS_FRUITLESS_MAX {
            return false;
        }
        self.count += 1;
        if cause != Cause::Keys {
            self.times.push_back(now);
        }
        self.fruitless += u32::from(cause == Cause::HadTime);
        true
    }

    /// The incarnation carried something.
    #[inline]
    pub(super) fn on_carried(&mut self) {
        self.fruitless = 0;
    }

    /// The link to the peer's daemon is lost: the bounds begin anew.
    pub(super) fn forget(&mut self) {
        self.times.clear();
        self.fruitless = 0;
    }
}
