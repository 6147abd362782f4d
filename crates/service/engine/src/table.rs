//! The tables of the engine: slabs whose keys are 18 index bits and 10 generation bits, the rest is 0.
//!
//! Owns the layout of their keys. A freed index waits behind [`REUSE_DELAY`] other freed ones, so a stale key is told from a
//! live one for at least 1,023 lives of its index.

pub(crate) use genslab::{GenSlab as Table, Key, index_of};

pub(crate) const INDEX_BITS: u32 = 18;
/// Bits of a key, the lowest of 32.
pub(crate) const KEY_BITS: u32 = 28;
/// Freed indices that wait at least, while unused ones are left.
pub(crate) const REUSE_DELAY: usize = 1024;

/// Most entries of a table.
pub(crate) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(u32);
        impl $crate::table::Key for $name {
            const INDEX_BITS: u32 = $crate::table::INDEX_BITS;
            const KEY_BITS: u32 = $crate::table::KEY_BITS;
            const REUSE_DELAY: usize = $crate::table::REUSE_DELAY;

            fn from_bits(bits: u32) -> Self {
                Self(bits)
            }
            fn bits(self) -> u32 {
                self.0
            }
        }
    };
}
pub(crate) use key;
