//! The engine page: what all applications of a host read of the engine.
//!
//! Owns its offsets. It must never hold anything of one application: all of them map it.
use std::sync::atomic::Ordering;

use super::header::{EPOCH_AT, Header, Kind, word32, word64};
use super::{LayoutError, check_size};
use crate::limits::PAGE_BYTES;
use crate::{Region, RegionError, Word32};

pub(super) const ENGINE_SLEEP_AT: u64 = PAGE_BYTES;

/// The engine page: the sleep flag that applications read.
#[derive(Debug, Clone)]
pub struct EnginePage {
    region: Region,
}

const HEADER: Header = Header {
    kind: Kind::EnginePage,
    total_bytes: EnginePage::BYTES,
    slots: 0,
    slot_bytes: 0,
    slots_offset: 0,
    a2e_offset: 0,
    e2a_offset: 0,
    ring_bytes: 0,
    rings_offset: 0,
};

impl EnginePage {
    /// Bytes.
    pub const BYTES: u64 = 2 * PAGE_BYTES;

    /// Daemon side: writes the header into zeroed memory. A restarted daemon makes a new page: nobody can map the old
    /// one writable again.
    pub fn format(region: Region, epoch: u64) -> Result<Self, RegionError> {
        check_size(&region, Self::BYTES)?;
        HEADER.write(&region, epoch)?;
        Ok(Self { region })
    }

    /// Application side (read-only region).
    pub fn open(region: Region) -> Result<Self, LayoutError> {
        check_size(&region, Self::BYTES)?;
        HEADER.check(&region)?;
        Ok(Self { region })
    }

    /// 1 while the engine sleeps.
    pub fn engine_sleep(&self) -> Word32 {
        word32(&self.region, ENGINE_SLEEP_AT)
    }

    /// Incarnation of the daemon.
    pub fn epoch(&self) -> u64 {
        word64(&self.region, EPOCH_AT).load(Ordering::Acquire)
    }
}
