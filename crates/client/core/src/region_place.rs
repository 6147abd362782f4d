//! Memory in which a region of this host is, as a program has it mapped: whether it still is, and an owner's move to other
//! memory.
//!
//! Owns the looks at the stamp and at the daemon's life, and the copy. It must never let an access count as done whose
//! bytes a revoke, or the end of the daemon, may have left behind.

use std::sync::atomic::Ordering;

use control::region_stamp;
use shm::{Extents, Life, Region, RegionError, Word32, Word64};

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
    /// Where it has pages, if this is an owner's.
    extents: Option<Extents>,
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
        let RegionMapping { memory, word, life, extents } = mapping;
        let RegionMade { stamp, epoch, daemon } = made;
        Self { memory, epoch, extents, stamp, word, life, daemon }
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
    pub fn move_to(
        &mut self,
        (memory, extents): (Region, Option<Extents>),
        bytes: u64,
        made: RegionMade,
    ) -> Result<bool, RegionError> {
        if self.daemon != made.daemon {
            return Ok(false);
        }
        self.copy_to(&memory, bytes)?;
        let RegionMade { stamp, epoch, .. } = made;
        (self.memory, self.extents, self.stamp, self.epoch) = (memory, extents, stamp, epoch);
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
        self.copy_to(&mapping.memory, bytes)?;
        *self = Self::new(mapping, made);
        Ok(true)
    }

    /// Copies what has pages. A load elsewhere would make one: the region would take the memory of all its bytes,
    /// twice, and the time for them.
    fn copy_to(&self, to: &Region, bytes: u64) -> Result<(), RegionError> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut offset = 0;
        while offset < bytes {
            let data = self.extents.as_ref().map_or(offset..bytes, |extents| extents.next_data(offset));
            let end = data.end.min(bytes);
            offset = data.start;
            while offset < end {
                let len = piece.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
                self.memory.read_whole_words(offset, &mut piece[..len])?;
                // New memory is zero, and pages that nobody wrote to stay unallocated.
                if piece[..len].iter().any(|byte| *byte != 0) {
                    to.write_whole_words(offset, &piece[..len])?;
                }
                offset += len as u64;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::Arc;

    use shm::RegionMemory;

    use super::*;

    const BYTES: u64 = 64 << 20;

    fn mapped(memory: &RegionMemory) -> (Region, Option<Extents>) {
        let fd = memory.writable_fd().try_clone().unwrap();
        let (region, extents) = RegionMemory::accept_with_extents(fd, BYTES, true).unwrap();
        (region, Some(extents))
    }

    fn taken(fd: &Arc<OwnedFd>) -> u64 {
        File::from(fd.try_clone().unwrap()).metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_move_copies_what_there_is_and_makes_no_pages_of_holes() {
        let memories = [(); 2].map(|()| RegionMemory::create(BYTES, false).unwrap());
        let [from, to] = memories.each_ref().map(RegionMemory::writable_fd);
        let words = Region::anonymous(4096).unwrap();
        let (memory, extents) = mapped(&memories[0]);
        let mapping = RegionMapping { memory, word: words.word64(0).unwrap(), life: words.word32(8).unwrap(), extents };
        let made = RegionMade { stamp: 1, epoch: 1, daemon: 0 };
        let mut place = RegionPlace::new(mapping, made);
        // The first and the last bytes, alone in their pages, two pages side by side, and one of zeroes.
        let places = [(0, 1), (9 << 20, 2), ((9 << 20) + 4096, 3), (33 << 20, 0), (BYTES - 8, 4)];
        places.iter().for_each(|(at, byte)| place.memory.write(*at, &[*byte; 8]).unwrap());
        let before = taken(&from);
        assert_eq!(before, 5 * 4096, "the test knows what is written");
        assert!(place.move_to(mapped(&memories[1]), BYTES, RegionMade { epoch: 2, ..made }).unwrap());
        assert_eq!(taken(&from), before, "what is left takes no more than it did");
        assert!(taken(&to) <= 4 * PIECE_BYTES as u64, "{} bytes are taken by the copy", taken(&to));
        for (at, byte) in places {
            let mut found = [9; 8];
            place.memory.read(at, &mut found).unwrap();
            assert_eq!(found, [byte; 8], "at {at}");
        }
        // The next move knows of the new memory where it has pages.
        let third = RegionMemory::create(BYTES, false).unwrap();
        assert!(place.move_to(mapped(&third), BYTES, RegionMade { epoch: 3, ..made }).unwrap());
        assert!(taken(&third.writable_fd()) <= 4 * PIECE_BYTES as u64);
    }
}
