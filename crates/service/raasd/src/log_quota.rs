//! Lines of log that others can cause: so many in a while, then one that says how many were left out.
//!
//! Owns counting, not the clock. It must never let the log grow with the others' effort.

use std::time::{Duration, Instant};

/// The window.
const WINDOW: Duration = Duration::from_secs(10);

/// A quota of lines.
#[derive(Debug)]
pub(crate) struct LogQuota {
    lines: u32,
    since: Instant,
    used: u32,
    left_out: u64,
}

impl LogQuota {
    /// So many lines in [`WINDOW`].
    pub(crate) fn new(lines: u32, now: Instant) -> Self {
        Self { lines, since: now, used: 0, left_out: 0 }
    }

    /// Whether a line may be written; if so, how many were left out before it, if any.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Option<u64>> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.used) = (now, 0);
        }
        if self.used >= self.lines {
            self.left_out += 1;
            return None;
        }
        self.used += 1;
        Some(Some(std::mem::take(&mut self.left_out)).filter(|n| *n > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_costs_ten_lines_and_is_counted() {
        let start = Instant::now();
        let mut quota = LogQuota::new(10, start);
        let written = (0..1000).filter(|_| quota.take(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(quota.take(start + WINDOW), Some(Some(990)));
        assert_eq!(quota.take(start + WINDOW), Some(None));
    }
}
