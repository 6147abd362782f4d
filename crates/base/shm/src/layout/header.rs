//! The header page: writing it, and comparing it with what it must be.
//!
//! Owns the header's offsets. It must never return a value of the header for use as geometry.
use std::sync::atomic::Ordering;

use super::{LAYOUT_VERSION, LayoutError};
use crate::{Region, RegionError, Word32, Word64};

/// `RAASSHM1` as the bytes lie in memory.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"RAASSHM1");

pub(super) const MAGIC_AT: u64 = 0;
pub(super) const VERSION_AT: u64 = 8;
pub(super) const KIND_AT: u64 = 12;
pub(super) const TOTAL_BYTES_AT: u64 = 16;
pub(super) const EPOCH_AT: u64 = 24;
pub(super) const SLOTS_AT: u64 = 32;
pub(super) const SLOT_BYTES_AT: u64 = 36;
pub(super) const SLOTS_OFFSET_AT: u64 = 40;
pub(super) const A2E_OFFSET_AT: u64 = 48;
pub(super) const E2A_OFFSET_AT: u64 = 56;
pub(super) const RING_BYTES_AT: u64 = 64;
pub(super) const FLAGS_AT: u64 = 68;
pub(super) const RINGS_OFFSET_AT: u64 = 72;
pub(super) const ENGINES_AT: u64 = 80;
pub(super) const OWNERS_AT: u64 = 128;
pub(super) const OWNER_BYTES: u64 = 32;

pub(super) const OWNER_PID_AT: u64 = 0;
pub(super) const OWNER_UID_AT: u64 = 4;
pub(super) const OWNER_GENERATION_AT: u64 = 8;
pub(super) const OWNER_FLAGS_AT: u64 = 12;
pub(super) const OWNER_TOKEN_AT: u64 = 16;

/// The kinds of segment that have a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Session = 1,
    EnginePage = 2,
    Pair = 3,
}

/// All fields of a header that are fixed when the segment is made (the epoch is not).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) total_bytes: u64,
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
    pub(super) slots_offset: u64,
    pub(super) a2e_offset: u64,
    pub(super) e2a_offset: u64,
    pub(super) ring_bytes: u32,
    pub(super) rings_offset: u64,
    pub(super) engines: u32,
}

impl Header {
    /// Writes the header; the magic last, so that a half-written one is refused.
    pub(super) fn write(&self, region: &Region, epoch: u64) -> Result<(), RegionError> {
        if !region.is_writable() {
            return Err(RegionError::ReadOnly);
        }
        region.word32(VERSION_AT)?.store(LAYOUT_VERSION, Ordering::Relaxed);
        region.word64(EPOCH_AT)?.store(epoch, Ordering::Relaxed);
        for (_, at, value) in self.narrow() {
            region.word32(at)?.store(value, Ordering::Relaxed);
        }
        for (_, at, value) in self.wide() {
            region.word64(at)?.store(value, Ordering::Relaxed);
        }
        // PAIRS WITH the acquire load of the magic in `check`.
        region.word64(MAGIC_AT)?.store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Compares each field of a segment's header with `self`.
    pub(super) fn check(&self, region: &Region) -> Result<(), LayoutError> {
        // PAIRS WITH the release store of the magic in `write`.
        expect("magic", region.word64(MAGIC_AT)?.load(Ordering::Acquire), MAGIC)?;
        let found = region.word32(VERSION_AT)?.load(Ordering::Relaxed);
        if found != LAYOUT_VERSION {
            return Err(LayoutError::Version { found });
        }
        for (what, at, expected) in self.narrow() {
            expect(what, region.word32(at)?.load(Ordering::Relaxed).into(), expected.into())?;
        }
        for (what, at, expected) in self.wide() {
            expect(what, region.word64(at)?.load(Ordering::Relaxed), expected)?;
        }
        Ok(())
    }

    fn narrow(&self) -> [(&'static str, u64, u32); 6] {
        [
            ("kind", KIND_AT, self.kind as u32),
            ("slots", SLOTS_AT, self.slots),
            ("slot_bytes", SLOT_BYTES_AT, self.slot_bytes),
            ("ring_bytes", RING_BYTES_AT, self.ring_bytes),
            ("flags", FLAGS_AT, 0),
            ("engines", ENGINES_AT, self.engines),
        ]
    }

    fn wide(&self) -> [(&'static str, u64, u64); 5] {
        [
            ("total_bytes", TOTAL_BYTES_AT, self.total_bytes),
            ("slots_offset", SLOTS_OFFSET_AT, self.slots_offset),
            ("a2e_offset", A2E_OFFSET_AT, self.a2e_offset),
            ("e2a_offset", E2A_OFFSET_AT, self.e2a_offset),
            ("rings_offset", RINGS_OFFSET_AT, self.rings_offset),
        ]
    }
}

fn expect(what: &'static str, found: u64, expected: u64) -> Result<(), LayoutError> {
    if found == expected { Ok(()) } else { Err(LayoutError::Header { what, found, expected }) }
}

/// The owner word of one end of a segment. What it says about the other end is only that end's claim.
#[derive(Debug, Clone)]
pub struct OwnerWords {
    /// Process.
    pub pid: Word32,
    /// User.
    pub uid: Word32,
    /// Raised by fork, descriptor passing and adoption.
    pub generation: Word32,
    /// Bits of [`crate::owner_flag`].
    pub flags: Word32,
    /// Names the session to a restarted daemon, which checks it by a MAC.
    pub token: Word64,
}

impl OwnerWords {
    /// Of end 0 or 1; panics on another number.
    pub(super) fn of(region: &Region, end: usize) -> Self {
        assert!(end < 2, "a segment has the ends 0 and 1, not {end}");
        let base = OWNERS_AT + end as u64 * OWNER_BYTES;
        Self {
            pid: word32(region, base + OWNER_PID_AT),
            uid: word32(region, base + OWNER_UID_AT),
            generation: word32(region, base + OWNER_GENERATION_AT),
            flags: word32(region, base + OWNER_FLAGS_AT),
            token: word64(region, base + OWNER_TOKEN_AT),
        }
    }
}

const IN_LAYOUT: &str = "the constructor checked that the region holds the whole layout";

/// A word at an offset of the layout, after the region's size was checked against it.
pub(super) fn word32(region: &Region, at: u64) -> Word32 {
    region.word32(at).expect(IN_LAYOUT)
}

/// As [`word32`].
pub(super) fn word64(region: &Region, at: u64) -> Word64 {
    region.word64(at).expect(IN_LAYOUT)
}
