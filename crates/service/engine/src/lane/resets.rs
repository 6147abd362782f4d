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
    /// The last one of `times` is of the last reset.
    is_last_counted: bool,
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
        self.is_last_counted = cause != Cause::Keys;
        if self.is_last_counted {
            self.times.push_back(now);
        }
        self.fruitless += u32::from(cause == Cause::HadTime);
        true
    }

    /// The last one was no fault.
    pub(super) fn forgive(&mut self) {
        if std::mem::take(&mut self.is_last_counted) {
            self.times.pop_back();
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn so_many_in_a_window_and_then_more() {
        let mut resets = Resets::default();
        for _ in 0..LANE_RESETS_MAX {
            assert!(resets.begin(Time::ZERO, Cause::Fault));
        }
        assert!(!resets.begin(Time::ZERO + (LANE_RESET_WINDOW - Duration::from_nanos(1)), Cause::Fault));
        assert!(resets.begin(Time::ZERO + LANE_RESET_WINDOW, Cause::Fault));
        assert_eq!(resets.count(), LANE_RESETS_MAX as u64 + 1);
    }

    #[test]
    fn those_that_bring_nothing_are_few_until_one_carries_something() {
        let mut resets = Resets::default();
        for _ in 0..LANE_RESETS_FRUITLESS_MAX {
            assert!(resets.begin(Time::ZERO, Cause::HadTime));
        }
        assert!(!resets.begin(Time::ZERO, Cause::Fault));
        resets.on_carried();
        assert!(resets.begin(Time::ZERO, Cause::Fault));
    }

    #[test]
    fn one_that_is_forgiven_does_not_count_and_takes_no_other_with_it() {
        let mut resets = Resets::default();
        for _ in 1..LANE_RESETS_MAX {
            assert!(resets.begin(Time::ZERO, Cause::Fault));
        }
        for cause in [Cause::Fault, Cause::Keys, Cause::Fault] {
            assert!(resets.begin(Time::ZERO, cause));
            resets.forgive();
            resets.forgive();
        }
        assert!(resets.begin(Time::ZERO, Cause::Fault));
        assert!(!resets.begin(Time::ZERO, Cause::Fault));
    }

    #[test]
    fn new_keys_are_no_fault() {
        let mut resets = Resets::default();
        for _ in 0..=2 * LANE_RESETS_MAX {
            assert!(resets.begin(Time::ZERO, Cause::Keys));
        }
    }
}
