//! How many clients have a turn at a time.
//!
//! Owns the size of the group. It is at least the one that was set, and grows while others wait and few of those that
//! have a turn have a request when the worker looks: then the worker is faster than they are, and a slice would pass for
//! little. It shrinks again when most of them have one. The paper's groups have a fixed size, that of the NIC's caches.

use std::time::{Duration, Instant};

/// It is looked at so often in each slice.
const LOOKS_OF_SLICE: u32 = 8;
/// Of one in so many having a request and fewer, the group grows.
const FEW: u64 = 4;
/// Of one in so many having a request and more, it shrinks.
const MANY: u64 = 2;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct GroupSize {
    group: usize,
    widest: usize,
    now: usize,
    /// Since when is counted.
    since: Instant,
    /// Seats that were looked at.
    looked: u64,
    /// Requests that were found there.
    found: u64,
}

impl GroupSize {
    pub(super) fn new((group, widest): (u16, u16), now: Instant) -> Self {
        let (group, widest) = (usize::from(group), usize::from(widest));
        Self { group, widest, now: group, since: now, looked: 0, found: 0 }
    }

    /// Clients that may have a turn now.
    pub(super) fn clients(&self) -> usize {
        self.now
    }

    /// The worker looked at so many seats, and found so many requests.
    pub(super) fn on_look(&mut self, seats: usize, requests: usize) {
        self.looked += seats as u64;
        self.found += requests as u64;
    }

    /// Follows what was found, a few times in each slice. Says whether the group grew.
    pub(super) fn follow(&mut self, now: Instant, slice: Duration, does_any_wait: bool) -> bool {
        if now.saturating_duration_since(self.since) < slice / LOOKS_OF_SLICE {
            return false;
        }
        let step = self.group.div_ceil(4);
        let (are_few, are_many) = (self.found * FEW <= self.looked, self.found * MANY > self.looked);
        let before = self.now;
        if does_any_wait && are_few {
            self.now = (self.now + step).min(self.widest);
        } else if are_many {
            self.now = self.now.saturating_sub(step).max(self.group);
        }
        (self.since, self.looked, self.found) = (now, 0, 0);
        self.now > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(8);

    /// So many times in a row, looks at `seats` seats with `requests` in them.
    fn after(group: &mut GroupSize, times: u32, (seats, requests): (usize, usize), does_any_wait: bool) -> usize {
        for _ in 0..times {
            let now = group.since + SLICE / LOOKS_OF_SLICE;
            group.on_look(seats, requests);
            group.follow(now, SLICE, does_any_wait);
        }
        group.clients()
    }

    #[test]
    fn it_grows_while_others_wait_for_those_that_call_seldom() {
        let mut group = GroupSize::new((40, 300), Instant::now());
        assert_eq!(after(&mut group, 10, (40, 2), false), 40, "nobody waits");
        assert_eq!(after(&mut group, 3, (40, 2), true), 70);
        assert_eq!(after(&mut group, 1000, (0, 0), true), 300);
        assert_eq!(after(&mut group, 10, (40, 15), true), 300, "neither few nor many");
        assert_eq!(after(&mut group, 1000, (40, 39), true), 40, "the worker has enough to do");
    }

    #[test]
    fn it_is_looked_at_a_few_times_in_a_slice() {
        let begin = Instant::now();
        let mut group = GroupSize::new((4, 40), begin);
        assert!(!group.follow(begin + SLICE / LOOKS_OF_SLICE - Duration::from_nanos(1), SLICE, true));
        assert!(group.follow(begin + SLICE / LOOKS_OF_SLICE, SLICE, true));
    }
}
