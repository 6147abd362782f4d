//! The tables of the engine: slabs whose keys are 18 index bits and 10 generation bits (those of connections 9), the
//! rest is 0.
//!
//! Owns the layout of their keys. A freed index waits behind [`REUSE_DELAY`] other freed ones, so a stale key differs
//! from a live one for at least 1,023 uses of its index (of connections 511).

pub(crate) use genslab::{Key, index_of};

pub(crate) const INDEX_BITS: u32 = 18;
/// Bits of a key, the lowest of 32. Keys of connections have fewer, because an immediate must hold them.
pub(crate) const KEY_BITS: u32 = 28;
/// Freed indices that wait at least, while unused ones are left.
pub(crate) const REUSE_DELAY: usize = 1024;

/// Most entries of a table.
pub(crate) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;
