//! The window: how many packets and bytes of a QP may be unacknowledged.
//!
//! The transport has no congestion control of its own. Additive increase and multiplicative decrease by bytes keep a
//! lossy path or a slow receiver from collapsing under go-back-N, where each loss repeats everything behind it: a
//! smaller window also repeats less.

use crate::limits::{INITIAL_PACKETS, PACKET_CHARGE_BYTES, WINDOW_FLOOR_PACKETS};

/// Packets by which a window grows per window acknowledged, once it has met a loss.
const INCREASE_PACKETS: u64 = 8;
/// A loss leaves so many tenths of the window.
const DECREASE_TENTHS: u64 = 7;

/// Window of one QP.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    cap_packets: u64,
    cap_bytes: u64,
    packet_bytes: u64,
    bytes: u64,
    /// Below it the window doubles per round trip, above it grows by [`INCREASE_PACKETS`].
    threshold: u64,
}

impl Window {
    /// A window that starts with [`INITIAL_PACKETS`] and doubles in each round trip until it meets a loss. `cap_bytes`
    /// is at least one packet.
    pub(crate) fn new(cap_packets: u32, cap_bytes: u64, mtu: usize) -> Self {
        let packet_bytes = mtu as u64 + PACKET_CHARGE_BYTES;
        let cap_bytes = cap_bytes.max(packet_bytes);
        Self {
            cap_packets: u64::from(cap_packets).max(1),
            cap_bytes,
            packet_bytes,
            bytes: (INITIAL_PACKETS * packet_bytes).min(cap_bytes),
            threshold: u64::MAX,
        }
    }

    /// Other bounds while the QP runs.
    pub(crate) fn limit(&mut self, cap_packets: u32, cap_bytes: u64) {
        self.cap_packets = u64::from(cap_packets).max(1);
        self.cap_bytes = cap_bytes.max(self.packet_bytes);
        self.bytes = self.bytes.min(self.cap_bytes);
    }

    /// Packets that may be in flight.
    pub(crate) const fn cap_packets(&self) -> u64 {
        self.cap_packets
    }

    /// Bytes that may be in flight.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What a full packet is charged.
    pub(crate) const fn packet_bytes(&self) -> u64 {
        self.packet_bytes
    }

    pub(crate) fn on_acked(&mut self, bytes: u64) {
        if self.bytes >= self.cap_bytes {
            return;
        }
        let step = if self.bytes < self.threshold {
            bytes
        } else {
            (bytes * INCREASE_PACKETS * self.packet_bytes / self.bytes).max(1)
        };
        self.bytes = (self.bytes + step).min(self.cap_bytes);
    }

    /// Something was lost, and the requester goes back to it. It goes back once in a round trip, so each time the cut
    /// before has had its effect.
    pub(crate) fn on_loss(&mut self) {
        self.threshold = (self.bytes * DECREASE_TENTHS / 10).max(self.floor());
        self.bytes = self.threshold;
    }

    /// Nothing came back for a whole timeout: start small. Where no round trip was ever measured (`is_measured`), the
    /// path may just be longer than the timeout, and says nothing of what it holds.
    pub(crate) fn on_timeout(&mut self, is_measured: bool) {
        if is_measured {
            self.on_loss();
        }
        self.bytes = self.floor();
    }

    fn floor(&self) -> u64 {
        (WINDOW_FLOOR_PACKETS * self.packet_bytes).min(self.cap_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1024 + PACKET_CHARGE_BYTES;

    #[test]
    fn it_doubles_in_each_round_trip_from_a_few_packets() {
        let mut window = Window::new(1000, 100 * PACKET, 1024);
        let mut rounds = Vec::new();
        while window.bytes() < 100 * PACKET {
            rounds.push(window.bytes() / PACKET);
            window.on_acked(window.bytes());
        }
        assert_eq!(rounds, [64]);
        assert_eq!(Window::new(1000, 1, 1024).bytes(), PACKET, "one packet at least");
    }

    #[test]
    fn bounds_change_while_it_runs() {
        let mut window = Window::new(1000, 100 * PACKET, 1024);
        window.limit(10, 20 * PACKET);
        assert_eq!((window.cap_packets(), window.bytes()), (10, 20 * PACKET));
        window.limit(500, 40 * PACKET);
        window.on_acked(100 * PACKET);
        assert_eq!((window.cap_packets(), window.bytes()), (500, 40 * PACKET));
    }

    #[test]
    fn losses_cut_it_and_it_grows_back() {
        let mut window = Window::new(1000, 100 * PACKET, 1024);
        window.on_acked(100 * PACKET);
        window.on_loss();
        assert_eq!(window.bytes() / PACKET, 70);
        window.on_loss();
        assert_eq!(window.bytes() / PACKET, 49);
        for _ in 0..10_000 {
            window.on_acked(PACKET);
        }
        assert_eq!(window.bytes() / PACKET, 100);
        window.on_timeout(true);
        assert_eq!(window.bytes() / PACKET, WINDOW_FLOOR_PACKETS);
        for _ in 0..100 {
            window.on_loss();
        }
        assert_eq!(window.bytes() / PACKET, WINDOW_FLOOR_PACKETS, "never below the floor");
    }
}
