//! Copies of slices that were lent, into regions of this host.
//!
//! Owns the way that the bytes take: between two mappings, straight from the device into the region, or in pieces. It
//! must never say that it copied what a revoke may have changed meanwhile.

use std::io::IoSlice;
use std::sync::Arc;

use control::RegionAccess;

use super::Region;
use super::completion::Completion;
use super::error::RegionError;
use super::handle::{Handle, Reach};
use super::slice::RegionSlice;

/// Bytes that are copied at a time where nothing can go straight from one region to the other.
const COPY_BYTES: usize = 256 << 10;

impl Handle {
    /// As [`Handle::read_lent`], into memory of a region of this host: from another host the bytes go straight there.
    pub(crate) fn copy_lent(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        to: &Arc<Self>,
        at: u64,
    ) -> Result<(), RegionError> {
        match (self.reach(), to.reach()) {
            (Reach::Here(local), Reach::Here(_)) => {
                self.check_lent_bounds(offset, len)?;
                let place = local.place();
                let copy = |memory: &shm::Region| memory.copy_from(at, &place.memory, offset, len);
                to.access_bytes(RegionAccess::WRITE, at, len, copy)?;
                self.check_unrevoked(local, &place)
            }
            (Reach::There(_), Reach::Here(_)) if Arc::ptr_eq(self.attachment(), to.attachment()) => {
                let slice = RegionSlice::new(to, at, len)?;
                Region::once(Arc::clone(self)).read_into(offset, &[slice])
            }
            _ => self.copy_by_pieces(offset, len, to, at),
        }
    }

    fn copy_by_pieces(&self, offset: u64, len: u64, to: &Self, at: u64) -> Result<(), RegionError> {
        let mut piece = vec![0; usize::try_from(len).unwrap_or(COPY_BYTES).min(COPY_BYTES)];
        let mut done = 0;
        while done < len {
            let count = piece.len().min(usize::try_from(len - done).unwrap_or(usize::MAX));
            self.read_lent(offset + done, &mut piece[..count])?;
            to.write(at + done, &[IoSlice::new(&piece[..count])], Completion::Visible, None)?;
            done += count as u64;
        }
        Ok(())
    }
}
