//! The engine page: what all applications of a host read of the daemon's engines.
//!
//! Owns its offsets. It must never hold anything of one application: all of them map it.
use std::io;
use std::sync::atomic::Ordering;

use super::header::{EPOCH_AT, Header, Kind, word32, word64};
use super::{LayoutError, check_size};
use crate::limits::{ENGINES_MAX, PAGE_BYTES};
use crate::{Life, Region, RegionError, Segment, Word32};

pub(super) const ENGINE_SLEEP_AT: u64 = PAGE_BYTES;
/// From one engine's sleep flag to the next: each is in cache lines of its own, with the line that a processor fetches
/// beside it.
pub(super) const ENGINE_SLEEP_STRIDE: u64 = 128;

/// Of the header page, where nothing else is stored: applications look at it in each call.
pub(super) const LIFE_AT: u64 = PAGE_BYTES / 2;

/// The engine page: the sleep flags that applications read, and whether the daemon lives.
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
    engines: 0,
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

    /// Application side: shows the page of a daemon that came after this one's, to all words of this page too.
    pub fn follow(&self, next: &Segment) -> io::Result<()> {
        Self::open(next.region().clone()).map_err(io::Error::other)?;
        if next.region().len() != self.region.len() {
            return Err(io::Error::other(format!("{} bytes, not {}", next.region().len(), self.region.len())));
        }
        self.region.show_instead(next.fd())
    }

    /// 1 while the engine with this number sleeps; panics if `engine >= ENGINES_MAX`.
    pub fn engine_sleep(&self, engine: u32) -> Word32 {
        assert!(engine < ENGINES_MAX, "engine {engine} of at most {ENGINES_MAX}");
        word32(&self.region, ENGINE_SLEEP_AT + u64::from(engine) * ENGINE_SLEEP_STRIDE)
    }

    /// Daemon side: says in [`EnginePage::life`] that this process lives, until what is returned is dropped or the
    /// process ends.
    pub fn begin_life(&self) -> io::Result<Life> {
        Life::begin(&self.region, LIFE_AT)
    }

    /// For [`Life::is_over`]; 0 if the daemon could not say it.
    pub fn life(&self) -> Word32 {
        word32(&self.region, LIFE_AT)
    }

    /// Incarnation of the daemon.
    pub fn epoch(&self) -> u64 {
        word64(&self.region, EPOCH_AT).load(Ordering::Acquire)
    }
}
