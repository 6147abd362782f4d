//! Mapped memory that others may write at any time: copies and atomics only, never references.
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A bounds or alignment check failed; nothing was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The range does not lie in the region.
    #[error("range {offset}+{len} is outside of a region of {size} bytes")]
    OutOfBounds { /// Start. 
        offset: u64, /// Bytes. 
        len: u64, /// Region size. 
        size: u64 },
    /// The offset is not a multiple of the word size.
    #[error("offset {offset} is not aligned to {align}")]
    Misaligned { /// Offset. 
        offset: u64, /// Needed. 
        align: u64 },
    /// The region is mapped read-only.
    #[error("region is mapped read-only")]
    ReadOnly,
}

/// A piece of memory, shared by reference count; unmapped when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Region(Arc<()>);

impl Region {
    /// Private zeroed anonymous memory (page aligned), for the simulator, tests and the daemon's own buffers.
    pub fn anonymous(len: usize) -> std::io::Result<Self> { todo!() }
    /// Bytes.
    pub fn len(&self) -> u64 { todo!() }
    /// Whether it has no bytes (never).
    pub fn is_empty(&self) -> bool { false }
    /// Whether stores are allowed.
    pub fn is_writable(&self) -> bool { todo!() }
    /// Copies out.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), RegionError> { todo!() }
    /// Copies in.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), RegionError> { todo!() }
    /// A checked handle to an aligned u64.
    pub fn word64(&self, offset: u64) -> Result<Word64, RegionError> { todo!() }
    /// A checked handle to an aligned u32.
    pub fn word32(&self, offset: u64) -> Result<Word32, RegionError> { todo!() }
    /// Gives the pages of the range back to the system; they read as zero afterwards.
    pub fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> { todo!() }
    /// Start of the mapping, for registration with a device.
    pub fn as_ptr(&self) -> *mut u8 { todo!() }
}

/// A u64 in a region. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Word64 { _region: Region }
impl Word64 {
    /// Atomic load.
    pub fn load(&self, order: Ordering) -> u64 { todo!() }
    /// Atomic store (no effect check: the handle to a read-only region cannot be stored to, it panics).
    pub fn store(&self, v: u64, order: Ordering) { todo!() }
    /// Atomic swap.
    pub fn swap(&self, v: u64, order: Ordering) -> u64 { todo!() }
    /// Atomic or.
    pub fn fetch_or(&self, v: u64, order: Ordering) -> u64 { todo!() }
    /// Atomic add.
    pub fn fetch_add(&self, v: u64, order: Ordering) -> u64 { todo!() }
    /// Atomic compare-exchange; Err is the found value.
    pub fn compare_exchange(&self, current: u64, new: u64, ok: Ordering, err: Ordering) -> Result<u64, u64> { todo!() }
}
/// A u32 in a region.
#[derive(Debug, Clone)]
pub struct Word32 { _region: Region }
impl Word32 {
    /// Atomic load.
    pub fn load(&self, order: Ordering) -> u32 { todo!() }
    /// Atomic store.
    pub fn store(&self, v: u32, order: Ordering) { todo!() }
    /// Atomic swap.
    pub fn swap(&self, v: u32, order: Ordering) -> u32 { todo!() }
    /// Atomic or.
    pub fn fetch_or(&self, v: u32, order: Ordering) -> u32 { todo!() }
    /// Atomic and.
    pub fn fetch_and(&self, v: u32, order: Ordering) -> u32 { todo!() }
}
