//! Yield, then block: how long a party without work keeps its core, and how it notices that others want the core as
//! well.
//!
//! Owns the count of yields and the memory of late ones. It must never spin without yielding: on a busy core the other
//! party could not run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A yield that takes longer than this gave the core to a program that does not yield. Programs that wait for each
/// other as we do come back within 100 us.
const LATE: Duration = Duration::from_millis(1);
/// A late yield that comes so long after the last one was a hiccup: a program that had a short job for this core.
const APART: Duration = Duration::from_millis(64);
/// For so long nobody yields after a late yield that was none.
const PAUSE_MIN: Duration = Duration::from_millis(16);
/// And at most for so long, when it was late each time that it was tried again: a try costs a slice of the scheduler, a
/// few milliseconds.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether a core that is yielded comes back soon.
///
/// Yielding is the fastest way to wait as long as only parties that wait for each other share the cores. Where another
/// program computes, `sched_yield` hands it the rest of its time slice, 3 to 10 ms, while a thread that *blocks* is put
/// back on its core by the wake. So after two late yields in a short time the parties block, and try yields again later,
/// each time after twice the pause. One late yield alone changes nothing: any machine has some programs that work for
/// milliseconds a few times a second, and a pause after each of them would be felt in the slowest hundredth of all waits.
///
/// Threads may share one: all state is in relaxed atomics, because a lost update costs only one yield or one sleep.
#[derive(Debug)]
pub struct Crowding {
    origin: Instant,
    late: Duration,
    /// No yields before then, in nanoseconds since `origin`.
    until: AtomicU64,
    /// When the last late yield came back, or the pause after it ended, in nanoseconds since `origin`; 0: none was late.
    late_at: AtomicU64,
    /// The pause before the next try, in nanoseconds.
    pause: AtomicU64,
}

impl Default for Crowding {
    fn default() -> Self {
        Self::with_limit(LATE)
    }
}

