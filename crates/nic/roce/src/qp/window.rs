//! The window: how many packets and bytes of a QP may be unacknowledged.
//!
//! The transport has no congestion control of its own. Additive increase and multiplicative decrease by bytes keep a
//! lossy path or a slow receiver from collapsing under go-back-N, where each loss repeats everything behind it: a
//! smaller window also repeats less.

use crate::limits::{PACKET_CHARGE_BYTES, WINDOW_FLOOR_PACKETS};

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
    /// Losses of packets before this one belong to the same event as the last cut.
    cut_until: u64,
}

impl Window {
    /// A window that starts wide open. `cap_bytes` is at least one packet.
    pub(crate) fn new(cap_packets: u32, cap_bytes: u64, mtu: usize) -> Self {
        let packet_bytes = mtu as u64 + PACKET_CHARGE_BYTES;
        let cap_bytes = cap_bytes.max(packet_bytes);
        Self {
            cap_packets: u64::from(cap_packets).max(1),
            cap_bytes,
            packet_bytes,
            bytes: cap_bytes,
            threshold: cap_bytes,
            cut_until: 0,
        }
    }

    /// Other bounds while the QP runs.
    pub(crate) fn limit(&mut self, cap_packets: u32, cap_bytes: u64) {
        let was_open = self.bytes == self.cap_bytes;
        self.cap_packets = u64::from(cap_packets).max(1);
        self.cap_bytes = cap_bytes.max(self.packet_bytes);
        self.bytes = if was_open { self.cap_bytes } else { self.bytes.min(self.cap_bytes) };
    }

    /// Whether a packet of `charge` bytes may join `packets` with `bytes` that are in flight. One always may.
    pub(crate) const fn admits(&self, packets: u64, bytes: u64, charge: u64) -> bool {
        packets == 0 || (packets < self.cap_packets && bytes + charge <= self.bytes)
    }

    /// Whether a full packet would not be admitted: the last one before must ask for an ACK.
    pub(crate) const fn is_full(&self, packets: u64, bytes: u64) -> bool {
        !self.admits(packets, bytes, self.packet_bytes)
    }

    /// Full packets that may join what is in flight.
    pub(crate) fn room_packets(&self, packets: u64, bytes: u64) -> u64 {
        let by_bytes = self.bytes.saturating_sub(bytes) / self.packet_bytes;
        let room = by_bytes.min(self.cap_packets.saturating_sub(packets));
        if packets == 0 { room.max(1) } else { room }
    }

    /// Full packets that the window holds now.
    pub(crate) fn packets(&self) -> u64 {
        (self.bytes / self.packet_bytes).clamp(1, self.cap_packets)
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

    /// A packet before `sent` and not before `lost` was lost. One cut for all losses of one flight.
    pub(crate) fn on_loss(&mut self, lost: u64, sent: u64) {
        if lost < self.cut_until {
            return;
        }
        self.cut_until = sent;
        self.threshold = (self.bytes * DECREASE_TENTHS / 10).max(self.floor());
        self.bytes = self.threshold;
    }

    /// Nothing came back for a whole timeout: start small.
    pub(crate) fn on_timeout(&mut self, sent: u64) {
        self.cut_until = sent;
        self.threshold = (self.bytes * DECREASE_TENTHS / 10).max(self.floor());
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
    fn one_packet_always_goes() {
        let window = Window::new(4, 1, 1024);
        assert!(window.admits(0, 0, PACKET));
        assert!(!window.admits(1, PACKET, 1));
        assert_eq!(window.room_packets(0, 0), 1);
    }

    #[test]
    fn caps_hold() {
        let window = Window::new(4, 100 * PACKET, 1024);
        assert!(window.admits(3, 3 * PACKET, PACKET));
        assert!(!window.admits(4, 4 * PACKET, 1));
        assert!(window.is_full(4, 0) && !window.is_full(3, 3 * PACKET));
        let window = Window::new(400, 10 * PACKET, 1024);
        assert!(window.admits(9, 9 * PACKET, PACKET) && !window.admits(9, 9 * PACKET + 1, PACKET));
        assert_eq!(window.room_packets(3, 3 * PACKET), 7);
    }

    #[test]
    fn a_flight_is_cut_once_and_grows_back() {
        let mut window = Window::new(1000, 100 * PACKET, 1024);
        window.on_loss(5, 100);
        assert_eq!(window.packets(), 70);
        window.on_loss(50, 120);
        assert_eq!(window.packets(), 70, "same flight");
        window.on_loss(100, 170);
        assert_eq!(window.packets(), 49);
        for _ in 0..10_000 {
            window.on_acked(PACKET);
        }
        assert_eq!(window.packets(), 100);
        window.on_timeout(500);
        assert_eq!(window.packets(), WINDOW_FLOOR_PACKETS);
        for n in 500..600 {
            window.on_loss(n, n + 1);
        }
        assert_eq!(window.packets(), WINDOW_FLOOR_PACKETS, "never below the floor");
    }
}
