//! Yield, then block: how long a party without work keeps its core.
//!
//! Owns the count of yields. It must never spin without yielding: on a busy core the other party could not run.

/// Counts `sched_yield`s since work was last seen.
///
/// A wake across idle cores costs 15 to 25 us, a yield below 1 us when nobody else wants the core; so a budget of about
/// two round trips of yields comes before blocking.
#[derive(Debug, Clone)]
pub struct Backoff {
    yields: u32,
    max_yields: u32,
}

impl Backoff {
    /// Says that it is time to block after `max_yields` yields without work. With 0 it never yields.
    pub const fn new(max_yields: u32) -> Self {
        Self { yields: 0, max_yields }
    }

    /// Work was seen: the count starts again.
    #[inline]
    pub fn reset(&mut self) {
        self.yields = 0;
    }

    /// Work was done that somebody on this core may wait for: the count starts again, and the core is offered once.
    pub fn hand_over(&mut self) {
        self.yields = 0;
        rustix::thread::sched_yield();
    }

    /// Yields the core once; false, without a yield, when it is time to block.
    pub fn snooze(&mut self) -> bool {
        if self.yields >= self.max_yields {
            return false;
        }
        self.yields += 1;
        rustix::thread::sched_yield();
        true
    }
}
