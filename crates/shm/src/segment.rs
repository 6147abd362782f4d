//! Sealed memfds: making them, and accepting one from a peer that may lie.
use crate::Region;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Why a descriptor from a peer was not mapped, or a segment not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os { /// Which. 
        call: &'static str, /// Why. 
        source: std::io::Error },
    /// Not a memfd, on hugetlbfs, wrong size or seals missing.
    #[error("descriptor refused: {0}")]
    Refused(String),
}

/// Who may map a segment writable after it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Both parties map it read-write.
    ReadWrite,
    /// Only the existing mapping of the maker writes (F_SEAL_FUTURE_WRITE).
    PeerReadOnly,
}

/// A sealed memfd and its mapping.
#[derive(Debug)]
pub struct Segment { _r: Region }

impl Segment {
    /// Makes, maps and seals a memfd of `len` bytes (rounded up to pages).
    pub fn create(name: &str, len: u64, sharing: Sharing) -> Result<Self, SegmentError> { todo!() }
    /// Checks type, size (exactly `len`), seals and not hugetlb, then maps: read-write for `Sharing::ReadWrite`, read-only for `Sharing::PeerReadOnly`
    /// (whose FUTURE_WRITE seal is required).
    pub fn accept(fd: OwnedFd, len: u64, sharing: Sharing) -> Result<Self, SegmentError> { todo!() }
    /// The memory.
    pub fn region(&self) -> &Region { todo!() }
    /// The descriptor, to be sent to the peer.
    pub fn fd(&self) -> BorrowedFd<'_> { todo!() }
    /// Closes the descriptor, keeps the mapping.
    pub fn into_region(self) -> Region { todo!() }
}
