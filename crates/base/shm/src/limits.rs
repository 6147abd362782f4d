//! Sizes that the layout of docs/shm-layout.md allows, and the check of a count or a size against its bounds.

use crate::RegionError;

/// The layout's page, also on hosts with larger ones.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Fewest slots of a session.
pub(crate) const SESSION_SLOTS_MIN: u32 = 64;
/// Most slots of a session.
pub(crate) const SESSION_SLOTS_MAX: u32 = 65536;
/// Fewest slots of a pair segment.
pub(crate) const PAIR_SLOTS_MIN: u32 = 1;
/// Most slots of a pair segment.
pub(crate) const PAIR_SLOTS_MAX: u32 = 4096;
/// Smallest ring, bytes. Daemon, engine and library take this bound and the next from here.
pub const RING_BYTES_MIN: u32 = 4096;
/// Largest ring, bytes.
pub const RING_BYTES_MAX: u32 = 8 << 20;

/// The ring size in bytes that somebody gets who wants `wanted`, where no ring is larger than `max`, itself a ring size:
/// the next power of two from [`RING_BYTES_MIN`] to `max`.
pub fn round_ring_bytes(wanted: u32, max: u32) -> u32 {
    wanted.clamp(RING_BYTES_MIN, max.max(RING_BYTES_MIN)).next_power_of_two().min(max)
}

/// Refuses counts and sizes that the layout does not allow.
pub(crate) fn check_power_of_two(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), RegionError> {
    if value.is_power_of_two() && (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(RegionError::Geometry { what, value: value.into(), min: min.into(), max: max.into() })
    }
}
