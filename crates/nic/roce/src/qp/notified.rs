//! How far a requester slows down when its peer notifies it of congestion: the reaction point of DCQCN (Zhu et al.,
//! SIGCOMM 2015), applied to the window and the pace instead of a rate limiter.
//!
//! A notification takes away half of the estimate of how congested the path is, `alpha`, which grows with each and
//! shrinks with time. Five periods without one bring half of what was taken back each; then the target itself grows.
//!
//! Its times are those of a data centre. Over a longer path what a cut does is seen a round trip later, and marks of
//! packets that were on their way before are no news: no cut comes sooner after another, and no period is shorter.

use std::time::Duration;

use verbs::Time;

/// The whole of a fraction.
const WHOLE: u64 = 1_024;
/// The least that is left.
const LEAST: u64 = WHOLE / 32;
/// Notifications within this, or a round trip, are one.
const CUT_APART: Duration = Duration::from_micros(50);
/// Each such period, or round trip, without a notification brings something back.
const PERIOD: Duration = Duration::from_micros(300);
/// Periods of recovery before the target grows.
const RECOVERY_PERIODS: u32 = 5;
/// A path that marked queues within this is taken to do so still.
const RECENT: Duration = Duration::from_secs(1);
/// What the target grows by.
const ADDITION: u64 = WHOLE / 20;
/// A notification moves `alpha` by this part of its distance to the whole, a period by this part of itself.
const GAIN: u64 = 16;

/// State of the reaction point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notified {
    alpha: u64,
    share: u64,
    target: u64,
    periods: u32,
    cut_at: Option<Time>,
    heard_at: Option<Time>,
    /// What a period is.
    period: Duration,
    next_at: Time,
}

impl Default for Notified {
    fn default() -> Self {
        Self {
            alpha: WHOLE,
            share: WHOLE,
            target: WHOLE,
            periods: 0,
            cut_at: None,
            heard_at: None,
            period: PERIOD,
            next_at: Time::ZERO,
        }
    }
}

impl Notified {
    /// What is left of so much.
    pub(crate) const fn of(&self, whole: u64) -> u64 {
        if self.share == WHOLE { whole } else { whole / WHOLE * self.share + whole % WHOLE * self.share / WHOLE }
    }

    /// Whether the path has marked queues of late.
    pub(crate) fn is_recent(&self, now: Time) -> bool {
        self.heard_at.is_some_and(|at| now.saturating_since(at) < RECENT)
    }

    /// The peer saw a mark. A round trip takes so long, as far as is known.
    pub(crate) fn on_notification(&mut self, round_trip: Option<Duration>, now: Time) {
        self.heard_at = Some(now);
        let round_trip = round_trip.unwrap_or_default();
        if self.cut_at.is_some_and(|at| now.saturating_since(at) < CUT_APART.max(round_trip)) {
            return;
        }
        self.period = PERIOD.max(round_trip);
        self.cut_at = Some(now);
        self.target = self.share;
        self.share = (self.share - self.share * self.alpha / (2 * WHOLE)).max(LEAST);
        self.alpha += (WHOLE - self.alpha) / GAIN;
        (self.periods, self.next_at) = (0, now + self.period);
    }

    /// The time moved on.
    pub(crate) fn on_time(&mut self, now: Time) {
        while self.share < WHOLE && self.next_at <= now {
            self.next_at = self.next_at + self.period;
            self.periods += 1;
            self.alpha -= self.alpha / GAIN;
            if self.periods > RECOVERY_PERIODS {
                self.target = (self.target + ADDITION).min(WHOLE);
            }
            self.share = (self.share + self.target).div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time(micros * 1_000)
    }

    #[test]
    fn a_notification_halves_and_time_brings_it_back() {
        let mut notified = Notified::default();
        assert_eq!(notified.of(u64::MAX), u64::MAX);
        notified.on_notification(None, at(1_000));
        notified.on_notification(None, at(1_049));
        assert_eq!(notified.of(10_240), 5_120, "those within 50 us are one");
        notified.on_time(at(1_299));
        assert_eq!(notified.of(10_240), 5_120);
        let mut before = 5_120;
        for period in 1..=5 {
            notified.on_time(at(1_000 + 300 * period));
            assert!(notified.of(10_240) > before, "period {period}");
            before = notified.of(10_240);
        }
        notified.on_time(at(1_000_000));
        assert_eq!(notified.of(10_240), 10_240, "all of it");
        notified.on_notification(None, at(1_000_000));
        assert!(notified.of(10_240) > 5_500, "a path that is seldom congested is cut less");
    }

    #[test]
    fn over_a_long_path_one_round_trip_has_one_cut() {
        let long = Some(Duration::from_millis(10));
        let mut notified = Notified::default();
        for micros in (0..10_000).step_by(100) {
            notified.on_notification(long, at(micros));
            notified.on_time(at(micros));
        }
        assert_eq!(notified.of(10_240), 5_120);
        notified.on_notification(long, at(10_000));
        assert_eq!(notified.of(10_240), 2_560, "the next round trip had marks too");
        notified.on_time(at(19_999));
        assert_eq!(notified.of(10_240), 2_560);
        notified.on_time(at(20_000));
        assert!(notified.of(10_240) > 2_560);
    }

    #[test]
    fn marks_are_remembered_for_a_second() {
        let mut notified = Notified::default();
        assert!(!notified.is_recent(at(5)));
        notified.on_notification(None, at(5));
        assert!(notified.is_recent(at(1_000_004)) && !notified.is_recent(at(1_000_005)));
    }

    #[test]
    fn marks_without_end_leave_a_part() {
        let mut notified = Notified::default();
        for n in 0..10_000 {
            notified.on_notification(None, at(n * 60));
            notified.on_time(at(n * 60));
        }
        assert_eq!(notified.of(32_000), 1_000);
        notified.on_time(Time(u64::MAX / 2));
        assert_eq!(notified.of(32_000), 32_000);
    }
}
