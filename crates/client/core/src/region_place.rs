//! Memory in which a region of this host is, as a program has it mapped: whether it still is, and an owner's move to other
//! memory.
//!
//! Owns the looks at the stamp and at the daemon's life, and the copy. It must never let an access count as done whose
//! bytes a revoke, or the end of the daemon, may have left behind.

use std::sync::atomic::Ordering;

use control::region_stamp;
use shm::{Life, Region, RegionError, Word32, Word64};

use crate::RegionMapping;

/// Bytes that the owner copies at a time.
const PIECE_BYTES: usize = 64 << 10;

/// What a program looks at: memory, and for which stamp and epoch it is the region's.
#[derive(Debug)]
pub struct RegionPlace {
    /// The memory.
    pub memory: Region,
    /// The epoch.
    pub epoch: u64,
    stamp: u64,
    word: Word64,
    life: Word32,
    /// Which daemon of the session made the memory.
    daemon: u64,
}

/// What the daemon says of memory that it made.
#[derive(Debug, Clone, Copy)]
pub struct RegionMade {
    /// What the region's word of the stamp page is as long as the memory is the region's.
    pub stamp: u64,
    /// The epoch.
    pub epoch: u64,
    /// Which daemon of the session: [`crate::Session::daemons_before`].
    pub daemon: u64,
}

/// How the stamp page says that a region ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionOver {
    /// A revoke came.
    Revoked,
    /// Its owner gave it up, or ended.
    OwnerGone,
    /// Of the daemon; to the owner this is no end.
    DaemonLost,
}

impl RegionPlace {
    /// Memory that a daemon gave.
    pub fn new(mapping: RegionMapping, made: RegionMade) -> Self {
        let (RegionMapping { memory, word, life }, RegionMade { stamp, epoch, daemon }) = (mapping, made);
        Self { memory, epoch, stamp, word, life, daemon }
    }

    /// Whether the daemon that made the memory has ended. The look comes after what this thread looked at before.
    #[inline]
    pub fn is_parted(&self) -> bool {
        Life::is_over(self.life.load_between_loads())
    }

    /// Whether the region is still what this shows, for a caller that looked at it at most, or whose changes a
    /// sequentially consistent fence follows already.
    #[inline]
    pub fn check(&self, is_owners: bool) -> Result<(), RegionOver> {
        self.judge(is_owners, self.word.load_between_loads())
    }

    /// As [`RegionPlace::check`], for a caller whose changes, or those of a device on its account, no fence follows yet.
    pub fn check_behind_changes(&self, is_owners: bool) -> Result<(), RegionOver> {
        self.judge(is_owners, self.word.load(Ordering::SeqCst))
    }

    #[inline]
    fn judge(&self, is_owners: bool, stamp: u64) -> Result<(), RegionOver> {
        match region_stamp::kind_of(stamp, self.stamp) {
            Some(region_stamp::LIVE) if !is_owners && self.is_parted() => Err(RegionOver::DaemonLost),
            Some(region_stamp::LIVE) => Ok(()),
            Some(region_stamp::OWNER_GONE) => Err(RegionOver::OwnerGone),
            Some(_) => Err(RegionOver::Revoked),
            // The owner is about to move; if the region is another's by now, the daemon says so.
            None if is_owners => Ok(()),
            None => Err(RegionOver::Revoked),
        }
    }

    /// Moves the owner to new memory of the daemon that made this, with all bytes. Nobody may access this memory for the
    /// owner meanwhile. False: the owner has brought the region to another daemon since.
    pub fn move_to(&mut self, memory: Region, bytes: u64, made: RegionMade) -> Result<bool, RegionError> {
        if self.daemon != made.daemon {
            return Ok(false);
        }
        copy(&self.memory, &memory, bytes)?;
        let RegionMade { stamp, epoch, .. } = made;
        (self.memory, self.stamp, self.epoch) = (memory, stamp, epoch);
        Ok(true)
    }

    /// Moves the owner to memory of the next daemon, with all bytes. False: it is not in that epoch any more, because a
    /// revoke by the daemon before took effect late.
    pub(crate) fn return_to(
        &mut self,
        mapping: RegionMapping,
        bytes: u64,
        made: RegionMade,
        from_epoch: u64,
    ) -> Result<bool, RegionError> {
        if self.epoch != from_epoch {
            return Ok(false);
        }
        copy(&self.memory, &mapping.memory, bytes)?;
        *self = Self::new(mapping, made);
        Ok(true)
    }
}

fn copy(from: &Region, to: &Region, bytes: u64) -> Result<(), RegionError> {
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
