//! The pair segment: what one process of a host shows to another.
//!
//! Owns its offsets. It must never look at slot contents: those belong to the two applications.
use super::header::{Header, Kind, OwnerWords, word32, word64};
use super::{LayoutError, check_size, pages};
use crate::limits::{PAGE_BYTES, PAIR_SLOTS_MAX, PAIR_SLOTS_MIN, RING_BYTES_MAX, RING_BYTES_MIN, check_power_of_two};
use crate::{Region, RegionError, RingMemory, Word32, Word64};

pub(super) const SLOTS_AT: u64 = PAGE_BYTES;
pub(super) const SLOT_BYTES: u32 = 128;
pub(super) const TAIL_AT: u64 = 0;
pub(super) const HEAD_AT: u64 = 8;
pub(super) const FLAGS_AT: u64 = 16;
pub(super) const WAITING_AT: u64 = 20;
pub(super) const REASON_AT: u64 = 24;
pub(super) const GENERATION_AT: u64 = 28;
pub(super) const OWNER_PID_AT: u64 = 32;
pub(super) const GROWN_AT_AT: u64 = 40;
/// On a line of its own: the peer polls those before it, and looks at this one seldom.
pub(super) const GIVEN_BACK_AT: u64 = 64;
pub(super) const CARRIED_AT: u64 = 72;

/// In the header's page: the number of the next look of this side, and what it tells the peer (see `told`).
pub(super) const LOOKS_AT: u64 = 1024;
pub(super) const TOLD_AT: u64 = 2048;
/// Slots that one word of notes has; above them is the number of the look.
pub(crate) const TOLD_SLOTS: u32 = 32;
/// Bytes of notes for looks of one parity.
pub(super) const TOLD_BYTES: u64 = (PAIR_SLOTS_MAX / TOLD_SLOTS) as u64 * 8;

/// A ring of a pair uses so many bytes at first, and all that it has once these were full.
const PAIR_FIRST_BYTES: u32 = 256 << 10;

/// A pair segment.
#[derive(Debug, Clone)]
pub struct Pair {
    region: Region,
    slots: u32,
    ring_bytes: u32,
}

impl Pair {
    /// Bytes for `slots` connections with rings of `ring_bytes` (a multiple of 4096 for what [`Pair::format`] allows).
    pub const fn bytes(slots: u32, ring_bytes: u32) -> u64 {
        rings_offset(slots) + slots as u64 * ring_bytes as u64
    }

    /// Bytes of its header and words, before the rings.
    pub const fn words_bytes(slots: u32) -> u64 {
        rings_offset(slots)
    }

    /// Owner side: writes the header into zeroed memory. `slots` is a power of two, 1..=4096, `ring_bytes` one from 4
    /// KiB to 8 MiB.
    pub fn format(region: Region, slots: u32, ring_bytes: u32) -> Result<Self, RegionError> {
        let pair = Self::over(region, slots, ring_bytes)?;
        pair.header().write(&pair.region, 0)?;
        Ok(pair)
    }

    /// Peer side (read-only region): checks the header against what the control message said.
    pub fn open(region: Region, slots: u32, ring_bytes: u32) -> Result<Self, LayoutError> {
        let pair = Self::over(region, slots, ring_bytes)?;
        pair.header().check(&pair.region)?;
        Ok(pair)
    }

    fn over(region: Region, slots: u32, ring_bytes: u32) -> Result<Self, RegionError> {
        check_power_of_two("pair slots", slots, PAIR_SLOTS_MIN, PAIR_SLOTS_MAX)?;
        check_power_of_two("ring bytes", ring_bytes, RING_BYTES_MIN, RING_BYTES_MAX)?;
        check_size(&region, Self::bytes(slots, ring_bytes))?;
        Ok(Self { region, slots, ring_bytes })
    }

    fn header(&self) -> Header {
        Header {
            kind: Kind::Pair,
            total_bytes: Self::bytes(self.slots, self.ring_bytes),
            slots: self.slots,
            slot_bytes: SLOT_BYTES,
            slots_offset: SLOTS_AT,
            a2e_offset: 0,
            e2a_offset: 0,
            ring_bytes: self.ring_bytes,
            rings_offset: rings_offset(self.slots),
            engines: 0,
        }
    }

