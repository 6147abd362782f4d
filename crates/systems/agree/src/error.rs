//! What a replica refuses, and what keeps it from going on.
//!
//! Owns the words. It must never say that something was not done when it may have been.

use std::fmt;

/// What was asked for was not begun.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Another member leads, or nobody does.
    #[error("this member does not lead; ask {}", hint.map_or("again in a while".to_owned(), |id| format!("member {id}")))]
    NotLeader {
        /// Who leads, as far as is known.
        hint: Option<u8>,
    },
    /// The ring is full of what could not be recycled yet.
    #[error("the log is full ({used} of {lines} lines): propose again when some of it is applied, or make it larger")]
    Full {
        /// Lines in use.
        used: u64,
        /// Lines of the ring.
        lines: u64,
    },
    /// The bytes are more than an entry may have.
    #[error("{bytes} bytes are more than an entry may have ({max}): send less, or make entries larger")]
    TooLong {
        /// Bytes that were given.
        bytes: usize,
        /// The most.
        max: usize,
    },
    /// The client has had the answer to a later number already.
    #[error("client {client} has gone on to number {last}; number {number} is over")]
    Superseded {
        /// The client.
        client: u64,
        /// The number that was asked for.
        number: u64,
        /// The client's last.
        last: u64,
    },
    /// A change of members is under way.
    #[error("a change of members is under way: ask again when it is committed")]
    Changing,
    /// A member that is one already, or is none, or the last one, or one too many.
    #[error("member {id} cannot be added or removed: the group has {members} of at most {max}")]
    NoChange {
        /// The member.
        id: u8,
        /// Members of the group.
        members: usize,
        /// The most.
        max: usize,
    },
}

/// Settings with which there can be no replica.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}; it must be from {min} to {max}")]
pub struct OutOfRange {
    /// Which.
    pub what: &'static str,
    /// What was given.
    pub value: u64,
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

/// A snapshot that the machine cannot read.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the machine does not know this snapshot: do all programs of the group have the same machine?")]
pub struct BadSnapshot;

/// Bytes that are no member's file.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no file of a member of a group, or its beginning was damaged: it proves nothing")]
pub struct BadJournal;

// A program that ends with it prints a sentence.
impl fmt::Debug for BadJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// A program that ends with it prints a sentence.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// A program that ends with it prints a sentence.
impl fmt::Debug for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// A program that ends with it prints a sentence.
impl fmt::Debug for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
