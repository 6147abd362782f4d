//! What stands in the first bytes of each node.
//!
//! Owns the places there (docs/use/structures.md has them as a table), and how a node becomes part of a pool.

use std::time::Duration;

use crate::error::Error;
use crate::layout::CLASSES;
use crate::memory::{Atomic, Memory};
use crate::ptr::{Address, NODE_BYTES_MAX};

/// Bytes at a node's beginning that are not handed out.
pub const HEADER_BYTES: u64 = 4096;
/// Clients that a pool has at a time, at most.
pub const MEMBERS_MAX: usize = 64;
/// Names of roots, at most.
pub const ROOTS_MAX: usize = 64;
/// The lease that pools have if nobody says otherwise: 1 second.
pub const LEASE: Duration = Duration::from_secs(1);

const MAGIC: u64 = u64::from_le_bytes(*b"rmem 1\0\0");
/// Words that say what the node is: magic, number, bytes, lease in microseconds.
const IDENTITY_WORDS: usize = 4;
const BUMP: u64 = 32;
const EPOCH: u64 = 64;
const ROOTS: u64 = 640;
const FREE: u64 = 1728;

const _: () = assert!(FREE + CLASSES as u64 * 8 <= HEADER_BYTES);

const fn at(node: u8, offset: u64) -> Address {
    Address { node, offset }
}

/// The first byte that was never handed out.
pub(crate) const fn bump(node: u8) -> Address {
    at(node, BUMP)
}

/// The pool's epoch; the members' words stand behind it.
pub(crate) const fn epoch() -> Address {
    at(0, EPOCH)
}

/// The word of a member.
pub(crate) const fn member(slot: usize) -> Address {
    at(0, EPOCH + 8 + slot as u64 * 8)
}

/// A root: hash of its name, and pointer.
pub(crate) const fn root(number: usize) -> Address {
    at(0, ROOTS + number as u64 * 16)
}

/// The head of a list of free blocks.
pub(crate) const fn free(node: u8, class: usize) -> Address {
    at(node, FREE + class as u64 * 8)
}

/// Makes memory of zeroes the node of that number. All nodes of a pool must have the same lease. Whoever has the
/// memory does this once, before others open it.
pub async fn format<M: Memory>(memory: &M, node: u8, lease: Duration) -> Result<(), Error> {
    let bytes = memory.bytes(node)?;
    if !(2 * HEADER_BYTES..=NODE_BYTES_MAX).contains(&bytes) {
        return Err(Error::OutOfRange { what: "the bytes of a node", value: bytes, max: NODE_BYTES_MAX });
    }
    let lease = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX).max(8);
    memory.write(at(node, 8), &[node.into(), bytes, lease, HEADER_BYTES]).await?;
    // The epoch of the pool begins at 8, so that nothing was ever retired in an epoch below 0.
    memory.write(at(node, EPOCH), &[8]).await?;
    let found = memory.atomic(at(node, 0), Atomic::CompareSwap { expected: 0, new: MAGIC }).await?;
    if found == 0 { Ok(()) } else { Err(Error::NotFormatted { node, found: vec![found] }) }
}

/// Looks whether each node is the one that this client takes it for; the pool's lease in microseconds.
pub(crate) async fn check<M: Memory>(memory: &M) -> Result<u64, Error> {
    let mut lease_us = None;
    for node in 0..memory.nodes() {
        let node = node as u8;
        let mut found = [0; IDENTITY_WORDS];
        memory.read(at(node, 0), &mut found).await?;
        let [magic, number, bytes, lease] = found;
        let is_it = (magic, number, bytes) == (MAGIC, node.into(), memory.bytes(node)?) && lease >= 8;
        if !is_it || *lease_us.get_or_insert(lease) != lease {
            return Err(Error::NotFormatted { node, found: found.to_vec() });
        }
    }
    lease_us.ok_or(Error::NoNode { node: 0, nodes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_on_something_else() {
        assert!(bump(0).offset + 8 <= epoch().offset);
        assert!(member(MEMBERS_MAX).offset <= root(0).offset);
        assert!(root(ROOTS_MAX).offset <= free(0, 0).offset);
    }
}