    /// Words of slot `i`; panics if `i >= slots()`.
    pub fn slot(&self, i: u32) -> PairWords {
        assert!(i < self.slots, "slot {i} of a pair segment with {} slots", self.slots);
        let base = SLOTS_AT + u64::from(i) * u64::from(SLOT_BYTES);
        let region = &self.region;
        PairWords {
            tail: word64(region, base + TAIL_AT),
            head: word64(region, base + HEAD_AT),
            flags: word32(region, base + FLAGS_AT),
            waiting: word32(region, base + WAITING_AT),
            reason: word32(region, base + REASON_AT),
            generation: word32(region, base + GENERATION_AT),
            owner_pid: word32(region, base + OWNER_PID_AT),
            grown_at: word64(region, base + GROWN_AT_AT),
            given_back: word64(region, base + GIVEN_BACK_AT),
            carried: word64(region, base + CARRIED_AT),
        }
    }

    /// The number of the next look of the maker at what the peer tells; 0: it looks at datagrams alone.
    pub(crate) fn looks(&self) -> Word64 {
        word64(&self.region, LOOKS_AT)
    }

    /// The words in which the maker notes slots from `32 * number`: for looks with an even number, and for the others.
    pub(crate) fn told(&self, number: u32) -> [Word64; 2] {
        [0, 1].map(|parity| self.told_word(parity, number.into()))
    }

    /// All words with notes for looks of this parity, in the order of their slots.
    pub(crate) fn told_at(&self, look: u64) -> impl Iterator<Item = Word64> + '_ {
        (0..u64::from(self.slots.div_ceil(TOLD_SLOTS))).map(move |number| self.told_word(look % 2, number))
    }

    fn told_word(&self, parity: u64, number: u64) -> Word64 {
        word64(&self.region, TOLD_AT + parity * TOLD_BYTES + number * 8)
    }

    /// Where ring `i` lies; panics if `i >= slots()`.
    pub fn ring(&self, i: u32) -> RingMemory {
        assert!(i < self.slots, "ring {i} of a pair segment with {} slots", self.slots);
        let bytes = u64::from(self.ring_bytes);
        RingMemory { region: self.region.clone(), offset: rings_offset(self.slots) + u64::from(i) * bytes, bytes }
    }

    /// Bytes of each ring that are used before it grows.
    pub fn first_bytes(&self) -> u64 {
        u64::from(self.ring_bytes.min(PAIR_FIRST_BYTES))
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of each ring.
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// The owner word of end 0 (the maker; end 1 is not used).
    pub fn owner(&self) -> OwnerWords {
        OwnerWords::of(&self.region, 0)
    }
}

const fn rings_offset(slots: u32) -> u64 {
    SLOTS_AT + pages(slots as u64 * SLOT_BYTES as u64)
}

/// Words of a pair slot, all of the maker of the segment.
#[derive(Debug, Clone)]
pub struct PairWords {
    /// Absolute offset after the last byte written to the own ring.
    pub tail: Word64,
    /// Absolute offset of the next byte to read from the peer's ring.
    pub head: Word64,
    /// Bits of [`crate::app_flag`].
    pub flags: Word32,
    /// Bits of [`crate::waiting`]; see [`crate::PairWaiter`].
    pub waiting: Word32,
    /// Why aborted (docs/reasons.md).
    pub reason: Word32,
    /// Of the connection.
    pub generation: Word32,
    /// Process that uses the slot.
    pub owner_pid: Word32,
    /// Absolute offset from which on the own ring uses all of its bytes; 0: it uses its first bytes only.
    pub grown_at: Word64,
    /// Bit n turns round each time that this side gives loan n of the peer back (docs/use/by-reference.md).
    pub given_back: Word64,
    /// What `tail` was when this side put the slot back; 0 before.
    pub carried: Word64,
}
