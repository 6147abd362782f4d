//! What a member's program says of its file, in the owner's page of its memory.
//!
//! Owns the words. Each is of 8 bytes, so none is ever torn; they may be of different moments. A word must never be
//! written before what it says is synced.

use crate::layout::{OWNER_AT, OWNER_BYTES};
use crate::term::Term;
use crate::words::{put, word};

/// Where they stand.
pub(crate) const KEPT_AT: u64 = OWNER_AT + OWNER_BYTES as u64;

/// See the head of this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// Index and sum of the last entry that the file holds, in one word: see `Tail::commit_word`.
    pub(crate) synced: u64,
    /// The greatest term that the file holds: this member's memory is no older leader's any more.
    pub promised: Term,
    /// The index of the last entry that the file holds.
    pub index: u64,
    /// Where that ends, in bytes since the group began.
    pub end: u64,
    /// Why nothing is kept any more: an error number of the system, 0 if it is.
    pub fault: u64,
}

impl Kept {
    /// Where they stand in a memory.
    pub const AT: u64 = KEPT_AT;
    /// Bytes of them.
    pub const BYTES: usize = 40;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        for (at, value) in [self.synced, self.promised.bits(), self.index, self.end, self.fault].into_iter().enumerate()
        {
            put(&mut bytes, at * 8, value);
        }
        bytes
    }

    /// What is written where a file can be written no more, until the program ends: place and bytes.
    #[must_use]
    pub fn of_fault(error: u32) -> (u64, Vec<u8>) {
        (KEPT_AT + 32, u64::from(error).to_le_bytes().to_vec())
    }

    /// As they were read.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let promised = Term::from_bits(word(bytes, 8)?);
        let (synced, index, end, fault) = (word(bytes, 0)?, word(bytes, 16)?, word(bytes, 24)?, word(bytes, 32)?);
        Some(Self { synced, promised, index, end, fault })
    }
}
