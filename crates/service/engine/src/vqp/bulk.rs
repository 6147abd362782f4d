//! Whether a stream is to have a TCP connection of its own. It is bulk: much came without a pause, or anything over a long
//! path. There such a connection brings most: it recovers by itself from what is lost, and grows its window by itself,
//! while the streams of a lane share one. And it takes several round trips to make. Or it is a conversation: each message
//! waits for the one before. There no daemon is between the two programs any more.
//!
//! Owns the counts. It must never ask for one stream twice.

use std::time::Duration;

use verbs::Time;

use crate::limits::{BULK_PAUSE, BULK_SHARED_BY, TURN_BYTES_MAX};

/// What came since the last pause.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    bytes: u64,
    last: Time,
    /// Messages in a row that came one by one, each after this side had written.
    turns: u32,
    /// This side wrote since the last one.
    has_answered: bool,
    is_told: bool,
}

/// From when on a stream is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BulkFrom {
    /// Bytes without a pause.
    pub(crate) bytes: u64,
    /// Turns of a conversation.
    pub(crate) turns: u32,
}

impl BulkFrom {
    /// Of a stream on a lane with so many connections: those that share a lane take as much longer for so many bytes, and
    /// making a connection takes no longer.
    #[inline]
    pub(crate) fn of_stream(bytes: u64, turns: u32, connections: u32) -> Self {
        Self { bytes: bytes / u64::from(connections.clamp(1, BULK_SHARED_BY)), turns }
    }

    /// Of messages: those of a conversation alone.
    #[inline]
    pub(crate) fn of_messages(turns: u32) -> Self {
        Self { bytes: u64::MAX, turns }
    }
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

    /// This side wrote.
    #[inline]
    pub(crate) fn on_sent(&mut self) {
        self.has_answered = true;
    }

    /// Bytes came; where `is_early` any are enough. True, once: the stream is to have a connection of its own. `is_small`
    /// is asked of conversations alone: whether few others are on the lane.
    #[inline]
    pub(crate) fn on_arrival(
        &mut self,
        bytes: u32,
        from: BulkFrom,
        is_early: bool,
        now: Time,
        is_small: impl FnOnce() -> bool,
    ) -> bool {
        if self.is_told {
            return false;
        }
        let pause: Duration = now.saturating_since(self.last);
        self.last = now;
        let goes_on = pause < BULK_PAUSE;
        self.bytes = if goes_on { self.bytes } else { 0 } + u64::from(bytes);
        let is_turn = goes_on && self.has_answered && bytes <= TURN_BYTES_MAX;
        self.turns = if is_turn { self.turns.saturating_add(1) } else { 0 };
        self.has_answered = false;
        self.is_told = is_early || self.bytes >= from.bytes || self.turns >= from.turns && is_small();
        self.is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BULK_BYTES;

    const FROM: BulkFrom = BulkFrom { bytes: BULK_BYTES, turns: 4 };

    #[test]
    fn over_a_long_path_the_first_byte_is_enough() {
        let mut bulk = Bulk::default();
        assert!(!bulk.on_arrival(1, FROM, false, Time::ZERO, || false));
        assert!(bulk.on_arrival(1, FROM, true, Time::ZERO, || false));
        assert!(!bulk.on_arrival(1, FROM, true, Time::ZERO, || false), "once");
    }

    #[test]
    fn a_stream_without_a_pause_is_bulk_once_and_one_with_pauses_never() {
        let piece = 60 << 10;
        let pieces = u32::try_from(BULK_BYTES).unwrap().div_ceil(piece);
        let (mut bulk, mut paused) = (Bulk::default(), Bulk::default());
        let mut now = Time::ZERO + Duration::from_secs(5);
        for n in 1..=3 * pieces {
            now = now + BULK_PAUSE / 2;
            assert_eq!(bulk.on_arrival(piece, FROM, false, now, || true), n == pieces, "{n}");
        }
        for _ in 0..30 {
            now = now + BULK_PAUSE;
            for n in 1..pieces {
                assert!(!paused.on_arrival(piece, FROM, false, now, || true), "{n}");
            }
        }
    }

    #[test]
    fn streams_that_share_a_lane_are_bulk_sooner() {
        let from = |connections| BulkFrom::of_stream(BULK_BYTES, 4, connections).bytes;
        assert_eq!([0, 1, 2, 8, 1000].map(from), [1, 1, 2, 8, 8].map(|shared_by| BULK_BYTES / shared_by));
        assert_eq!(BulkFrom::of_messages(4).bytes, u64::MAX);
    }

    #[test]
    fn a_conversation_is_asked_for_once_where_few_others_are() {
        let mut bulk = Bulk::default();
        let mut now = Time::ZERO + Duration::from_secs(5);
        let short = Duration::from_micros(9);
        // One that comes after a pause, five while there are too many others, then few.
        for (pause, is_small, is_told) in [(BULK_PAUSE, true, false)]
            .into_iter()
            .chain([(short, false, false); 5])
            .chain([(short, true, true), (short, true, false)])
        {
            now = now + pause;
            bulk.on_sent();
            assert_eq!(bulk.on_arrival(64, FROM, false, now, || is_small), is_told);
        }
        for (what, breaks) in [
            ("unanswered", (short, 64, false)),
            ("long", (short, TURN_BYTES_MAX + 1, true)),
            ("late", (BULK_PAUSE, 64, true)),
        ] {
            let mut bulk = Bulk::default();
            for n in 0..40 {
                let (pause, bytes, answers) = if n % 4 == 3 { breaks } else { (short, 64, true) };
                if answers {
                    bulk.on_sent();
                }
                now = now + pause;
                assert!(!bulk.on_arrival(bytes, FROM, false, now, || true), "{what}: {n}");
            }
        }
    }
}
