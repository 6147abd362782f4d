//! When a host that could not be reached is dialed again for datagrams that go there.
//!
//! Owns the pauses between such dials: each failure in a row doubles the pause, up to a bound, and a part of it is
//! random, so that many hosts that lost the same peer do not come back at one moment. It must never hold back what an
//! application waits for: a connect, or a question for the path, dials at once, and its failure counts here too.

use std::time::Duration;

use rand::RngExt;
use verbs::Time;

use crate::limits::{REDIAL_PAUSE_MAX, REDIAL_PAUSE_MIN};
use crate::numbers::nanos;

/// Dials to one host that failed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Redial {
    failures: u32,
    not_before: Time,
}

impl Redial {
    /// Whether a datagram may have the host dialed now.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.not_before <= now
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// How long datagrams have to wait for the next dial.
    pub(crate) fn wait(&self, now: Time) -> Duration {
        self.not_before.saturating_since(now)
    }

    /// A dial, or what followed it up to a lane that can be used, failed.
    pub(crate) fn on_failed(&mut self, now: Time, rng: &mut impl RngExt) {
        self.pause(now, self.failures, rng);
        self.failures = self.failures.saturating_add(1);
    }

    /// A lane that was up for `lasted` is gone. One that lasted shows that the host can be reached; several that did
    /// not last count as dials that failed, but the first of them costs no pause.
    pub(crate) fn on_lost(&mut self, now: Time, lasted: Duration, rng: &mut impl RngExt) {
        if lasted >= REDIAL_PAUSE_MAX {
            *self = Self::default();
            return;
        }
        if let Some(before) = self.failures.checked_sub(1) {
            self.pause(now, before, rng);
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// From half of the pause that follows `before` failures to the whole of it.
    fn pause(&mut self, now: Time, before: u32, rng: &mut impl RngExt) {
        let whole = nanos(REDIAL_PAUSE_MIN.saturating_mul(1 << before.min(16)).min(REDIAL_PAUSE_MAX));
        self.not_before = now + Duration::from_nanos(rng.random_range(whole / 2..=whole));
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const START: Time = Time(1_000_000_000_000);

    #[test]
    fn pauses_double_up_to_the_bound_and_differ_by_chance() {
        let pauses = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut redial = Redial::default();
            assert!(redial.is_due(START) && redial.wait(START).is_zero());
            let mut of = |_| {
                redial.on_failed(START, &mut rng);
                assert!(!redial.is_due(START));
                assert!(redial.is_due(START + redial.wait(START)));
                redial.wait(START)
            };
            (0..40).map(&mut of).collect::<Vec<_>>()
        };
        let seen = pauses(1);
        let mut whole = REDIAL_PAUSE_MIN;
        for pause in &seen {
            assert!((whole / 2..=whole).contains(pause), "{pause:?} of {whole:?}");
            whole = (whole * 2).min(REDIAL_PAUSE_MAX);
        }
        assert_eq!(whole, REDIAL_PAUSE_MAX, "the bound is reached");
        let others = pauses(2);
        assert!(seen.iter().zip(&others).all(|(a, b)| a != b), "two hosts wait for different times");
    }

    #[test]
    fn a_lane_that_lasted_forgives_and_short_ones_do_not() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut redial = Redial::default();
        redial.on_lost(START, Duration::from_secs(1), &mut rng);
        assert!(redial.is_due(START), "the first loss is followed by a dial at once");
        redial.on_lost(START, Duration::from_secs(1), &mut rng);
        assert!((REDIAL_PAUSE_MIN / 2..=REDIAL_PAUSE_MIN).contains(&redial.wait(START)), "{redial:?}");
        for _ in 0..100 {
            redial.on_lost(START, REDIAL_PAUSE_MAX - Duration::from_nanos(1), &mut rng);
        }
        assert!((REDIAL_PAUSE_MAX / 2..=REDIAL_PAUSE_MAX).contains(&redial.wait(START)), "{redial:?}");
        assert_eq!(redial.failures(), 102);
        redial.on_lost(START, REDIAL_PAUSE_MAX, &mut rng);
        assert!(redial.is_due(START) && redial.failures() == 0);
    }
}
