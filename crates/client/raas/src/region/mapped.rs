//! A region's memory by its address, for programs that look at it without copying.
//!
//! Owns the mapping: it stays where it is as long as the value lives, whatever becomes of the region. It must never let
//! a caller take bytes for the region's that a revoke has left behind, if the caller asks.

use std::sync::Arc;

use control::RegionAccess;

use super::error::RegionError;
use super::handle::{Handle, Reach};
use crate::error::SessionError;

/// A part of a region of this host as this program has it mapped; made by [`Region::map`](crate::Region::map), or by
/// [`View::map`](crate::View::map) of a message that was lent.
///
/// Other programs may write to these bytes at any time, so no Rust reference to them may be made: what is there is
/// reached through the pointer, by copies, atomics, or code of another language. A write by the pointer does not look
/// whether the region was revoked. The memory stays mapped, and a revoke moves the region to other memory; so after a
/// revoke the bytes here are a copy of their own, and [`Mapped::check`] says so.
#[derive(Debug)]
pub struct Mapped {
    handle: Arc<Handle>,
    memory: shm::Region,
    epoch: u64,
    offset: u64,
    len: u64,
    is_writable: bool,
    is_lent: bool,
}

impl Mapped {
    pub(super) fn of_region(handle: &Arc<Handle>, offset: u64, len: u64) -> Result<Self, RegionError> {
        handle.check_access(RegionAccess::READ, offset, len)?;
        let Reach::Here(local) = handle.reach() else {
            return Err(RegionError::NotHere { name: handle.name().to_owned() });
        };
        let (memory, epoch) = {
            let place = local.place();
            handle.check_live(local, &place, false)?;
            (place.memory.clone(), place.epoch)
        };
        let is_writable = memory.is_writable() && handle.access().contains(RegionAccess::WRITE);
        Ok(Self { handle: Arc::clone(handle), memory, epoch, offset, len, is_writable, is_lent: false })
    }

    /// None if the region is another host's.
    pub(crate) fn of_lent(handle: &Arc<Handle>, offset: u64, len: u64) -> Result<Option<Self>, RegionError> {
        let Reach::Here(local) = handle.reach() else { return Ok(None) };
        handle.check_lent_bounds(offset, len)?;
        let (memory, epoch) = {
            let place = local.place();
            handle.check_unrevoked(local, &place)?;
            (place.memory.clone(), place.epoch)
        };
        Ok(Some(Self { handle: Arc::clone(handle), memory, epoch, offset, len, is_writable: false, is_lent: true }))
    }

    /// The first byte. The pointer is valid while this value lives; through it nothing may be written unless
    /// [`Mapped::is_writable`].
    pub fn as_ptr(&self) -> *mut u8 {
        // In the mapping, as was checked when this was made.
        self.memory.as_ptr().wrapping_add(usize::try_from(self.offset).unwrap_or(0))
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the handle may write, and the memory is mapped so.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The region's epoch for which this is its memory.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Copies `buf.len()` bytes from byte `at` of it out. It does not look whether the region was revoked;
    /// [`Mapped::check`] afterwards does, for all reads before it.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), RegionError> {
        let offset = self.place_of(at, buf.len() as u64)?;
        self.memory.read(offset, buf).map_err(|e| self.bad_memory(&e))
    }

    /// Copies `bytes` in at byte `at` of it. It does not look whether the region was revoked; [`Mapped::check`]
    /// afterwards does, for all writes before it. So many writes cost one look, and one wait for the memory.
    /// [`RegionError::NoAccess`] unless [`Mapped::is_writable`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), RegionError> {
        let offset = self.place_of(at, bytes.len() as u64)?;
        if !self.is_writable {
            let (name, asked, allowed) = (self.handle.name().to_owned(), RegionAccess::WRITE, RegionAccess::READ);
            return Err(RegionError::NoAccess { name, asked, allowed });
        }
        self.memory.write(offset, bytes).map_err(|e| self.bad_memory(&e))
    }

    /// Where byte `at` is in the region, if `len` bytes from there are in this part of it.
    fn place_of(&self, at: u64, len: u64) -> Result<u64, RegionError> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            let (name, bytes) = (self.handle.name().to_owned(), self.len);
            return Err(RegionError::OutOfBounds { name, offset: at, len, bytes });
        }
        Ok(self.offset + at)
    }

    fn bad_memory(&self, error: &shm::RegionError) -> RegionError {
        SessionError::Protocol(format!("region {}: {error}", self.handle.name())).into()
    }

    /// Whether the bytes here are the region's. [`RegionError::Revoked`] says that a revoke came, by this program or
    /// another: what was read since may be old, and what was written since is lost, or before if it met the revoke.
    pub fn check(&self) -> Result<(), RegionError> {
        let handle = &self.handle;
        let Reach::Here(local) = handle.reach() else {
            return Err(RegionError::NotHere { name: handle.name().to_owned() });
        };
        if !self.is_lent {
            handle.check_access(RegionAccess::READ, self.offset, self.len)?;
        }
        let place = local.place();
        if place.epoch != self.epoch {
            let (name, held, current) = (handle.name().to_owned(), self.epoch, place.epoch);
            return Err(RegionError::Revoked { name, held, current, may_have_landed: true });
        }
        if self.is_lent { handle.check_unrevoked(local, &place) } else { handle.check_written(local, &place) }
    }
}
