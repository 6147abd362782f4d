//! A doorbell: the dirty bitmap of `dirty` at its place in a region.
//!
//! Owns the bounds check and the public form. It must never be put over memory that is read-only or too small.
use crate::dirty::{DirtyBitmap, row_words};
use crate::limits::{SESSION_SLOTS_MAX, SESSION_SLOTS_MIN, check_power_of_two};
use crate::region::Row64;
use crate::sleep;
use crate::{Region, RegionError, Word32};

/// One end of a doorbell: a two-level dirty bitmap in a region.
///
/// Any number of threads may [`ring`](Doorbell::ring); one takes. A clone is a further handle on the same bitmap with
/// its own place in the rotation.
#[derive(Debug, Clone)]
pub struct Doorbell(DirtyBitmap<Row64>);

impl Doorbell {
    /// Bytes that a doorbell for `slots` slots takes.
    pub const fn bytes(slots: u32) -> u64 {
        row_words(slots) as u64 * 8
    }

    /// Over `bytes(slots)` bytes at `offset` (a multiple of 8), which are zero or those of a doorbell in use. `slots`
    /// is a power of two, 64..=65536.
    pub fn new(region: &Region, offset: u64, slots: u32) -> Result<Self, RegionError> {
        check_power_of_two("doorbell slots", slots, SESSION_SLOTS_MIN, SESSION_SLOTS_MAX)?;
        let row = Row64::new(region, offset, row_words(slots))?;
        Ok(Self(DirtyBitmap::new(row, slots)))
    }

    /// Marks a slot dirty. The thread that takes it sees what the caller stored before. Panics if `slot >= slots`.
    #[inline]
    pub fn ring(&self, slot: u32) {
        self.mark(slot);
    }

    /// As [`ring`](Doorbell::ring), and says which thread must ask [`must_wake`](Doorbell::must_wake). True: the
    /// caller. False: the slot was dirty already, and the thread that made it dirty asks. So a stream of small writes
    /// costs neither marks nor wakes while the other side has not looked.
    #[inline]
    pub fn mark(&self, slot: u32) -> bool {
        self.0.set(slot)
    }

    /// After [`ring`](Doorbell::ring): fence(SeqCst), then whether the other side sleeps and must be woken.
    #[inline]
    pub fn must_wake(&self, sleep_flag: &Word32) -> bool {
        sleep::must_wake(sleep_flag)
    }

    /// Takes up to `budget` dirty slots, appends them to `out` and clears them; O(dirty). Returns how many.
    ///
    /// Cursors that the other side stored before it rang are visible afterwards. Slots not taken stay dirty; the next
    /// call goes on after the last slot taken, so that none starves. A hostile peer can make it report any existing
    /// slots, also clean ones, but no others.
    #[inline]
    pub fn take(&mut self, out: &mut Vec<u32>, budget: usize) -> usize {
        self.0.take(out, budget)
    }

    /// Whether any slot may be dirty (used after the sleep flag was stored and fenced, see [`crate::prepare_sleep`]).
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.0.any()
    }
}
