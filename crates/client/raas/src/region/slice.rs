//! Parts of regions of this host as the local ends of operations on regions of other hosts.
//!
//! Owns the registration of a region's memory for that, and what a revoke does to operations under way: the memory that
//! the region leaves stays registered until they have ended, and what they read into it is carried over.

use std::sync::Arc;

use control::RegionAccess;
use raas_core::{Answer, RegionOver};
use shm::{LocalSegment, Region};

use super::ask::ask;
use super::error::RegionError;
use super::flight::{Failure, Outcome};
use super::handle::{Handle, Reach};
use super::registered::Registered;
use crate::error::SessionError;
use crate::park::lock;
use crate::region_table::RegionUser;

/// Bytes that are carried over at a time.
const PIECE_BYTES: u64 = 64 << 10;

/// A part of a region of this host that operations on regions of other hosts read into and write from: the bytes go
/// straight between both regions, and neither library nor daemon copies them. [`Region::slice`](crate::Region::slice)
/// makes one.
///
/// It keeps the region's handle, so the owner's region lives as long. Operations that name it must not overlap with
/// other accesses to the same bytes by this program, unless it does not mind to see parts of both.
#[derive(Debug, Clone)]
pub struct RegionSlice {
    handle: Arc<Handle>,
    offset: u64,
    len: u64,
}

impl RegionSlice {
    pub(super) fn new(handle: &Arc<Handle>, offset: u64, len: u64) -> Result<Self, RegionError> {
        handle.check_access(RegionAccess::NONE, offset, len)?;
        let slice = Self { handle: Arc::clone(handle), offset, len };
        slice.register()?;
        Ok(slice)
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins in its region.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// What is checked before an operation of this session begins that reads into it, or writes from it.
    pub(super) fn check(&self, of: &Handle, is_read: bool) -> Result<(), RegionError> {
        if !Arc::ptr_eq(self.handle.attachment(), of.attachment()) {
            return Err(RegionError::NotLocal { name: self.handle.name().to_owned() });
        }
        let needs = if is_read { RegionAccess::WRITE } else { RegionAccess::READ };
        self.handle.check_access(needs, self.offset, self.len)
    }

    /// The region's memory as it is now, registered.
    fn register(&self) -> Result<Arc<Registered>, RegionError> {
        let handle = &self.handle;
        let Reach::Here(local) = handle.reach() else {
            return Err(RegionError::NotLocal { name: handle.name().to_owned() });
        };
        loop {
            handle.wait_until_here()?;
            let daemon = handle.daemon();
            let mut place = lock(handle.registered());
            let (memory, epoch) = {
                let here = local.place();
                handle.check_live(local, &here, false)?;
                (here.memory.clone(), here.epoch)
            };
            if let Some(known) = place.as_ref().filter(|known| known.epoch == epoch && known.daemon == daemon) {
                return Ok(Arc::clone(known));
            }
            let attachment = handle.attachment();
            match ask(attachment, |session| session.attach_region(handle.open_number(), epoch))? {
                Answer::Attached(Ok(number)) => {
                    let attachment = Arc::clone(attachment);
                    let made = Arc::new(Registered { attachment, number, epoch, memory, daemon });
                    *place = Some(Arc::clone(&made));
                    return Ok(made);
                }
                // The owner moved it between the two looks.
                Answer::Attached(Err(_)) if handle.is_owner() && local.place().epoch != epoch => {}
                Answer::Attached(Err(why)) => return Err(RegionError::refused(handle.name(), why)),
                other => {
                    let words = format!("an answer of another kind about a region: {other:?}");
                    return Err(SessionError::Protocol(words).into());
                }
            }
        }
    }

    /// What a submission says of it, and what its end needs.
    pub(super) fn begin(&self) -> Result<(LocalSegment, Used), RegionError> {
        let registered = self.register()?;
        let bytes = u32::try_from(self.len).unwrap_or(u32::MAX);
        let segment = LocalSegment { region: registered.number, bytes, offset: self.offset };
        Ok((segment, Used { slice: self.clone(), registered }))
    }
}

/// A slice that an operation under way uses.
#[derive(Debug)]
pub(super) struct Used {
    slice: RegionSlice,
    registered: Arc<Registered>,
}

impl Used {
    /// The operation has ended: its bytes are where the region is.
    pub(super) fn settle(&self, is_read: bool, outcome: &mut Outcome) {
        if !is_read || outcome.failure.is_some() {
            return;
        }
        let Reach::Here(local) = self.slice.handle.reach() else { return };
        let place = local.place();
        let result = match local.check_behind_changes(&place) {
            Ok(()) if place.epoch == self.registered.epoch => return,
            Ok(()) => self.carry_over(&place.memory),
            Err(over) => Err(self.over(over)),
        };
        if let Err(error) = result {
            outcome.failure = Some(Failure::Here(error));
        }
    }

    /// The region moved while bytes were read into what it left.
    fn carry_over(&self, to: &Region) -> Result<(), RegionError> {
        let RegionSlice { handle, offset, len } = &self.slice;
        let failed = |e: shm::RegionError| SessionError::Protocol(format!("region {}: {e}", handle.name()));
        let mut piece = vec![0; usize::try_from(PIECE_BYTES.min(*len)).unwrap_or(usize::MAX)];
        let mut done = 0;
        while done < *len {
            let count = (len - done).min(PIECE_BYTES) as usize;
            self.registered.memory.read_whole_words(offset + done, &mut piece[..count]).map_err(failed)?;
            to.write_whole_words(offset + done, &piece[..count]).map_err(failed)?;
            done += count as u64;
        }
        Ok(())
    }

    fn over(&self, over: RegionOver) -> RegionError {
        let (name, held) = (self.slice.handle.name().to_owned(), self.registered.epoch);
        match over {
            RegionOver::OwnerGone => RegionError::OwnerGone { name, may_have_landed: true },
            RegionOver::DaemonLost => RegionError::DaemonLost { name, may_have_landed: true },
            RegionOver::Revoked => RegionError::Revoked { name, held, current: held + 1, may_have_landed: true },
        }
    }
}
