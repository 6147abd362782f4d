//! Letting a fast stream between two programs of this host run ahead of its reader.
//!
//! Owns when and for how long. It must never wait for a writer that has stopped, nor often.
//!
//! Bytes that left the writing core's own cache are read several times faster than those that are still in it. A reader
//! that keeps up reads the slow ones for ever, and slows the writer down by it; one that lets more than that cache come in
//! between finds the fast ones from then on, since the ring then stays full. So once in a while, in a ring that grew because its stream
//! filled it, the reader looks away for a moment.

use std::time::{Duration, Instant};

/// A writer that is so far ahead has left its own cache; those of today's cores are smaller.
const AHEAD_BYTES: u64 = 5 << 19;
/// Bytes between two such moments.
const PERIOD_BYTES: u64 = 16 << 20;
/// The longest moment.
const MOMENT: Duration = Duration::from_micros(150);
/// A writer that wrote nothing for so long has stopped.
const STOPPED: Duration = Duration::from_micros(5);

/// When the next moment is, and how the present one goes.
#[derive(Debug, Default)]
pub(super) struct Gather {
    due_at: u64,
    begun: Option<Instant>,
    there: u64,
    moved: Option<Instant>,
}

impl Gather {
    /// Whether a moment may begin at this offset of the stream.
    #[inline]
    pub(super) fn is_due(&self, head: u64) -> bool {
        head >= self.due_at
    }

    pub(super) fn begin(&mut self, head: u64) {
        self.due_at = head.saturating_add(PERIOD_BYTES);
        (self.begun, self.moved, self.there) = (None, None, 0);
    }

    /// Whether to look away a little longer, with so many bytes there now.
    pub(super) fn goes_on(&mut self, there: u64) -> bool {
        self.goes_on_at(there, Instant::now())
    }

    fn goes_on_at(&mut self, there: u64, now: Instant) -> bool {
        if there == 0 || there >= AHEAD_BYTES {
            return false;
        }
        let begun = *self.begun.get_or_insert(now);
        if there != self.there {
            (self.there, self.moved) = (there, Some(now));
        }
        let still = self.moved.map_or(Duration::ZERO, |moved| now.saturating_duration_since(moved));
        now.saturating_duration_since(begun) < MOMENT && still < STOPPED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_ends_when_enough_is_there_or_nothing_more_comes_or_it_was_long() {
        let begun = Instant::now();
        let at = |us| begun + Duration::from_micros(us);
        let mut gather = Gather::default();
        assert!(gather.is_due(0));
        gather.begin(100);
        assert!(!gather.is_due(100 + PERIOD_BYTES - 1) && gather.is_due(100 + PERIOD_BYTES));
        assert!(!gather.goes_on_at(0, at(0)), "nobody is kept from waiting as ever");
        assert!(gather.goes_on_at(1000, at(0)) && gather.goes_on_at(2000, at(4)) && gather.goes_on_at(2000, at(8)));
        assert!(!gather.goes_on_at(2000, at(9)), "the writer has stopped");
        gather.begin(0);
        assert!(gather.goes_on_at(AHEAD_BYTES - 1, at(0)) && !gather.goes_on_at(AHEAD_BYTES, at(1)));
        gather.begin(0);
        let mut looks = (0..10_000).take_while(|&us| gather.goes_on_at(1 + us, at(us)));
        assert_eq!(looks.by_ref().count() as u128, MOMENT.as_micros());
    }
}
