//! Whether a stream is bulk: much came without a pause, or anything over a long path. There a TCP connection of its own
//! brings most: it recovers by itself from what is lost, and grows its window by itself, while the streams of a lane share
//! one. And it takes several round trips to make.
//!
//! Owns the count. It must never call a stream bulk twice.

use std::time::Duration;

use verbs::Time;

use crate::limits::BULK_PAUSE;

/// What came since the last pause.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    bytes: u64,
    last: Time,
    is_told: bool,
}

impl Bulk {
    /// What comes is not looked at.
    pub(crate) fn forget(&mut self) {
        self.is_told = true;
    }

    /// Whether it is known, or not looked at.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Bytes came; where `is_early` any are enough, otherwise `near`. True, once: the stream is bulk.
    #[inline]
    pub(crate) fn on_arrival(&mut self, bytes: u32, near: u64, is_early: bool, now: Time) -> bool {
        if self.is_told {
            return false;
        }
        let pause: Duration = now.saturating_since(self.last);
        self.last = now;
        self.bytes = if pause >= BULK_PAUSE { 0 } else { self.bytes } + u64::from(bytes);
        self.is_told = is_early || self.bytes >= near;
        self.is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BULK_BYTES;

    #[test]
    fn over_a_long_path_the_first_byte_is_enough() {
        let mut bulk = Bulk::default();
        assert!(!bulk.on_arrival(1, BULK_BYTES, false, Time::ZERO));
        assert!(bulk.on_arrival(1, BULK_BYTES, true, Time::ZERO));
        assert!(!bulk.on_arrival(1, BULK_BYTES, true, Time::ZERO), "once");
    }

    #[test]
    fn a_stream_without_a_pause_is_bulk_once_and_one_with_pauses_never() {
        let piece = 60 << 10;
        let pieces = u32::try_from(BULK_BYTES).unwrap().div_ceil(piece);
        let (mut bulk, mut paused) = (Bulk::default(), Bulk::default());
        let mut now = Time::ZERO + Duration::from_secs(5);
        for n in 1..=3 * pieces {
            now = now + BULK_PAUSE / 2;
            assert_eq!(bulk.on_arrival(piece, BULK_BYTES, false, now), n == pieces, "{n}");
        }
        for _ in 0..30 {
            now = now + BULK_PAUSE;
            for n in 1..pieces {
                assert!(!paused.on_arrival(piece, BULK_BYTES, false, now), "{n}");
            }
        }
    }
}