impl Crowding {
    /// A yield that takes as long as `late` is late; [`Duration::MAX`]: none is.
    pub fn with_limit(late: Duration) -> Self {
        let (until, late_at, pause) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(nanos(PAUSE_MIN)));
        Self { origin: Instant::now(), late, until, late_at, pause }
    }

    /// Whether a yield would probably be late, so that a party without work blocks at once.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        // No clock is read on a machine that has room.
        until != 0 && nanos(self.origin.elapsed()) < until
    }

    /// Yields the core once. False if it came back late: look once more, then block.
    pub fn yield_core(&self) -> bool {
        let before = Instant::now();
        rustix::thread::sched_yield();
        let after = Instant::now();
        self.note(after.saturating_duration_since(before), after)
    }

    fn note(&self, took: Duration, now: Instant) -> bool {
        if took < self.late {
            return true;
        }
        let now = nanos(now.saturating_duration_since(self.origin));
        let last = self.late_at.load(Ordering::Relaxed);
        // One that began before the last one came back was late for the same reason, on another thread.
        let is_same = now.saturating_sub(nanos(took)) < last;
        if last == 0 || is_same || now > last.saturating_add(nanos(APART)) {
            self.late_at.store(now.max(last), Ordering::Relaxed);
            return false;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        self.until.store(now.saturating_add(pause), Ordering::Relaxed);
        self.late_at.store(now.saturating_add(pause), Ordering::Relaxed);
        self.pause.store(pause.saturating_mul(2).min(nanos(PAUSE_MAX)), Ordering::Relaxed);
        false
    }

    /// What was waited for came between yields of which none was late.
    #[inline]
    pub fn on_time(&self) {
        if self.until.load(Ordering::Relaxed) != 0 {
            self.until.store(0, Ordering::Relaxed);
            self.pause.store(nanos(PAUSE_MIN), Ordering::Relaxed);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Counts `sched_yield`s since work was last seen.
///
/// A wake across idle cores costs 15 to 25 us, a yield below 1 us when nobody else wants the core; so a budget of about
/// two round trips of yields comes before blocking. Where yields are late ([`Crowding`]) it blocks at once.
#[derive(Debug)]
pub struct Backoff {
    yields: u32,
    max_yields: u32,
    /// One was late since work was last seen.
    is_late: bool,
    crowding: Crowding,
}

impl Backoff {
    /// Says that it is time to block after `max_yields` yields without work. With 0 it never yields.
    pub fn new(max_yields: u32) -> Self {
        Self { yields: 0, max_yields, is_late: false, crowding: Crowding::default() }
    }

    /// Work was seen: the count starts again.
    #[inline]
    pub fn reset(&mut self) {
        if self.yields > 0 && !self.is_late {
            self.crowding.on_time();
        }
        (self.yields, self.is_late) = (0, false);
    }

    /// Work was done that somebody on this core may wait for: the count starts again, and the core is offered once.
    pub fn hand_over(&mut self) {
        self.reset();
        if !self.crowding.is_crowded() {
            self.crowding.yield_core();
        }
    }

    /// Yields the core once; false, without a yield, when it is time to block.
    pub fn snooze(&mut self) -> bool {
        if self.crowding.is_crowded() {
            self.yields = 0;
            return false;
        }
        // After a late yield the caller looks once more, and then blocks.
        if self.is_late || self.yields >= self.max_yields {
            return false;
        }
        self.is_late = !self.crowding.yield_core();
        self.yields += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes a yield that was late and came back now.
    fn late(crowding: &Crowding, now: Instant) -> bool {
        crowding.note(LATE, now)
    }

    /// For how long nobody yields from `now` on.
    fn pause(crowding: &Crowding, now: Instant) -> u64 {
        crowding.until.load(Ordering::Relaxed).saturating_sub(nanos(now - crowding.origin))
    }

    #[test]
    fn late_yields_in_a_row_stop_yields_for_a_pause_that_doubles_until_one_is_on_time() {
        let crowding = Crowding::default();
        let mut now = crowding.origin + Duration::from_secs(3600);
        assert!(crowding.note(LATE - Duration::from_nanos(1), now));
        assert!(!late(&crowding, now) && !crowding.is_crowded(), "the first may be a hiccup");
        let mut pauses = vec![];
        for _ in 0..10 {
            // Tried again as soon as it may be.
            now += LATE + Duration::from_nanos(pauses.last().copied().unwrap_or(0));
            assert!(!late(&crowding, now) && crowding.is_crowded());
            pauses.push(pause(&crowding, now));
        }
        assert_eq!(pauses[..3], [16_000_000, 32_000_000, 64_000_000]);
        assert_eq!(pauses.last(), Some(&nanos(PAUSE_MAX)));
        crowding.on_time();
        assert!(!crowding.is_crowded());
        now += PAUSE_MAX + APART;
        late(&crowding, now);
        assert_eq!(pause(&crowding, now), nanos(PAUSE_MIN));
    }

    #[test]
    fn hiccups_stop_no_yields() {
        let crowding = Crowding::default();
        let mut now = crowding.origin + Duration::from_secs(3600);
        for _ in 0..10 {
            // Two threads, one of which comes back a little later.
            assert!(!late(&crowding, now) && !late(&crowding, now + LATE / 2), "both look, and then block once");
            assert!(!crowding.is_crowded());
            now += APART + LATE;
        }
        late(&crowding, now);
        late(&crowding, now + APART);
        assert!(crowding.is_crowded());
    }

    #[test]
    fn a_pause_ends_by_itself() {
        let crowding = Crowding::default();
        crowding.until.store(1, Ordering::Relaxed);
        assert!(!crowding.is_crowded(), "a nanosecond after its making");
    }

    #[test]
    fn a_crowded_party_blocks_at_once() {
        let mut backoff = Backoff::new(3);
        let now = Instant::now() + Duration::from_secs(3600);
        backoff.crowding.note(LATE, now);
        backoff.crowding.note(LATE, now + LATE);
        assert!(!backoff.snooze());
    }
}
