//! Time slices: how long the clients that have seats keep them while others wait.
//!
//! Owns the end of a slice, and its length, which follows what the clients make of it. It must never end a slice before
//! a turn that a client was told of.

use std::time::{Duration, Instant};

/// So many calls a client makes in its turn on average: fetching its first ones by READ is then a small part.
const CALLS_OF_TURN: u32 = 10;
const FIRST: Duration = Duration::from_millis(2);
const SHORTEST: Duration = Duration::from_micros(500);
/// A turn while nobody waits.
const ALONE: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(20);

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Slices {
    began: Instant,
    /// Only while somebody waits.
    ends: Option<Instant>,
    length: Duration,
    calls: u32,
    turns: u32,
    /// Slices that ended because others waited.
    ended: u64,
}

impl Slices {
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, ends: None, length: FIRST, calls: 0, turns: 0, ended: 0 }
    }

    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Until when a client may write that is answered now.
    pub(crate) fn until(&self, now: Instant) -> Instant {
        self.ends.unwrap_or(now + ALONE)
    }

    /// A client that has a seat was answered; `is_new`: it got the seat just now.
    pub(crate) fn on_call(&mut self, is_new: bool) {
        self.calls += 1;
        self.turns += u32::from(is_new);
    }

    /// Somebody waits for a seat: from now on turns end together. `told`: the end of the longest turn so far.
    pub(crate) fn contend(&mut self, now: Instant, told: Option<Instant>) {
        if self.ends.is_none() {
            self.ends = Some((self.began + self.length).max(told.unwrap_or(now)));
        }
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    /// The next slice begins. Its length follows what came of the last one, by a quarter of the way.
    pub(crate) fn begin(&mut self, now: Instant) {
        if self.calls > 0 && self.turns > 0 {
            let wanted = self.length * CALLS_OF_TURN * self.turns / self.calls;
            self.length = ((3 * self.length + wanted.min(LONGEST)) / 4).clamp(SHORTEST, LONGEST);
        }
        (self.began, self.ends, self.calls, self.turns) = (now, None, 0, 0);
        self.ended += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_on_while_nobody_waits_and_end_together_when_somebody_does() {
        let now = Instant::now();
        let mut slices = Slices::new(now);
        let later = now + Duration::from_secs(1);
        assert_eq!(slices.until(later), later + ALONE);
        assert!(!slices.is_over(later + ALONE));
        let told = slices.until(later);
        slices.contend(later, Some(told));
        assert_eq!(slices.until(later + ALONE / 2), told, "nobody was told of more");
        assert!(!slices.is_over(told - Duration::from_nanos(1)) && slices.is_over(told));
        slices.begin(told);
        slices.contend(told, None);
        assert_eq!(slices.until(told), told + FIRST);
    }

    #[test]
    fn the_length_follows_the_calls_of_a_turn_within_its_bounds() {
        let now = Instant::now();
        let after = |calls: u32, turns: u32| {
            let mut slices = Slices::new(now);
            for _ in 0..60 {
                (slices.calls, slices.turns) = (calls, turns);
                slices.begin(now);
            }
            slices.length()
        };
        // It comes near to a bound, by a quarter of the way each time.
        assert!(after(40, 40) > LONGEST * 9 / 10, "one call each is too few");
        assert_eq!(after(40_000, 40), SHORTEST, "a thousand are more than needed");
        assert_eq!(after(400, 40), FIRST);
    }
}
