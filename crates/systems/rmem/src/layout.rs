//! Sizes and alignments of blocks, and the classes of which blocks are.
//!
//! Owns the rounding: a block is at least as long and as aligned as was asked for.

use crate::error::Error;

/// Bytes of a block at most: 1 GiB.
pub const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Alignment of a block at most: 1 MiB.
pub const ALIGN_MAX: u64 = 1 << 20;
/// What every block is a multiple of, and aligned to: a cache line.
pub const LINE_BYTES: u64 = 64;

/// To here blocks are rounded to lines, above to powers of two.
const LINES_TO: u64 = 1024;
const LINE_CLASSES: usize = (LINES_TO / LINE_BYTES) as usize;
/// 2 KiB to 1 GiB.
const LARGE_CLASSES: usize = 20;
/// Aligned to their own size, from 128 bytes to 1 GiB.
const ALIGNED_CLASSES: usize = 24;
/// Classes of blocks; each has a list of free ones on each node.
pub(crate) const CLASSES: usize = LINE_CLASSES + LARGE_CLASSES + ALIGNED_CLASSES;

/// Size and alignment of what is to be allocated, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    size: u64,
    align: u64,
}

impl Layout {
    /// At least `size` bytes (1 to [`BLOCK_BYTES_MAX`]) at a multiple of `align` (a power of two to [`ALIGN_MAX`]).
    pub const fn new(size: u64, align: u64) -> Result<Self, Error> {
        if size == 0 || size > BLOCK_BYTES_MAX || !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(Error::BadLayout { size, align });
        }
        Ok(Self { size, align })
    }

    /// That many words of 8 bytes.
    pub const fn words(words: u64) -> Result<Self, Error> {
        Self::new(words.saturating_mul(8), 8)
    }

    /// Bytes that were asked for.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.size
    }

    /// The alignment that was asked for.
    #[must_use]
    pub const fn align(self) -> u64 {
        self.align
    }

    /// Bytes that a block of this layout takes.
    #[must_use]
    pub const fn block_bytes(self) -> u64 {
        if self.align > LINE_BYTES {
            let bytes = if self.size > self.align { self.size } else { self.align };
            return bytes.next_power_of_two();
        }
        if self.size <= LINES_TO { self.size.next_multiple_of(LINE_BYTES) } else { self.size.next_power_of_two() }
    }

    /// The number of its class.
    pub(crate) const fn class(self) -> usize {
        let bytes = self.block_bytes();
        let log = bytes.trailing_zeros() as usize;
        if self.align > LINE_BYTES {
            return LINE_CLASSES + LARGE_CLASSES + log - 7;
        }
        if bytes <= LINES_TO { (bytes / LINE_BYTES) as usize - 1 } else { LINE_CLASSES + log - 11 }
    }

    /// Bytes to skip at most, so that a block in fresh memory is aligned.
    pub(crate) const fn slack(self) -> u64 {
        if self.align > LINE_BYTES { self.block_bytes() - LINE_BYTES } else { 0 }
    }

    /// Where a block begins in fresh memory at `offset`.
    pub(crate) const fn align_up(self, offset: u64) -> u64 {
        if self.align > LINE_BYTES { offset.next_multiple_of(self.block_bytes()) } else { offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_long_and_aligned_enough_and_of_one_size_in_a_class() {
        let mut of_class = [0; CLASSES];
        let sizes = (1..3000).chain((11..=30).flat_map(|log| [(1 << log) - 1, 1 << log]));
        for size in sizes {
            for align in (0..=20).map(|log| 1 << log) {
                let layout = Layout::new(size, align).unwrap();
                let bytes = layout.block_bytes();
                assert!(bytes >= size && bytes.is_multiple_of(LINE_BYTES), "{layout:?}");
                let known = &mut of_class[layout.class()];
                assert!(*known == 0 || *known == bytes, "{layout:?}: {known} and {bytes}");
                *known = bytes;
                let begin = layout.align_up(LINE_BYTES * 3);
                assert!(begin.is_multiple_of(align) && begin - LINE_BYTES * 3 <= layout.slack(), "{layout:?}");
            }
        }
        assert!(of_class.iter().all(|bytes| *bytes > 0), "{of_class:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (size, align) in [(0, 8), (BLOCK_BYTES_MAX + 1, 8), (8, 0), (8, 24), (8, ALIGN_MAX * 2)] {
            assert!(matches!(Layout::new(size, align), Err(Error::BadLayout { .. })), "{size} {align}");
        }
    }
}
