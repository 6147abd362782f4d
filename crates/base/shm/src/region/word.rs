//! Single shared words, by atomics only.
//!
//! Owns every atomic access of the crate to mapped memory. It must never hand out a plain reference to a word.
//!
//! A word of a read-only mapping can be loaded but not stored to. A store would be a fault that kills the process, so
//! it panics first; constructors that are going to store ([`crate::RingWriter`] for example) refuse such words with
//! [`RegionError::ReadOnly`] (see `writable`), so that no input of a peer leads to that panic.
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{Region, RegionError};
use crate::sync::{AtomicRow, atomic_word};

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $int:ty, $atomic:ty) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            ptr: NonNull<$int>,
            writable: bool,
            /// Keeps the mapping.
            region: Region,
        }

        // SAFETY: the pointer is used for atomic accesses alone, and `region` keeps what it points to mapped.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let offset = self.ptr.as_ptr().addr() - self.region.as_ptr().addr();
                f.debug_struct(stringify!($name)).field("offset", &offset).field("writable", &self.writable).finish()
            }
        }

        impl $name {
            /// `ptr` is aligned and lies in `region`: `Region::word_at` checked both.
            pub(crate) fn new(region: Region, ptr: NonNull<$int>) -> Self {
                Self { ptr, writable: region.is_writable(), region }
            }

            #[inline]
            pub(crate) fn atomic(&self) -> &$atomic {
                // SAFETY: aligned and mapped while `region` lives (see `new`), which is at least as long as `&self`.
                // Every access in this process to these bytes as a word is an atomic of this size. In a read-only
                // mapping only `load` comes here, with the relaxed ordering that the standard library allows there.
                unsafe { <$atomic>::from_ptr(self.ptr.as_ptr()) }
            }

            #[inline]
            fn atomic_mut(&self) -> &$atomic {
                if !self.writable {
                    read_only_store();
                }
                self.atomic()
            }

            /// Whether it can be stored to.
            #[inline]
            pub fn is_writable(&self) -> bool {
                self.writable
            }

            /// The word itself, or [`RegionError::ReadOnly`]: for constructors that will store to it.
            pub fn writable(self) -> Result<Self, RegionError> {
                if self.writable { Ok(self) } else { Err(RegionError::ReadOnly) }
            }

            /// Atomic load, `Relaxed`, `Acquire` or `SeqCst`.
            #[inline]
            pub fn load(&self, order: Ordering) -> $int {
                if self.writable {
                    return self.atomic().load(order);
                }
                // Only relaxed loads are guaranteed to work on pages mapped read-only (stronger ones may be
                // implemented by a read-modify-write); fences give the rest.
                if order == Ordering::SeqCst {
                    fence(Ordering::SeqCst);
                }
                let value = self.atomic().load(Ordering::Relaxed);
                if order != Ordering::Relaxed {
                    fence(Ordering::Acquire);
                }
                value
            }

            /// A load that is not older than any load or copy that this thread did before it, nor than one that
            /// comes after it.
            #[inline]
            pub fn load_between_loads(&self) -> $int {
                fence(Ordering::Acquire);
                let value = self.atomic().load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                value
            }

            /// Atomic store. Panics if the region is mapped read-only (a fault would kill the process instead).
            #[inline]
            pub fn store(&self, v: $int, order: Ordering) {
                self.atomic_mut().store(v, order);
            }

            /// Atomic swap; the value before. Panics if the region is mapped read-only.
            #[inline]
            pub fn swap(&self, v: $int, order: Ordering) -> $int {
                self.atomic_mut().swap(v, order)
            }

            /// Atomic or; the value before. Panics if the region is mapped read-only.
            #[inline]
            pub fn fetch_or(&self, v: $int, order: Ordering) -> $int {
                self.atomic_mut().fetch_or(v, order)
            }

            /// Atomic and; the value before. Panics if the region is mapped read-only.
            #[inline]
            pub fn fetch_and(&self, v: $int, order: Ordering) -> $int {
                self.atomic_mut().fetch_and(v, order)
            }

            /// Atomic add, modulo the word; the value before. Panics if the region is mapped read-only.
            #[inline]
            pub fn fetch_add(&self, v: $int, order: Ordering) -> $int {
                self.atomic_mut().fetch_add(v, order)
            }

            /// Atomic compare-exchange; Err is the found value. Panics if the region is mapped read-only.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                ok: Ordering,
                err: Ordering,
            ) -> Result<$int, $int> {
                self.atomic_mut().compare_exchange(current, new, ok, err)
            }
        }
    };
}

word!(
    /// A u64 in a region. Cloning costs one reference count.
    Word64,
    u64,
    AtomicU64
);
word!(
    /// A u32 in a region. Cloning costs one reference count.
    Word32,
    u32,
    AtomicU32
);

atomic_word!(Word32, u32);
atomic_word!(Word64, u64);

#[cold]
#[inline(never)]
fn read_only_store() -> ! {
    panic!("store to a word of a read-only mapping: only the maker of the segment may write it")
}

/// A checked row of writable u64 words in a region.
#[derive(Debug, Clone)]
pub(crate) struct Row64 {
    first: NonNull<u64>,
    words: usize,
    /// Keeps the mapping.
    _region: Region,
}

// SAFETY: the pointer is used for atomic accesses alone, and `_region` keeps what it points to mapped.
unsafe impl Send for Row64 {}
// SAFETY: as above.
unsafe impl Sync for Row64 {}

impl Row64 {
    /// `words` words at `offset`; refused if misaligned, out of bounds or read-only.
    pub(crate) fn new(region: &Region, offset: u64, words: usize) -> Result<Self, RegionError> {
        let first = region.row_at(offset, words as u64)?;
        Ok(Self { first, words, _region: region.clone() })
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of a row of {}", self.words);
        // SAFETY: `row_at` proved that `words` aligned writable words from `first` are mapped, `index` is below that,
        // and the region is kept. Every access in this process to these words is an atomic of this size.
        unsafe { AtomicU64::from_ptr(self.first.as_ptr().add(index)) }
    }
}

impl AtomicRow for Row64 {
    #[inline]
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).load(order)
    }

    #[inline]
    fn fetch_or(&self, index: usize, bits: u64, order: Ordering) -> u64 {
        self.word(index).fetch_or(bits, order)
    }

    #[inline]
    fn fetch_and(&self, index: usize, bits: u64, order: Ordering) -> u64 {
        self.word(index).fetch_and(bits, order)
    }

    #[inline]
    fn fence_seq_cst(&self) {
        fence(Ordering::SeqCst);
    }
}
