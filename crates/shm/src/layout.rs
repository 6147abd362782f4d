//! Typed views of the segments of docs/shm-layout.md.
use crate::{Doorbell, Region, RegionError, Word32, Word64};

/// Layout version of this build.
pub const LAYOUT_VERSION: u32 = 1;

/// Bits of `app_flags` and of a pair slot's `flags`.
pub mod app_flag { /// No bytes after the tail. 
    pub const FIN: u32 = 1; /// Will not read. 
    pub const STOP: u32 = 2; /// Slot given back. 
    pub const CLOSED: u32 = 4; /// Reset. 
    pub const ABORT: u32 = 8; }
/// Bits of `engine_flags`.
pub mod engine_flag { /// No bytes after rx_tail. 
    pub const FIN: u32 = 1; /// Peer will not read. 
    pub const STOP: u32 = 2; /// Connection reset. 
    pub const RESET: u32 = 4; }
/// Values of a session slot's `state`.
pub mod slot_state { /// Not in use. 
    pub const FREE: u32 = 0; /// Being set up. 
    pub const CONNECTING: u32 = 1; /// Usable. 
    pub const ESTABLISHED: u32 = 2; /// Over. 
    pub const CLOSED: u32 = 3; }

/// The session segment: one application and the engine.
#[derive(Debug, Clone)]
pub struct Session { _r: Region }
impl Session {
    /// Bytes of a session segment with `slots` slots.
    pub fn bytes(slots: u32) -> u64 { todo!() }
    /// Writes the header into zeroed memory (daemon side).
    pub fn format(region: Region, slots: u32, epoch: u64) -> Result<Self, RegionError> { todo!() }
    /// Checks the header against what the control message said, takes private copies of the geometry.
    pub fn open(region: Region, slots: u32) -> Result<Self, LayoutError> { todo!() }
    /// Slots.
    pub fn slots(&self) -> u32 { todo!() }
    /// The memory.
    pub fn region(&self) -> &Region { todo!() }
    /// Application -> engine.
    pub fn a2e(&self) -> Doorbell { todo!() }
    /// Engine -> application.
    pub fn e2a(&self) -> Doorbell { todo!() }
    /// The application's sleep flag.
    pub fn app_sleep(&self) -> Word32 { todo!() }
    /// Words of slot `i`; panics if `i >= slots()`.
    pub fn slot(&self, i: u32) -> SlotWords { todo!() }
}
/// Words of a session slot.
#[derive(Debug, Clone)]
pub struct SlotWords {
    /// See docs/shm-layout.md.
    pub tx_tail: Word64, /// .
    pub rx_head: Word64, /// .
    pub app_flags: Word32, /// .
    pub app_wait: Word32, /// .
    pub app_generation: Word32, /// .
    pub app_owner_pid: Word32, /// .
    pub tx_head: Word64, /// .
    pub rx_tail: Word64, /// .
    pub state: Word32, /// .
    pub engine_flags: Word32, /// .
    pub reason: Word32, /// .
    pub generation: Word32, /// .
    pub epoch: Word64,
}
/// The engine page: the sleep flag that applications read.
#[derive(Debug, Clone)]
pub struct EnginePage { _r: Region }
impl EnginePage {
    /// Bytes.
    pub const BYTES: u64 = 8192;
    /// Daemon side.
    pub fn format(region: Region, epoch: u64) -> Result<Self, RegionError> { todo!() }
    /// Application side.
    pub fn open(region: Region) -> Result<Self, LayoutError> { todo!() }
    /// 1 while the engine sleeps.
    pub fn engine_sleep(&self) -> Word32 { todo!() }
    /// Incarnation of the daemon.
    pub fn epoch(&self) -> u64 { todo!() }
}
/// A pair segment.
#[derive(Debug, Clone)]
pub struct Pair { _r: Region }
impl Pair {
    /// Bytes for `slots` connections with rings of `ring_bytes`.
    pub fn bytes(slots: u32, ring_bytes: u32) -> u64 { todo!() }
    /// Owner side.
    pub fn format(region: Region, slots: u32, ring_bytes: u32) -> Result<Self, RegionError> { todo!() }
    /// Peer side (read-only region).
    pub fn open(region: Region, slots: u32, ring_bytes: u32) -> Result<Self, LayoutError> { todo!() }
    /// Words of slot `i`.
    pub fn slot(&self, i: u32) -> PairWords { todo!() }
    /// Where ring `i` lies.
    pub fn ring(&self, i: u32) -> crate::RingMemory { todo!() }
    /// Slots.
    pub fn slots(&self) -> u32 { todo!() }
}
/// Words of a pair slot.
#[derive(Debug, Clone)]
pub struct PairWords { /// . 
    pub tail: Word64, /// . 
    pub head: Word64, /// . 
    pub flags: Word32, /// . 
    pub waiting: Word32, /// . 
    pub reason: Word32, /// . 
    pub generation: Word32, /// . 
    pub owner_pid: Word32 }
/// Why a segment's header was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Another version.
    #[error("segment has layout version {found}, this build speaks {LAYOUT_VERSION}: use the same release of library and daemon")]
    Version { /// Found. 
        found: u32 },
    /// Header and control message disagree, or magic is wrong.
    #[error("segment header: {what} is {found}, expected {expected}")]
    Header { /// Field. 
        what: &'static str, /// Found. 
        found: u64, /// Expected. 
        expected: u64 },
    /// The region is too small.
    #[error(transparent)]
    Region(#[from] RegionError),
}
