//! Lines of log that a stranger can cause: so many in a while, then one that says how many were left out.
//!
//! Owns counting, not the clock. It must never let the log grow with the stranger's effort.

use std::time::{Duration, Instant};

/// Lines in one window.
const LINES: u32 = 10;
/// The window.
const WINDOW: Duration = Duration::from_secs(10);

/// A quota of lines.
#[derive(Debug)]
pub(crate) struct LogQuota {
    since: Instant,
    used: u32,
    left_out: u64,
}

impl LogQuota {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, used: 0, left_out: 0 }
    }

    /// Whether a line may be written; if so, how many were left out before it.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.used) = (now, 0);
        }
        if self.used >= LINES {
            self.left_out += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_costs_ten_lines_and_is_counted() {
        let start = Instant::now();
        let mut quota = LogQuota::new(start);
        let written = (0..1000).filter(|_| quota.take(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(quota.take(start + WINDOW), Some(990));
        assert_eq!(quota.take(start + WINDOW), Some(0));
    }
}
