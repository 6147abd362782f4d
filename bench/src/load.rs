//! Counting calls: those that ended while the load ran at its full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The load runs for this part of the time before it counts.
const WARM_PART: u32 = 4;

/// What the clients of a load share.
#[derive(Debug, Default)]
pub(crate) struct Load {
    calls: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// A load that has not begun.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A call has ended.
    pub(crate) fn on_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether clients may end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Calls a second for that time, after a while in which the clients get going; then the load is over.
    pub(crate) fn rate(&self, time: Duration) -> f64 {
        std::thread::sleep(time / WARM_PART);
        let (before, began) = (self.calls.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(time);
        let calls = self.calls.load(Ordering::Relaxed) - before;
        let rate = calls as f64 / began.elapsed().as_secs_f64();
        self.is_over.store(true, Ordering::Relaxed);
        rate
    }
}

/// The median in microseconds.
pub(crate) fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}
