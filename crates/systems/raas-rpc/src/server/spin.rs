//! How long a worker goes on looking at slots after the last request.
//!
//! Owns the promise that busy responses make: a client that knows that the worker looks writes without waking it, which
//! costs the worker's daemon less. Of hundreds of clients each calls so seldom that the usual time would be over. So a
//! worker that has many calls says in its responses that it looks [`BUSY_AWAKE`] times as long.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::frame::BUSY_AWAKE;

/// With so many calls within the usual time a worker is busy.
const BUSY_CALLS: u32 = 32;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct SpinTime {
    awake: Duration,
    /// Since when calls are counted.
    since: Cell<Instant>,
    calls: Cell<u32>,
    is_busy: Cell<bool>,
    /// Until when clients were told that it looks.
    promised: Cell<Instant>,
}

impl SpinTime {
    /// `awake`: the usual time.
    pub(super) fn new(awake: Duration, now: Instant) -> Self {
        let (since, promised) = (Cell::new(now), Cell::new(now));
        Self { awake, since, calls: Cell::new(0), is_busy: Cell::new(false), promised }
    }

    /// A call is answered. Says whether the response is to tell that the worker is busy.
    pub(super) fn on_answer(&self, now: Instant) -> bool {
        self.calls.set(self.calls.get() + 1);
        let passed = now.saturating_duration_since(self.since.get());
        if passed >= self.awake {
            self.is_busy.set(self.awake * self.calls.get() >= passed * BUSY_CALLS);
            self.since.set(now);
            self.calls.set(0);
        }
        let is_busy = self.is_busy.get();
        if is_busy {
            self.promised.set(now + self.awake * BUSY_AWAKE);
        }
        is_busy
    }

    /// Whether clients rely on its looking.
    pub(super) fn is_promised(&self, now: Instant) -> bool {
        now < self.promised.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAKE: Duration = Duration::from_millis(4);

    /// Answers `calls` calls at equal distances within so many of the usual times, and says of each whether it told.
    fn told(spin: &SpinTime, begin: Instant, calls: u32, times: u32) -> Vec<bool> {
        (0..calls).map(|call| spin.on_answer(begin + AWAKE * times * call / calls)).collect()
    }

    #[test]
    fn a_worker_that_has_many_calls_promises_and_keeps_it() {
        let begin = Instant::now();
        let spin = SpinTime::new(AWAKE, begin);
        let told = told(&spin, begin, 10 * BUSY_CALLS, 3);
        assert!(!told[0] && told[told.len() - 1], "{told:?}");
        let last = begin + AWAKE * 3;
        assert!(spin.is_promised(last + AWAKE * (BUSY_AWAKE - 1)));
        assert!(!spin.is_promised(last + AWAKE * BUSY_AWAKE));
    }

    #[test]
    fn a_worker_with_few_calls_promises_nothing() {
        let begin = Instant::now();
        let spin = SpinTime::new(AWAKE, begin);
        assert!(told(&spin, begin, 10 * BUSY_CALLS, 20).iter().all(|told| !told));
        assert!(!spin.is_promised(begin));
    }

    #[test]
    fn one_that_was_busy_stops_promising() {
        let begin = Instant::now();
        let spin = SpinTime::new(AWAKE, begin);
        told(&spin, begin, 10 * BUSY_CALLS, 3);
        let later = begin + AWAKE * 100;
        assert!((0..4).all(|call| !spin.on_answer(later + AWAKE * 2 * call)));
    }
}
