//! What the relay tells about itself: what became of frames, and how late it was.

use hdrhistogram::Histogram;
use netmodel::Counts;
use serde_json::{Value, json};
use std::time::Duration;

/// Latest that is told apart.
const LATE_MAX_NS: u64 = 10_000_000_000;
/// Digits of a lateness.
const DIGITS: u8 = 2;

/// How much later than due frames left, since the settings were made.
#[derive(Debug)]
pub(crate) struct Lateness(Histogram<u64>);

impl Lateness {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LATE_MAX_NS, DIGITS).expect("these bounds are in order"))
    }

    pub(crate) fn note(&mut self, late: Duration) {
        self.0.saturating_record(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn to_json(&self) -> Value {
        let us = |ns: u64| ns as f64 / 1e3;
        json!({
            "p50_us": us(self.0.value_at_quantile(0.5)), "p99_us": us(self.0.value_at_quantile(0.99)),
            "max_us": us(self.0.max()),
        })
    }
}

/// One direction.
pub(crate) fn direction(counts: Counts, bytes: u64, refused: u64, overrun: u64) -> Value {
    json!({
        "frames": counts.offered, "bytes": bytes, "lost": counts.lost, "queue_full": counts.full,
        "reordered": counts.reordered, "marked": counts.marked, "refused": refused, "overrun": overrun,
    })
}
