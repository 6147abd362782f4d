//! Typed views of the segments of docs/shm-layout.md.
//!
//! Owns the numbers of that document: offsets, sizes, limits, flag values. It must never take offsets or sizes from a
//! shared page. The caller passes what the control message said, the header is compared with it once, and all further
//! offsets are computed from private copies.
use crate::{Region, RegionError};

mod engine_page;
mod header;
mod pair;
mod session;
#[cfg(test)]
mod tests;

pub use engine_page::EnginePage;
pub use header::OwnerWords;
pub use pair::{Pair, PairWords};
pub use session::{Session, SlotWords};

/// Layout version of this build.
pub const LAYOUT_VERSION: u32 = 3;

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

/// Bits of `app_flags` and of a pair slot's `flags`.
pub mod app_flag {
    /// No bytes after the tail; stored after the final tail, with release.
    pub const FIN: u32 = 1;
    /// Will not read any more.
    pub const STOP: u32 = 2;
    /// The slot is given back.
    pub const CLOSED: u32 = 4;
    /// Reset: bytes in flight are dropped. In a pair's flags a FIN beside it came before it, and the reader gets the
    /// end in order.
    pub const ABORT: u32 = 8;
}

/// Bits of `engine_flags`.
pub mod engine_flag {
    /// No bytes after `rx_tail`; stored after the final tail, with release.
    pub const FIN: u32 = 1;
    /// The peer will not read any more.
    pub const STOP: u32 = 2;
    /// The connection was reset; `reason` says why. A FIN beside it stays true for the reader.
    pub const RESET: u32 = 4;
}

/// Values of a session slot's `state`.
pub mod slot_state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// Being set up.
    pub const CONNECTING: u32 = 1;
    /// Usable.
    pub const ESTABLISHED: u32 = 2;
    /// Over; the application gives the slot back.
    pub const CLOSED: u32 = 3;
}

/// Bits of a pair slot's `waiting`, and of `app_wait`.
pub mod waiting {
    /// Until there are bytes to read.
    pub const READABLE: u32 = 1;
    /// Until there is room to write.
    pub const WRITABLE: u32 = 2;
    /// Either: what FIN, STOP and ABORT end.
    pub const ANY: u32 = READABLE | WRITABLE;
    /// One sleep, counted in the bits above: a pair's peer answers each with one message.
    pub const SLEEP: u32 = ANY + 1;
}

/// Bits of the `flags` of an owner word.
pub mod owner_flag {
    /// The end is attached.
    pub const ATTACHED: u32 = 1;
    /// The end said that it is gone.
    pub const DETACHED: u32 = 2;
    /// The end lost its rights.
    pub const REVOKED: u32 = 4;
    /// A restarted daemon is taking the segment over.
    pub const ADOPTING: u32 = 8;
}

/// Why a segment's header was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Another version.
    #[error(
        "segment has layout version {found}, this build speaks {LAYOUT_VERSION}: use the same release of library and daemon"
    )]
    Version {
        /// Version in the header.
        found: u32,
    },
    /// Header and control message disagree, or the magic is wrong.
    #[error("segment header: {what} is {found}, expected {expected}")]
    Header {
        /// Field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// The geometry is not allowed, or the region is too small.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Refuses counts and sizes that the layout does not allow.
pub(crate) fn check_power_of_two(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), RegionError> {
    if value.is_power_of_two() && (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(RegionError::Geometry { what, value: value.into(), min: min.into(), max: max.into() })
    }
}

/// Refuses a region that is smaller than its layout.
fn check_size(region: &Region, bytes: u64) -> Result<(), RegionError> {
    if region.len() < bytes {
        return Err(RegionError::OutOfBounds { offset: 0, len: bytes, size: region.len() });
    }
    Ok(())
}

const fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}
