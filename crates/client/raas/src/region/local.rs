//! A region of this host, as a program has it mapped.
//!
//! Owns the check of the stamp around each access, and the owner's move to new memory. It must never let an access
//! count as done whose bytes a revoke may have left behind.
//!
//! **A revoke and an access at the same time.** The daemon stores a new stamp, and then has the owner copy the region.
//! An access by another program stores its bytes, then looks at the stamp, with a sequentially consistent fence
//! between. Either it finds the new stamp, and fails, or its bytes were there before the copy and are in it. The
//! owner's own accesses are excluded from the copy by a lock, so that none of them is lost.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use control::region_stamp;
use raas_core::RegionMapping;
use shm::{Region, Word64};

/// Bytes that the owner copies at a time.
const PIECE_BYTES: usize = 64 << 10;

/// What a program looks at: memory, and for which stamp and epoch it is the region's.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) memory: Region,
    pub(super) epoch: u64,
    stamp: u64,
}

/// How the stamp page says that a region ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Revoked,
    OwnerGone,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Local {
    place: RwLock<Place>,
    word: Word64,
    is_owner: bool,
}

impl Local {
    pub(super) fn new(mapping: RegionMapping, stamp: u64, epoch: u64, is_owner: bool) -> Self {
        let RegionMapping { memory, word } = mapping;
        Self { place: RwLock::new(Place { memory, epoch, stamp }), word, is_owner }
    }

    /// The memory; it does not move while the result lives.
    pub(super) fn place(&self) -> RwLockReadGuard<'_, Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the region is still what `place` shows.
    pub(super) fn check(&self, place: &Place) -> Result<(), Over> {
        match region_stamp::kind_of(self.word.load(Ordering::SeqCst), place.stamp) {
            Some(region_stamp::LIVE) => Ok(()),
            Some(region_stamp::OWNER_GONE) => Err(Over::OwnerGone),
            Some(_) => Err(Over::Revoked),
            // The owner is about to move; if the region is another's by now, the daemon says so.
            None if self.is_owner => Ok(()),
            None => Err(Over::Revoked),
        }
    }

    /// Moves the owner to new memory, with all bytes.
    pub(super) fn move_to(&self, memory: Region, bytes: u64, epoch: u64, stamp: u64) -> Result<(), shm::RegionError> {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let mut piece = vec![0; PIECE_BYTES];
        let mut offset = 0;
        while offset < bytes {
            let len = piece.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
            place.memory.read_whole_words(offset, &mut piece[..len])?;
            // New memory is zero, and pages that nobody wrote to stay unallocated.
            if piece[..len].iter().any(|byte| *byte != 0) {
                memory.write_whole_words(offset, &piece[..len])?;
            }
            offset += len as u64;
        }
        *place = Place { memory, epoch, stamp };
        Ok(())
    }
}
