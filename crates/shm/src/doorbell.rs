//! Two-level dirty bitmaps, sleep flags, and the yield-then-block waiter.
use crate::{Region, RegionError, Word32};

/// One end of a doorbell: a two-level dirty bitmap in a region.
#[derive(Debug, Clone)]
pub struct Doorbell { _r: Region }
impl Doorbell {
    /// Bytes that a doorbell for `slots` slots takes.
    pub const fn bytes(slots: u32) -> u64 { 0 }
    /// Over `bytes(slots)` bytes at `offset`.
    pub fn new(region: &Region, offset: u64, slots: u32) -> Result<Self, RegionError> { todo!() }
    /// Marks a slot dirty (with the fence before). The caller published its cursor before. Panics if `slot >= slots`.
    pub fn ring(&self, slot: u32) { todo!() }
    /// After `ring`: fence(SeqCst), then whether the other side sleeps and must be woken.
    pub fn must_wake(&self, sleep_flag: &Word32) -> bool { todo!() }
    /// Takes up to `budget` dirty slots into `out`, clearing them; O(dirty). Ends with fence(SeqCst). Returns how many;
    /// slots not taken stay dirty and round-robin makes sure that none starves.
    pub fn take(&mut self, out: &mut Vec<u32>, budget: usize) -> usize { todo!() }
    /// Whether any slot may be dirty (used after the sleep flag was stored and fenced).
    pub fn is_dirty(&self) -> bool { todo!() }
}

/// Stores the sleep flag and fences; the caller then scans once more before it blocks.
pub fn prepare_sleep(flag: &Word32) { todo!() }
/// Clears the sleep flag.
pub fn end_sleep(flag: &Word32) { todo!() }

/// Yield, then block: counts sched_yields since work was last seen.
#[derive(Debug, Clone)]
pub struct Backoff { yields: u32, max_yields: u32 }
impl Backoff {
    /// Blocks after about `max_yields` yields without work.
    pub const fn new(max_yields: u32) -> Self { Self { yields: 0, max_yields } }
    /// Work was seen.
    pub fn reset(&mut self) { self.yields = 0 }
    /// Yields once; false when it is time to block.
    pub fn snooze(&mut self) -> bool { todo!() }
}
