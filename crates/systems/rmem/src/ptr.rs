//! Places in remote memory, and typed pointers to them.
//!
//! Owns the 64 bits of a pointer. It must never give two places the same bits.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// Nodes that a pool has at most.
pub const NODES_MAX: usize = 256;
/// Bytes of a node that pointers reach: 8 GiB.
pub const NODE_BYTES_MAX: u64 = 8 << OFFSET_BITS;
/// Bits of a pointer that count the lives of its block.
pub const EPOCH_BITS: u32 = 12;
/// Bits of a pointer that are the structure's own.
pub const TAG_BITS: u32 = 14;

pub(crate) const OFFSET_BITS: u32 = 30;
pub(crate) const EPOCH_AT: u32 = TAG_BITS;
pub(crate) const OFFSET_AT: u32 = EPOCH_AT + EPOCH_BITS;
pub(crate) const NODE_AT: u32 = OFFSET_AT + OFFSET_BITS;

const fn ones(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// 8 bytes of a node, as every operation names its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The node: its place in the list of the pool's nodes, which is the same for all programs.
    pub node: u8,
    /// Bytes from the beginning of the node's region, a multiple of 8.
    pub offset: u64,
}

impl Address {
    /// The place `words` times 8 bytes further on.
    #[must_use]
    pub const fn plus(self, words: u64) -> Self {
        Self { node: self.node, offset: self.offset + words * 8 }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {} of node {}", self.offset, self.node)
    }
}

/// A pointer to a `T` in remote memory, in 64 bits, so that one compare-and-swap changes it:
///
/// | bits | what |
/// |---|---|
/// | 8 | the node |
/// | 30 | the offset in its region, in units of 8 bytes |
/// | 12 | the *epoch*: how many lives the block has had, modulo 4096. A pointer to an earlier life differs |
/// | 14 | the *tag*, which is the structure's own: a mark, a count |
///
/// All bits 0 is the null pointer: offset 0 of node 0 is never a block.
pub struct Ptr<T> {
    bits: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Ptr<T> {
    /// No place.
    pub const NULL: Self = Self::from_bits(0);

    /// A pointer to a place. The offset must be a multiple of 8 below [`NODE_BYTES_MAX`]; `epoch` is taken modulo 4096.
    #[must_use]
    pub const fn new(at: Address, epoch: u64) -> Self {
        let offset = (at.offset / 8) & ones(OFFSET_BITS);
        Self::from_bits((at.node as u64) << NODE_AT | offset << OFFSET_AT | (epoch & ones(EPOCH_BITS)) << EPOCH_AT)
    }

    /// The pointer with these bits, as a word of remote memory has them.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { bits, of: PhantomData }
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// Where it points.
    #[must_use]
    pub const fn address(self) -> Address {
        let offset = (self.bits >> OFFSET_AT & ones(OFFSET_BITS)) * 8;
        Address { node: (self.bits >> NODE_AT) as u8, offset }
    }

    /// The life of the block that it points to, modulo 4096.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.bits >> EPOCH_AT & ones(EPOCH_BITS)
    }

    /// The structure's own bits.
    #[must_use]
    pub const fn tag(self) -> u64 {
        self.bits & ones(TAG_BITS)
    }

    /// The same pointer with another tag, taken modulo 2^14.
    #[must_use]
    pub const fn with_tag(self, tag: u64) -> Self {
        Self::from_bits(self.bits & !ones(TAG_BITS) | tag & ones(TAG_BITS))
    }

    /// Whether it points nowhere, whatever its tag is.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.bits >> OFFSET_AT == 0
    }

    /// The same place as another type.
    #[must_use]
    pub const fn cast<U>(self) -> Ptr<U> {
        Ptr::from_bits(self.bits)
    }
}

/// The life behind this one. 0 is that of memory that was never a block.
pub(crate) const fn next_epoch(epoch: u64) -> u64 {
    let next = (epoch + 1) & ones(EPOCH_BITS);
    if next == 0 { 1 } else { next }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> PartialEq for Ptr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}

impl<T> Eq for Ptr<T> {}

impl<T> Hash for Ptr<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}

impl<T> Default for Ptr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() {
            return write!(f, "null, tag {}", self.tag());
        }
        write!(f, "{}, life {}, tag {}", self.address(), self.epoch(), self.tag())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_bits() {
        let ends = [0, 8, 64, NODE_BYTES_MAX - 8];
        for (node, offset, epoch, tag) in
            [0, 1, 255].into_iter().flat_map(|n| ends.into_iter().map(move |o| (n, o, 4095 - u64::from(n), o % 16384)))
        {
            let at = Address { node, offset };
            let ptr: Ptr<u64> = Ptr::new(at, epoch).with_tag(tag);
            assert_eq!((ptr.address(), ptr.epoch(), ptr.tag()), (at, epoch, tag));
            assert_eq!(ptr.is_null(), node == 0 && offset == 0);
            assert_eq!(Ptr::<u64>::from_bits(ptr.bits()), ptr);
        }
        assert_eq!((next_epoch(0), next_epoch(4094), next_epoch(4095)), (1, 4095, 1));
    }
}
