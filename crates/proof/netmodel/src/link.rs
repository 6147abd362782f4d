//! One direction of a link: a queue with a rate, then a line that takes time, loses packets, and makes some late.
//!
//! Owns the chances. It must never look into a packet.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use crate::{Bottleneck, Passage, QueueShape};

/// What shares are of.
const MILLION: u32 = 1_000_000;

/// What one direction of a link is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkShape {
    /// Seed of its chances. What becomes of the n-th packet by chance depends on the seed and on n alone.
    pub seed: u64,
    /// Its transmitter.
    pub queue: QueueShape,
    /// From the last bit sent to the last bit received.
    pub delay: Duration,
    /// Packets that are lost on the line, of a million.
    pub loss_per_million: u32,
    /// Packets that are late, so that others overtake them, of a million.
    pub reorder_per_million: u32,
    /// A late packet is late by up to this.
    pub late_max: Duration,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Arrives {
        /// When.
        at: Time,
        /// With a mark of congestion, if it can carry one.
        mark: bool,
    },
    /// The line loses it.
    Lost,
    /// The queue is full.
    Full,
}

/// Packets by their fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All that came.
    pub offered: u64,
    /// Those lost on the line.
    pub lost: u64,
    /// Those dropped for a full queue.
    pub full: u64,
    /// Those that arrive late.
    pub reordered: u64,
    /// Those that arrive with a mark.
    pub marked: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    shape: LinkShape,
    queue: Bottleneck,
    rng: SmallRng,
    counts: Counts,
}

impl Link {
    /// An idle link.
    pub fn new(shape: LinkShape) -> Self {
        let (queue, rng) = (Bottleneck::new(shape.queue), SmallRng::seed_from_u64(shape.seed));
        Self { shape, queue, rng, counts: Counts::default() }
    }

    /// Another shape from here on: its chances begin anew and counts at zero. Packets in the queue leave as they would
    /// have.
    pub fn set_shape(&mut self, shape: LinkShape) {
        self.queue.set_shape(shape.queue);
        self.rng = SmallRng::seed_from_u64(shape.seed);
        (self.shape, self.counts) = (shape, Counts::default());
    }

    /// Counts since the shape was set.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A packet of `bytes` comes.
    pub fn offer(&mut self, now: Time, bytes: usize) -> Fate {
        let shape = self.shape;
        // Each packet draws as many numbers as any other, whatever becomes of it.
        let lost = self.rng.random_range(0..MILLION) < shape.loss_per_million;
        let late = self.rng.random_range(0..MILLION) < shape.reorder_per_million;
        let late_max = u64::try_from(shape.late_max.as_nanos()).unwrap_or(u64::MAX);
        let lateness = Duration::from_nanos(self.rng.random_range(0..=late_max));
        self.counts.offered += 1;
        let (sent, mark) = match self.queue.offer(now, bytes) {
            Passage::Sent { at, mark } => (at, mark),
            Passage::Full => {
                self.counts.full += 1;
                return Fate::Full;
            }
        };
        if lost {
            self.counts.lost += 1;
            return Fate::Lost;
        }
        self.counts.reordered += u64::from(late);
        self.counts.marked += u64::from(mark);
        Fate::Arrives { at: sent + shape.delay + if late { lateness } else { Duration::ZERO }, mark }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: u64 = 100_000;

    fn lossy(seed: u64) -> LinkShape {
        LinkShape { seed, loss_per_million: 10_000, ..LinkShape::default() }
    }

    /// Which of the packets are lost, offered `gap_ns` apart.
    fn lost(shape: LinkShape, gap_ns: u64) -> Vec<u64> {
        let mut link = Link::new(shape);
        (0..PACKETS).filter(|n| link.offer(Time(n * gap_ns), 1500) == Fate::Lost).collect()
    }

    #[test]
    fn a_seed_loses_the_same_packets_whenever_they_come() {
        let found = lost(lossy(7), 10);
        assert_eq!(found, lost(lossy(7), 12_345));
        assert_ne!(found, lost(lossy(8), 10));
    }

    #[test]
    fn shares_are_what_was_asked_for() {
        for per_million in [100, 1000, 10_000, 50_000] {
            let found = lost(LinkShape { loss_per_million: per_million, ..lossy(3) }, 10).len() as f64;
            let wanted = PACKETS as f64 * f64::from(per_million) / f64::from(MILLION);
            // Five standard deviations of a binomial distribution.
            assert!((found - wanted).abs() < 5.0 * wanted.sqrt(), "{found} of {PACKETS} lost, not {wanted}");
        }
        assert_eq!(lost(LinkShape { loss_per_million: 0, ..lossy(3) }, 10), []);
        assert_eq!(lost(LinkShape { loss_per_million: MILLION, ..lossy(3) }, 10).len() as u64, PACKETS);
    }

    #[test]
    fn a_lost_packet_took_its_time_on_the_line() {
        let queue = QueueShape { rate_bits_per_s: 12_000_000, ..QueueShape::default() };
        let mut link = Link::new(LinkShape { queue, loss_per_million: MILLION, ..LinkShape::default() });
        assert_eq!(link.offer(Time(0), 1500), Fate::Lost);
        link.set_shape(LinkShape { queue, ..LinkShape::default() });
        assert_eq!(link.offer(Time(0), 1500), Fate::Arrives { at: Time(2_000_000), mark: false });
    }

    #[test]
    fn late_packets_arrive_within_their_bound_and_others_on_time() {
        let (delay, late_max) = (Duration::from_micros(500), Duration::from_micros(100));
        let mut link = Link::new(LinkShape { delay, late_max, reorder_per_million: 100_000, ..LinkShape::default() });
        let mut late = 0;
        for n in 0..PACKETS {
            let Fate::Arrives { at, mark: false } = link.offer(Time(n), 100) else { panic!("packet {n} is gone") };
            let took = at.saturating_since(Time(n));
            assert!(took >= delay && took <= delay + late_max, "{took:?}");
            late += u64::from(took > delay);
        }
        assert!(late > PACKETS / 20 && late <= link.counts().reordered, "{late}: {:?}", link.counts());
    }

    #[test]
    fn every_packet_is_counted_once() {
        let queue =
            QueueShape { rate_bits_per_s: 1_000_000, packets_max: 10, mark_above: Some(5), ..QueueShape::default() };
        let mut link = Link::new(LinkShape { queue, loss_per_million: 100_000, ..LinkShape::default() });
        let mut arrived = 0;
        for n in 0..PACKETS {
            arrived += u64::from(matches!(link.offer(Time(n * 500_000), 100), Fate::Arrives { .. }));
        }
        let counts = link.counts();
        assert_eq!(counts.offered, PACKETS);
        assert_eq!(counts.lost + counts.full + arrived, PACKETS, "{counts:?}");
        assert!(counts.full > 0 && counts.lost > 0 && counts.marked > 0, "{counts:?}");
    }
}
