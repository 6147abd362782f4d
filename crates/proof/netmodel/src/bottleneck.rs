//! A transmitter with a rate and a queue before it that drops its tail: a port of a switch, or the port of a host.
//!
//! Owns when the last bit of each packet has left. It must never know where a packet comes from or goes to.

use std::collections::VecDeque;
use std::time::Duration;

use verbs::Time;

const NANOS_PER_S: u128 = 1_000_000_000;
const BITS_PER_BYTE: u128 = 8;

/// What a transmitter is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueShape {
    /// Bits a second; 0 for as many as come, and then nothing waits and nothing is dropped or marked.
    pub rate_bits_per_s: u64,
    /// Packets that wait or are being sent, at most. A packet beyond them is dropped.
    pub packets_max: u32,
    /// The same in bytes. Of a packet that is being sent, what is left counts.
    pub bytes_max: u64,
    /// A packet that finds more packets than these waits with a mark (congestion experienced); `None` marks nothing.
    pub mark_above: Option<u32>,
}

impl Default for QueueShape {
    /// No limit.
    fn default() -> Self {
        Self { rate_bits_per_s: 0, packets_max: u32::MAX, bytes_max: u64::MAX, mark_above: None }
    }
}

/// What a transmitter does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// Its last bit leaves at this time.
    Sent {
        /// When.
        at: Time,
        /// The queue was longer than [`QueueShape::mark_above`].
        mark: bool,
    },
    /// The queue is full, so it is dropped.
    Full,
}

/// A transmitter. Packets are offered in the order in which they come; a time before that of an earlier packet counts
/// as that one.
#[derive(Debug)]
pub struct Bottleneck {
    shape: QueueShape,
    now: Time,
    busy_until: Time,
    /// When each packet that waits or is being sent has left; at most `packets_max`.
    leaving: VecDeque<Time>,
}

impl Bottleneck {
    /// Idle, with an empty queue.
    pub fn new(shape: QueueShape) -> Self {
        Self { shape, now: Time::ZERO, busy_until: Time::ZERO, leaving: VecDeque::new() }
    }

    /// Another shape for packets from here on. Those in the queue leave as they would have.
    pub fn set_shape(&mut self, shape: QueueShape) {
        self.shape = shape;
    }

    /// A packet of `bytes` comes.
    pub fn offer(&mut self, now: Time, bytes: usize) -> Passage {
        self.now = self.now.max(now);
        let (now, shape) = (self.now, self.shape);
        if shape.rate_bits_per_s == 0 {
            return Passage::Sent { at: now.max(self.busy_until), mark: false };
        }
        let packets = self.packets(now);
        let waiting = self.busy_until.saturating_since(now);
        if packets >= shape.packets_max as usize || self.bytes_in(waiting) + bytes as u64 > shape.bytes_max {
            return Passage::Full;
        }
        let takes = bytes as u128 * BITS_PER_BYTE * NANOS_PER_S / u128::from(shape.rate_bits_per_s);
        self.busy_until = self.busy_until.max(now) + Duration::from_nanos(u64::try_from(takes).unwrap_or(u64::MAX));
        self.leaving.push_back(self.busy_until);
        Passage::Sent { at: self.busy_until, mark: shape.mark_above.is_some_and(|above| packets > above as usize) }
    }

    /// Packets that wait or are being sent.
    pub fn packets(&mut self, now: Time) -> usize {
        while self.leaving.front().is_some_and(|at| *at <= now) {
            self.leaving.pop_front();
        }
        self.leaving.len()
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        let bits = time.as_nanos() * u128::from(self.shape.rate_bits_per_s) / NANOS_PER_S;
        u64::try_from(bits / BITS_PER_BYTE).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 Mbit/s: a byte in a microsecond.
    const SLOW: QueueShape =
        QueueShape { rate_bits_per_s: 8_000_000, packets_max: u32::MAX, bytes_max: u64::MAX, mark_above: None };

    fn sent(passage: Passage) -> u64 {
        match passage {
            Passage::Sent { at, .. } => at.as_nanos(),
            Passage::Full => panic!("the queue is full"),
        }
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        let mut b = Bottleneck::new(SLOW);
        assert_eq!([1000, 500, 1].map(|bytes| sent(b.offer(Time(0), bytes))), [1_000_000, 1_500_000, 1_501_000]);
        assert_eq!(b.packets(Time(1_499_999)), 2);
        assert_eq!(b.packets(Time(1_500_000)), 1);
        assert_eq!(sent(b.offer(Time(9_000_000), 1000)), 10_000_000, "an idle transmitter begins at once");
    }

    #[test]
    fn the_last_packet_that_fits_is_taken_and_the_next_one_dropped() {
        let mut b = Bottleneck::new(QueueShape { packets_max: 3, ..SLOW });
        (0..3).for_each(|_| assert_ne!(b.offer(Time(0), 1000), Passage::Full));
        assert_eq!(b.offer(Time(999_999), 1), Passage::Full);
        assert_eq!(sent(b.offer(Time(1_000_000), 1)), 3_001_000, "the first has left");
        let mut b = Bottleneck::new(QueueShape { bytes_max: 3000, ..SLOW });
        (0..3).for_each(|_| assert_ne!(b.offer(Time(0), 1000), Passage::Full));
        assert_eq!(b.offer(Time(499_000), 500), Passage::Full);
        assert_eq!(sent(b.offer(Time(500_000), 500)), 3_500_000, "half of the first has left");
    }

    #[test]
    fn a_packet_that_finds_more_than_the_threshold_is_marked() {
        let mut b = Bottleneck::new(QueueShape { packets_max: 5, mark_above: Some(2), ..SLOW });
        let marks: Vec<_> = (0..6)
            .map(|_| match b.offer(Time(0), 10) {
                Passage::Sent { mark, .. } => Some(mark),
                Passage::Full => None,
            })
            .collect();
        assert_eq!(marks, [Some(false), Some(false), Some(false), Some(true), Some(true), None]);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut b = Bottleneck::new(QueueShape { packets_max: 0, bytes_max: 0, ..QueueShape::default() });
        assert_eq!(sent(b.offer(Time(5), 1 << 20)), 5);
        assert_eq!(sent(b.offer(Time(3), 1)), 5, "time does not go back");
    }

    #[test]
    fn a_new_rate_holds_for_packets_that_come_after_it() {
        let mut b = Bottleneck::new(SLOW);
        assert_eq!(sent(b.offer(Time(0), 1000)), 1_000_000);
        b.set_shape(QueueShape { rate_bits_per_s: 80_000_000, ..SLOW });
        assert_eq!(sent(b.offer(Time(0), 1000)), 1_100_000);
        b.set_shape(QueueShape::default());
        assert_eq!(sent(b.offer(Time(0), 1000)), 1_100_000, "it does not overtake what waits");
    }
}
