//! The longest turn of a thread that serves everybody, in time of a processor.
//!
//! Owns what counts as a turn: from when the thread begins with one piece of work until it looks at others' again. It
//! must never read the thread's clock for each of many short turns, because that is a system call.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use verbs::Time;

/// A turn that took less is not looked at.
const LONG: Duration = Duration::from_micros(500);
/// The thread's clock is read so often at most, but at the end of long turns. A turn may be found longer by so much.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Turns {
    began: Time,
    /// When the thread's clock was read, and what it said.
    read: Option<(Time, Duration)>,
    longest: Duration,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { began: Time::ZERO, read: None, longest: Duration::ZERO }
    }

    /// A turn begins.
    #[inline]
    pub(crate) fn begin(&mut self, now: Time) {
        self.began = now;
        if self.read.is_none_or(|(at, _)| now.saturating_since(at) >= LOOK_EVERY) {
            self.read = Some((now, spent_by_thread()));
        }
    }

    /// It is over.
    #[inline]
    pub(crate) fn end(&mut self, now: Time) {
        let took = now.saturating_since(self.began);
        if took >= LONG && took > self.longest {
            // Others may have had the processor meanwhile.
            let before = self.read.map_or(Duration::ZERO, |(_, spent)| spent);
            self.longest = self.longest.max(took.min(spent_by_thread().saturating_sub(before)));
        }
    }

    /// Microseconds of the longest one; 0: none took long.
    pub(crate) fn longest_us(&self) -> u64 {
        u64::try_from(self.longest.as_micros()).unwrap_or(u64::MAX)
    }
}

fn spent_by_thread() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_turn_is_as_long_as_its_thread_worked() {
        let mut turns = Turns::new();
        let origin = Instant::now();
        let now = || Time::ZERO + origin.elapsed();
        for _ in 0..100 {
            turns.begin(now());
            turns.end(now());
        }
        turns.begin(now());
        std::thread::sleep(Duration::from_millis(50));
        turns.end(now());
        assert!(turns.longest_us() < 40_000, "a wait is no work: {} us", turns.longest_us());
        turns.begin(now());
        let before = spent_by_thread();
        while spent_by_thread() - before < Duration::from_millis(60) {}
        turns.end(now());
        assert!(turns.longest_us() >= 60_000, "{} us", turns.longest_us());
    }
}
