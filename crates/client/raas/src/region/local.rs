//! A region of this host, as a program has it mapped.
//!
//! Owns the check of the stamp around each access, and the owner's move to new memory. It must never let an access
//! count as done whose bytes a revoke may have left behind.
//!
//! **A revoke and an access at the same time.** The daemon stores a new stamp, and then has the owner copy the region.
//! An access by another program stores its bytes, then looks at the stamp, with a sequentially consistent fence
//! between. Either it finds the new stamp, and fails, or its bytes were there before the copy and are in it. A look that
//! follows loads alone needs no such fence. The owner's own accesses are excluded from the copy by a lock, so that none
//! of them is lost; what others have open never moves, and they take none.
//!
//! **The daemon's death** takes the same way. The kernel stores the end to the word of the daemon's life ([`shm::Life`]),
//! before the owner can find its daemon gone. From then on accesses by others fail, and the owner copies the region to
//! memory of the next daemon.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use control::region_stamp;
use raas_core::RegionMapping;
use shm::{Life, Region, Word32, Word64};

/// Bytes that the owner copies at a time.
const PIECE_BYTES: usize = 64 << 10;

/// What a program looks at: memory, and for which stamp and epoch it is the region's.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) memory: Region,
    pub(super) epoch: u64,
    stamp: u64,
    word: Word64,
    life: Word32,
    /// Which daemon of the session made the memory.
    daemon: u64,
}

/// What the daemon says of memory that it made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) stamp: u64,
    pub(super) epoch: u64,
    /// Which daemon of the session.
    pub(super) daemon: u64,
}

impl Place {
    fn new(mapping: RegionMapping, made: Made) -> Self {
        let (RegionMapping { memory, word, life }, Made { stamp, epoch, daemon }) = (mapping, made);
        Self { memory, epoch, stamp, word, life, daemon }
    }

    /// Whether the daemon that made the memory has ended. The look comes after what this thread looked at before.
    #[inline]
    pub(super) fn is_parted(&self) -> bool {
        Life::is_over(self.life.load_between_loads())
    }
}

/// How the stamp page says that a region ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Revoked,
    OwnerGone,
    /// Of the daemon; to the owner this is no end.
    DaemonLost,
}

#[derive(Debug)]
enum Held {
    Owned(RwLock<Place>),
    Opened(Place),
}

/// The memory, which does not move while this lives.
#[derive(Debug)]
pub(super) enum Kept<'a> {
    Owned(RwLockReadGuard<'a, Place>),
    Opened(&'a Place),
}

impl Deref for Kept<'_> {
    type Target = Place;

    #[inline]
    fn deref(&self) -> &Place {
        match self {
            Self::Owned(place) => place,
            Self::Opened(place) => place,
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Local {
    held: Held,
}

impl Local {
    pub(super) fn new(mapping: RegionMapping, made: Made, is_owner: bool) -> Self {
        let place = Place::new(mapping, made);
        let held = if is_owner { Held::Owned(RwLock::new(place)) } else { Held::Opened(place) };
        Self { held }
    }

    /// The memory; it does not move while the result lives.
    #[inline]
    pub(super) fn place(&self) -> Kept<'_> {
        match &self.held {
            Held::Owned(place) => Kept::Owned(place.read().unwrap_or_else(PoisonError::into_inner)),
            Held::Opened(place) => Kept::Opened(place),
        }
    }

    /// Whether the region is still what `place` shows, for a caller that looked at it at most, or whose changes a
    /// sequentially consistent fence follows already.
    #[inline]
    pub(super) fn check(&self, place: &Place) -> Result<(), Over> {
        self.judge(place, place.word.load_between_loads())
    }

    /// As [`Local::check`], for a caller whose changes, or those of a device on its account, no fence follows yet.
    pub(super) fn check_behind_changes(&self, place: &Place) -> Result<(), Over> {
        self.judge(place, place.word.load(Ordering::SeqCst))
    }

    #[inline]
    fn judge(&self, place: &Place, stamp: u64) -> Result<(), Over> {
        let is_owners = matches!(self.held, Held::Owned(_));
        match region_stamp::kind_of(stamp, place.stamp) {
            Some(region_stamp::LIVE) if !is_owners && place.is_parted() => Err(Over::DaemonLost),
            Some(region_stamp::LIVE) => Ok(()),
            Some(region_stamp::OWNER_GONE) => Err(Over::OwnerGone),
            Some(_) => Err(Over::Revoked),
            // The owner is about to move; if the region is another's by now, the daemon says so.
            None if is_owners => Ok(()),
            None => Err(Over::Revoked),
        }
    }

    /// Moves the owner to new memory of the daemon that made its own, with all bytes. What others have open stays what it
    /// is. `settle` is called when that is done, and nobody sees the new place before. False: the owner has brought the
    /// region to another daemon since.
    pub(super) fn move_to(
        &self,
        memory: Region,
        bytes: u64,
        made: Made,
        settle: impl FnOnce(),
    ) -> Result<bool, shm::RegionError> {
        let Held::Owned(place) = &self.held else { return Ok(false) };
        let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
        if place.daemon != made.daemon {
            return Ok(false);
        }
        copy(&place.memory, &memory, bytes)?;
        let Made { stamp, epoch, .. } = made;
        (place.memory, place.stamp, place.epoch) = (memory, stamp, epoch);
        settle();
        Ok(true)
    }

    /// Moves the owner to memory of the next daemon, with all bytes. False: it is not in that epoch any more, because a
    /// revoke by the daemon before took effect late.
    pub(super) fn return_to(
        &self,
        mapping: RegionMapping,
        bytes: u64,
        made: Made,
        from_epoch: u64,
    ) -> Result<bool, shm::RegionError> {
        let Held::Owned(place) = &self.held else { return Ok(false) };
        let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
        if place.epoch != from_epoch {
            return Ok(false);
        }
        copy(&place.memory, &mapping.memory, bytes)?;
        *place = Place::new(mapping, made);
        Ok(true)
    }
}

fn copy(from: &Region, to: &Region, bytes: u64) -> Result<(), shm::RegionError> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let len = piece.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
        from.read_whole_words(offset, &mut piece[..len])?;
        // New memory is zero, and pages that nobody wrote to stay unallocated.
        if piece[..len].iter().any(|byte| *byte != 0) {
            to.write_whole_words(offset, &piece[..len])?;
        }
        offset += len as u64;
    }
    Ok(())
}
