//! How often a thread of the daemon without work looks for some before it sleeps.
//!
//! Owns the guess whether work comes soon. Time is an argument. It must never make a thread whose work always comes soon
//! sleep.
//!
//! Looking pays where the next work comes before a sleep and a wake would have ended, and each look that finds nothing
//! costs a system call of the device and a yield. A load that asks seldom has both kinds of waits in turn: a short one for
//! the other host's answer, and a long one for the next question. So the guess is made as a processor guesses branches
//! (T.-Y. Yeh and Y. Patt, "Two-level adaptive training branch prediction", 1991): how the last few waits ended chooses a
//! counter, and the counter says how waits ended after such a history.

use std::time::Duration;

use verbs::Time;

/// A wait that ends within this time ends soon. A wake takes 15 to 25 us ([`shm::Backoff`]), so above it they change little.
const SOON: Duration = Duration::from_micros(200);
/// Looks of an engine that expects work soon. A look costs 0.5 us on an idle core, and up to 5 us with the device's system
/// call where another thread on the core yields too, so they reach over a wait of [`SOON`] or a good part of it.
pub(crate) const LOOKS: u32 = 100;
/// Looks of an engine that expects none: what comes at once is still found.
const FEW_LOOKS: u32 = 4;
/// Waits that are remembered.
const HISTORY: u32 = 4;
/// Most that speaks for work that comes soon. From 1 on the engine looks: one wait that was slept through for nothing
/// weighs as much as three that were looked through for nothing.
const SURE: u8 = 3;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Begin of this wait; none: the last round had work.
    since: Option<Time>,
    left: u32,
    /// How the last waits ended: a bit for each, the newest lowest; 1: soon.
    history: usize,
    /// By history, what speaks for work that comes soon.
    soon: [u8; 1 << HISTORY],
}

impl Looks {
    /// Expects work soon.
    pub(crate) fn new() -> Self {
        Self { since: None, left: 0, history: (1 << HISTORY) - 1, soon: [SURE; 1 << HISTORY] }
    }

    /// A round had work, at the time that `now` reads. No clock is read if the one before had some too.
    #[inline]
    pub(crate) fn on_work(&mut self, now: impl FnOnce() -> Time) {
        let Some(since) = self.since.take() else { return };
        let is_soon = now().saturating_since(since) < SOON;
        let counter = &mut self.soon[self.history];
        *counter = if is_soon { (*counter + 1).min(SURE) } else { counter.saturating_sub(1) };
        self.history = (self.history << 1 | usize::from(is_soon)) % self.soon.len();
    }

    /// A round had no work. Whether the engine is to look again; if not it is to sleep.
    #[inline]
    pub(crate) fn look_again(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.since.is_none() {
            self.since = Some(now());
            self.left = if self.soon[self.history] > 0 { LOOKS } else { FEW_LOOKS };
        }
        let any_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any_left
    }

    /// The engine slept. The wait goes on until it has work.
    pub(crate) fn on_wake(&mut self) {
        self.left = FEW_LOOKS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of so many microseconds one after the other: how often the engine looked in each.
    fn looks_of(looks: &mut Looks, waits: &[u64]) -> Vec<u32> {
        let mut now = Time::ZERO;
        let one = |wait: &u64| {
            looks.on_work(|| now);
            let mut count = 0;
            while looks.look_again(|| now) {
                count += 1;
            }
            now = now + Duration::from_micros(*wait);
            looks.on_work(|| now);
            count
        };
        waits.iter().map(one).collect()
    }

    #[test]
    fn an_engine_whose_work_comes_soon_always_looks() {
        let waits = (0..1000).map(|n| n % 200).collect::<Vec<_>>();
        assert!(looks_of(&mut Looks::new(), &waits).iter().all(|count| *count == LOOKS));
    }

    #[test]
    fn an_engine_that_waits_long_stops_looking_and_begins_again_with_the_first_short_wait() {
        let mut looks = Looks::new();
        let counts = looks_of(&mut looks, &[20_000; 40]);
        assert_eq!((counts[0], *counts.last().unwrap()), (LOOKS, FEW_LOOKS));
        let many = counts.iter().filter(|count| **count == LOOKS).count();
        assert!(many <= usize::from(SURE) * (HISTORY as usize + 1), "{counts:?}");
        let counts = looks_of(&mut looks, &[10; 6]);
        assert_eq!(counts, [FEW_LOOKS, LOOKS, LOOKS, LOOKS, LOOKS, LOOKS]);
    }

    #[test]
    fn an_answer_is_looked_for_and_the_next_question_is_not() {
        let mut looks = Looks::new();
        let waits = [100, 20_000].repeat(50);
        let counts = looks_of(&mut looks, &waits);
        assert_eq!(counts[90..], [LOOKS, FEW_LOOKS].repeat(5));
    }

    #[test]
    fn waits_without_a_pattern_are_looked_through_where_half_of_them_are_short() {
        let mut random = 1_u64;
        let waits = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if random >> 63 == 0 { 50 } else { 5_000 }
        });
        let counts = looks_of(&mut Looks::new(), &waits.take(2000).collect::<Vec<_>>());
        assert!(counts.iter().filter(|count| **count == LOOKS).count() > 1200);
    }

    #[test]
    fn a_wake_without_work_does_not_end_the_wait() {
        let mut looks = Looks::new();
        let begin = Time::ZERO + Duration::from_secs(1);
        for _ in 0..40 {
            assert!(looks.look_again(|| begin));
            looks.on_wake();
            let count = std::iter::repeat_with(|| looks.look_again(|| panic!("it has begun"))).take_while(|on| *on);
            assert_eq!(count.count(), FEW_LOOKS as usize);
            looks.on_work(|| begin + SOON);
        }
        assert_eq!(looks.soon[0], 0, "it was long each time");
    }
}
