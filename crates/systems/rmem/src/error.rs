//! What can go wrong with remote memory.
//!
//! Owns the words. It must never say that nothing happened when something may have.

use raas::RegionError;

use crate::ptr::Address;

/// An operation on remote memory did not succeed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The node's memory is gone, or its host cannot be reached.
    #[error("node {node} is lost: {why}; open the pool again without it, or when it is back")]
    NodeLost {
        /// The node.
        node: u8,
        /// What the library said.
        why: String,
    },
    /// The node's owner took all handles back: open its region again, with the key that it has since then.
    #[error("node {node} was revoked by its owner; open its region again, with the new key if it has one")]
    Revoked {
        /// The node.
        node: u8,
    },
    /// A WRITE was under way when the lane was reset: it may have been done or not.
    #[error("node {node}: a write may have been done or not: {why}")]
    OutcomeUnknown {
        /// The node.
        node: u8,
        /// What the library said.
        why: String,
    },
    /// Any other error of the node's region.
    #[error("node {node}: {cause}")]
    Region {
        /// The node.
        node: u8,
        /// The error.
        #[source]
        cause: RegionError,
    },
    /// The pool has no such node.
    #[error("there is no node {node}: the pool has {nodes}")]
    NoNode {
        /// The node.
        node: u8,
        /// Nodes of the pool.
        nodes: usize,
    },
    /// The placement asks for memory of this host, and the pool has none here.
    #[error("no node of the pool lies on this host: add one, or place by key or in turn")]
    NoLocalNode,
    /// A pointer that does not point into its node.
    #[error("{at} does not lie in the node's {bytes} bytes, or is not a multiple of 8: is the pointer another pool's?")]
    BadPointer {
        /// Where it points.
        at: Address,
        /// Bytes of the node.
        bytes: u64,
    },
    /// No block of this size and alignment can be: the size is 1 byte to 1 GiB, the alignment a power of two to 1 MiB.
    #[error("no block has {size} bytes aligned to {align}: 1 byte to 1 GiB, a power of two to 1 MiB")]
    BadLayout {
        /// Bytes.
        size: u64,
        /// Alignment.
        align: u64,
    },
    /// The node has no memory left for a block of this size.
    #[error("node {node} has no memory for a block of {size} bytes: free some, or add a node")]
    NoMemory {
        /// The node.
        node: u8,
        /// Bytes that were asked for.
        size: u64,
    },
    /// The node was not formatted for a pool, or as another node of it.
    #[error(
        "node {node} is not formatted as that node (its first words are {found:#x?}): is the order the same everywhere?"
    )]
    NotFormatted {
        /// The node.
        node: u8,
        /// What stands there.
        found: Vec<u64>,
    },
    /// As many clients have joined as may.
    #[error("the pool has its {max} clients: let one leave, or wait a lease of {lease_us} us if one has died")]
    MembersFull {
        /// How many may.
        max: usize,
        /// The lease.
        lease_us: u64,
    },
    /// This client was silent for longer than a lease, and was taken for dead; nothing was done. It may try again.
    #[error("the client's lease of {lease_us} us ran out again and again: give the pool a longer one")]
    LeaseLost {
        /// The lease.
        lease_us: u64,
    },
    /// Others were faster each time; nothing was done. Try again later.
    #[error("{what}: others were faster {attempts} times")]
    Contended {
        /// The operation.
        what: &'static str,
        /// How often it was tried.
        attempts: u32,
    },
    /// What was waited for did not come in time.
    #[error("{what}: waited {waited_us} us in vain; is somebody dead?")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long, in microseconds.
        waited_us: u64,
    },
    /// Somebody waited in vain for this lock's holder, so nobody may take it any more.
    #[error("the lock is broken: its holder was silent for too long; make another, or use a lock with leases")]
    LockBroken,
    /// The lock's lease ran out, and another client has it: what was written under it later must be checked by token.
    #[error("the lock's lease ran out, and the lock went on (token {token})")]
    LockLost {
        /// The token of the lease that is over.
        token: u64,
    },
    /// All places for names are taken.
    #[error("the pool has its {max} roots: remove one")]
    RootsFull {
        /// How many there may be.
        max: usize,
    },
    /// No structure of this kind is at the pointer or under the name.
    #[error("there is no {wanted} here (found {found:#x})")]
    WrongKind {
        /// What was asked for.
        wanted: &'static str,
        /// What stands there.
        found: u64,
    },
    /// The value or a parameter is out of its range.
    #[error("{what} is {value}, and at most {max} (at least 1)")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The most.
        max: u64,
    },
    /// Retired blocks wait for a reader that neither goes on nor dies.
    #[error("{waiting} retired blocks wait for readers: let slow clients renew, or retire less")]
    LimboFull {
        /// How many.
        waiting: usize,
    },
}

raas::debug_says_the_words!(Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_that_fails_prints_a_sentence() {
        let error = Error::NoMemory { node: 2, size: 4096 };
        assert_eq!(format!("{error:?}"), "node 2 has no memory for a block of 4096 bytes: free some, or add a node");
    }
}
