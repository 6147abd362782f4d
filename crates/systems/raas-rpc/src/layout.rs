//! Where slots lie in the server's memory.
//!
//! Owns the arithmetic. A slab is one client's: a ring of slots for requests, and behind it one for responses. Behind all
//! slabs come a word for each client, and the seats that clients with turns use one after the other: rings for requests.

use crate::frame::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES};

/// Slots begin at multiples of this, so no two share a cache line.
const LINE_BYTES: u64 = 64;
/// A client's word: how far the bytes go that it has laid down.
pub(crate) const WORD_BYTES: u64 = 8;

/// The layout of a server's slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    slots: u64,
    request_bytes: u64,
    response_bytes: u64,
}

impl Layout {
    /// For payloads of at most these lengths.
    pub(crate) fn new(slots: u16, request_bytes_max: u32, response_bytes_max: u32) -> Self {
        let slot = |header: usize, payload: u32| (header as u64 + u64::from(payload)).next_multiple_of(LINE_BYTES);
        Self {
            slots: u64::from(slots.max(1)),
            request_bytes: slot(REQUEST_HEADER_BYTES, request_bytes_max),
            response_bytes: slot(RESPONSE_HEADER_BYTES, response_bytes_max),
        }
    }

    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slots * (self.request_bytes + self.response_bytes)
    }

    /// Bytes of a seat.
    pub(crate) fn seat_bytes(&self) -> u64 {
        self.slots * self.request_bytes
    }

    /// Where the words of so many clients begin.
    pub(crate) fn words_at(&self, clients: u32) -> u64 {
        u64::from(clients) * self.slab_bytes()
    }

    /// Where the seats begin.
    pub(crate) fn seats_at(&self, clients: u32) -> u64 {
        (self.words_at(clients) + u64::from(clients) * WORD_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// Bytes for so many clients and seats.
    pub(crate) fn bytes(&self, clients: u32, seats: u32) -> u64 {
        self.seats_at(clients) + u64::from(seats) * self.seat_bytes()
    }

    /// Bytes of the ring in which a client with so many calls under way lays its requests down: as many of the longest
    /// as it has, and one that the ring's end may cut off.
    pub(crate) fn ring_bytes(&self, window: u16) -> u64 {
        ((u64::from(window) + 1) * self.request_bytes).next_power_of_two()
    }

    /// The slot of a call.
    pub(crate) fn slot_of(&self, sequence: u64) -> u64 {
        sequence % self.slots
    }

    /// Where the request of a slot lies, from the beginning of the slab.
    pub(crate) fn request_at(&self, slot: u64) -> u64 {
        slot % self.slots * self.request_bytes
    }

    /// Where the response of a slot lies.
    pub(crate) fn response_at(&self, slot: u64) -> u64 {
        self.slots * self.request_bytes + slot % self.slots * self.response_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_fill_the_slab() {
        let layout = Layout::new(3, 100, 33);
        let mut places: Vec<(u64, u64)> = (0..3).map(|slot| (layout.request_at(slot), 140)).collect();
        places.extend((0..3).map(|slot| (layout.response_at(slot), 65)));
        for pair in places.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{places:?}");
        }
        let (at, len) = places[5];
        assert!(at + len <= layout.slab_bytes());
        assert_eq!(layout.slot_of(7), 1);
        assert!(
            layout.words_at(5) == 5 * layout.slab_bytes() && layout.words_at(5) + 5 * WORD_BYTES <= layout.seats_at(5)
        );
        assert_eq!(layout.bytes(5, 2), layout.seats_at(5) + 2 * (layout.request_at(2) + layout.request_at(1)));
        assert!(layout.ring_bytes(3) >= 4 * 140);
    }
}
