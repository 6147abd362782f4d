//! A word of this process alone: the kernel empties it in a child made by `fork`.
//!
//! Owns the page that it lies in. It must never be 0 in the process that made it, so that 0 means a child.
use std::io;
use std::sync::atomic::Ordering;

use crate::{Region, Word32};

/// A word that is 0 in a child made by `fork`, whatever it was in the parent (`MADV_WIPEONFORK`).
///
/// Parent and child have a word each from then on: what one stores the other does not see.
#[derive(Debug)]
pub struct ProcessWord {
    word: Word32,
    is_wiped: bool,
}

impl ProcessWord {
    /// Makes it, with a first value that is not 0. Fails as mmap fails, and with `InvalidInput` for 0.
    pub fn new(value: u32) -> io::Result<Self> {
        if value == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "0 is the value in a forked child"));
        }
        let region = Region::anonymous(size_of::<u32>())?;
        // Refused by kernels before Linux 4.14, and by emulations of one.
        let is_wiped = region.wipe_on_fork().is_ok();
        let word = region.word32(0).map_err(io::Error::other)?;
        word.store(value, Ordering::Relaxed);
        Ok(Self { word, is_wiped })
    }

    /// Whether the kernel empties it on `fork`; if not, a child finds the parent's value.
    pub fn is_wiped(&self) -> bool {
        self.is_wiped
    }

    /// Loads it, and what was stored before it.
    #[inline]
    pub fn load(&self) -> u32 {
        self.word.atomic().load(Ordering::Acquire)
    }

    /// Makes it what a child would find.
    pub fn empty(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// Puts `new` in the place of `old`, if it is `old`; `new` is not 0.
    pub fn replace(&self, old: u32, new: u32) -> bool {
        debug_assert_ne!(new, 0, "0 is the value in a forked child");
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_changes_from_what_it_is() {
        let word = ProcessWord::new(7).unwrap();
        assert_eq!(word.load(), 7);
        assert!(!word.replace(1, 2) && word.replace(7, 9) && word.load() == 9);
        assert_eq!(ProcessWord::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
