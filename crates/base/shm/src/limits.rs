//! Sizes that the layout of docs/inside/shared-memory.md allows, and the check of a count or a size against its bounds.

use crate::RegionError;

/// The layout's page, also on hosts with larger ones.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Fewest slots of a session.
pub(crate) const SESSION_SLOTS_MIN: u32 = 64;
/// Most slots of a session.
pub(crate) const SESSION_SLOTS_MAX: u32 = 65536;
/// Engines of a daemon at most.
pub const ENGINES_MAX: u32 = 16;

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

/// Slots of a session, and the engines among which they are divided.
///
/// Each engine has a range of them, with a doorbell of its own: as many slots for each, a power of two. With a number
/// of engines that is no power of two the slots behind the last range are nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionShape {
    /// Slots: a power of two up to 65,536, and at least 64 for each engine.
    pub slots: u32,
    /// Engines, 1 to [`ENGINES_MAX`].
    pub engines: u32,
}

impl From<u32> for SessionShape {
    /// So many slots, all of one engine.
    fn from(slots: u32) -> Self {
        Self { slots, engines: 1 }
    }
}

impl SessionShape {
    /// The shape in which each of so many engines has at least `per_engine` slots, or as many as a session can have.
    pub fn for_engines(engines: u32, per_engine: u32) -> Self {
        let engines = engines.clamp(1, ENGINES_MAX);
        let ranges = engines.next_power_of_two();
        let most = SESSION_SLOTS_MAX / ranges;
        let each = per_engine.clamp(SESSION_SLOTS_MIN, most).next_power_of_two();
        Self { slots: ranges * each, engines }
    }

    /// Slots of each engine; 0 for no engine.
    pub fn slots_per_engine(self) -> u32 {
        let ranges = self.engines.checked_next_power_of_two();
        ranges.and_then(|ranges| self.slots.checked_div(ranges)).unwrap_or(0)
    }

    /// The first slot of an engine.
    pub fn first_slot(self, engine: u32) -> u32 {
        engine * self.slots_per_engine()
    }

    /// Refuses what no session can have.
    pub(crate) fn check(self) -> Result<(), RegionError> {
        let Self { slots, engines } = self;
        if !(1..=ENGINES_MAX).contains(&engines) {
            let (value, max) = (engines.into(), ENGINES_MAX.into());
            return Err(RegionError::Geometry { what: "engines of a session", value, min: 1, max });
        }
        let min = SESSION_SLOTS_MIN * engines.next_power_of_two();
        check_power_of_two("session slots", slots, min, SESSION_SLOTS_MAX)
    }
}

/// Refuses counts and sizes that the layout does not allow.
pub(crate) fn check_power_of_two(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), RegionError> {
    if value.is_power_of_two() && (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(RegionError::Geometry { what, value: value.into(), min: min.into(), max: max.into() })
    }
}
