//! Typed views of the segments of docs/inside/shared-memory.md.
//!
//! Owns the offsets and sizes of that document; its limits are in `limits`, its flag values in `flags`. It must
//! never take offsets or sizes from a shared page. The caller passes what the control message said, the header is
//! compared with it once, and all further offsets are computed from private copies.
use crate::limits::PAGE_BYTES;
use crate::{Region, RegionError};

mod engine_page;
mod header;
mod pair;
mod session;
#[cfg(test)]
mod tests;

pub use engine_page::EnginePage;
pub use header::OwnerWords;
pub(crate) use pair::TOLD_SLOTS;
pub use pair::{Pair, PairWords};
pub use session::{Session, SlotPlace};

/// Layout version of this build.
pub const LAYOUT_VERSION: u32 = 5;

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
