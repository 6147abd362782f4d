//! What the link is like, as JSON. Both directions are alike, with chances of their own.

use std::time::Duration;

use netmodel::{LinkShape, QueueShape};
use serde::Deserialize;

/// Bytes that a frame takes on an Ethernet beside itself: preamble, check sum, gap.
pub(crate) const FRAMING_BYTES: usize = 8 + 4 + 12;
/// Shortest frame on an Ethernet, without its check sum.
pub(crate) const FRAME_BYTES_MIN: usize = 60;

/// The link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// Seed of all chances.
    seed: u64,
    /// Bits a second of each direction, framing included; 0 for as many as the relay can carry.
    rate_bits_per_s: u64,
    /// Packets of a queue.
    queue_packets: u32,
    /// A packet that finds more than these before it is marked, if its sender asked for marks.
    mark_above_packets: Option<u32>,
    /// Delay of one direction.
    delay_ns: u64,
    /// Packets that are lost, of a million.
    loss_per_million: u32,
    /// Packets that are late by up to `late_max_ns`, of a million.
    reorder_per_million: u32,
    late_max_ns: u64,
}

impl Default for Settings {
    /// No rate, no delay, no fault.
    fn default() -> Self {
        Self {
            seed: 1,
            rate_bits_per_s: 0,
            queue_packets: 100,
            mark_above_packets: None,
            delay_ns: 0,
            loss_per_million: 0,
            reorder_per_million: 0,
            late_max_ns: 0,
        }
    }
}

impl Settings {
    /// One direction.
    pub(crate) fn shape(&self, direction: usize) -> LinkShape {
        LinkShape {
            seed: self.seed.wrapping_mul(2).wrapping_add(direction as u64),
            queue: QueueShape {
                rate_bits_per_s: self.rate_bits_per_s,
                packets_max: self.queue_packets,
                mark_above: self.mark_above_packets,
                ..QueueShape::default()
            },
            delay: Duration::from_nanos(self.delay_ns),
            loss_per_million: self.loss_per_million,
            reorder_per_million: self.reorder_per_million,
            late_max: Duration::from_nanos(self.late_max_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_misspelt_ones_refused() {
        let read: Settings = serde_json::from_str(r#"{"delay_ns": 5, "loss_per_million": 100}"#).expect("settings");
        assert_eq!(read, Settings { delay_ns: 5, loss_per_million: 100, ..Settings::default() });
        let error = serde_json::from_str::<Settings>(r#"{"los_per_million": 100}"#).expect_err("misspelt").to_string();
        assert!(error.contains("los_per_million"), "{error}");
    }

    #[test]
    fn directions_have_chances_of_their_own() {
        let [there, back] = [0, 1].map(|direction| Settings::default().shape(direction));
        assert_ne!(there.seed, back.seed);
        assert_eq!(LinkShape { seed: 0, ..there }, LinkShape { seed: 0, ..back });
    }
}
