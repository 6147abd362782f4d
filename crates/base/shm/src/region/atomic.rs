//! Atomic operations on 8 bytes of a region, and copies that never tear them.
//!
//! Owns the single-copy atomicity of aligned 8 bytes in memory that several programs change: an operation of another
//! program, or of an engine for another host, is seen before or after it, never in between.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{Region, RegionError};

/// What an atomic operation does with the 8 bytes that it finds, as a number in the host's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `new` if it finds `expected`.
    CompareSwap {
        /// What must be there.
        expected: u64,
        /// What is then stored.
        new: u64,
    },
    /// Adds, modulo 2^64.
    Add(u64),
    /// Stores the operand.
    Swap(u64),
    /// Keeps the bits that the operand has too.
    And(u64),
    /// Sets the bits of the operand.
    Or(u64),
    /// Turns the bits of the operand round.
    Xor(u64),
    /// Stores the operand if it is less, as unsigned numbers.
    Min(u64),
    /// Stores the operand if it is greater, as unsigned numbers.
    Max(u64),
}

impl AtomicOp {
    /// What is there after the operation has found `old`.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { expected, new } => {
                if old == expected {
                    new
                } else {
                    old
                }
            }
            Self::Add(v) => old.wrapping_add(v),
            Self::Swap(v) => v,
            Self::And(v) => old & v,
            Self::Or(v) => old | v,
            Self::Xor(v) => old ^ v,
            Self::Min(v) => {
                if v < old {
                    v
                } else {
                    old
                }
            }
            Self::Max(v) => {
                if v > old {
                    v
                } else {
                    old
                }
            }
        }
    }
}

impl Region {
    /// Does an atomic operation on the 8 bytes at `offset`, a multiple of 8, in the one order of all sequentially
    /// consistent operations; returns what was there before. What is looked at later is not older than the operation.
    pub fn atomic64(&self, offset: u64, op: AtomicOp) -> Result<u64, RegionError> {
        let at = match self.row_at(offset, 1) {
            Ok(at) => at,
            Err(refused) => return self.atomic64_program(offset, op, refused),
        };
        // SAFETY: `row_at` proved that 8 aligned writable bytes are mapped there, and `self` keeps the mapping. All
        // accesses of this process to them are atomics, or copies that the compiler cannot see through.
        let word = unsafe { AtomicU64::from_ptr(at.as_ptr()) };
        let order = Ordering::SeqCst;
        let before = match op {
            AtomicOp::CompareSwap { expected, new } => {
                word.compare_exchange(expected, new, order, order).unwrap_or_else(|found| found)
            }
            AtomicOp::Add(v) => word.fetch_add(v, order),
            AtomicOp::Swap(v) => word.swap(v, order),
            AtomicOp::And(v) => word.fetch_and(v, order),
            AtomicOp::Or(v) => word.fetch_or(v, order),
            AtomicOp::Xor(v) => word.fetch_xor(v, order),
            AtomicOp::Min(v) => word.fetch_min(v, order),
            AtomicOp::Max(v) => word.fetch_max(v, order),
        };
        fence(Ordering::SeqCst);
        Ok(before)
    }

    /// As [`Region::read`], and no aligned 8 bytes of the region are torn: each is as some store left it.
    pub fn read_whole_words(&self, offset: u64, dst: &mut [u8]) -> Result<(), RegionError> {
        self.checked(offset, dst.len() as u64)?;
        let (head, words) = split(offset, dst.len());
        let (head, rest) = dst.split_at_mut(head);
        let (words, tail) = rest.split_at_mut(words * 8);
        let (middle, behind) = (offset + head.len() as u64, offset + (head.len() + words.len()) as u64);
        self.read(offset, head)?;
        if !words.is_empty() {
            let first = self.word_at(middle, 8)?.cast::<u64>();
            for (index, bytes) in words.chunks_exact_mut(8).enumerate() {
                // SAFETY: the whole range was checked above, `first` is aligned, and `index` words lie before this one.
                let word = unsafe { atomic(first, index) };
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
        }
        self.read(behind, tail)?;
        // What is looked at later is not older than what was read.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// As [`Region::write`], and no aligned 8 bytes of the region are torn.
    pub fn write_whole_words(&self, offset: u64, src: &[u8]) -> Result<(), RegionError> {
        self.checked_writable(offset, src.len() as u64)?;
        let (head, words) = split(offset, src.len());
        let (head, rest) = src.split_at(head);
        let (words, tail) = rest.split_at(words * 8);
        let (middle, behind) = (offset + head.len() as u64, offset + (head.len() + words.len()) as u64);
        fence(Ordering::Release);
        self.write(offset, head)?;
        if !words.is_empty() {
            let first = self.row_at(middle, (words.len() / 8) as u64)?;
            for (index, bytes) in words.chunks_exact(8).enumerate() {
                // SAFETY: `row_at` proved that all words of the row are mapped writable, and this one is among them.
                let word = unsafe { atomic(first, index) };
                let mut value = [0; 8];
                value.copy_from_slice(bytes);
                word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
            }
        }
        self.write(behind, tail)?;
        // What is looked at later is not older than what was written.
        fence(Ordering::SeqCst);
        Ok(())
    }
}

/// Bytes before the first whole aligned word, and how many such words there are.
fn split(offset: u64, len: usize) -> (usize, usize) {
    let head = usize::try_from(offset.wrapping_neg() % 8).unwrap_or(0).min(len);
    (head, (len - head) / 8)
}

/// # Safety
///
/// `index + 1` aligned words from `first` are mapped for as long as the result lives.
unsafe fn atomic<'a>(first: NonNull<u64>, index: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(first.as_ptr().add(index)) }
}
