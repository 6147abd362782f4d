//! What can go wrong with a group.
//!
//! Owns the words. It must never say that nothing was done when something may have been.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agree::{OutOfRange, Refused};
use raas::RegionError;

use crate::class::Class;

/// A group could not be opened, or did not do what it was asked for.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// This host's memory, or the session.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A setting that cannot be.
    #[error(transparent)]
    Settings(#[from] OutOfRange),
    /// Nothing of it was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// This member led no more before the command was committed.
    #[error(
        "nobody knows whether the command is or will be applied: propose it again with the same client and number, to \
         whoever leads (`Group::propose_as`)"
    )]
    Unknown,
    /// A read cannot be answered here any more.
    #[error("this member leads no more: read at whoever does")]
    LeadsNoMore,
    /// The group is new, and not all of its members' memories are there.
    #[error(
        "the group `{group}` is new, and needs the memories of all its members once; those of {missing:?} were not there \
         within {waited:?}: start their programs"
    )]
    NotFounded {
        /// The group.
        group: String,
        /// Members whose memories cannot be opened.
        missing: Vec<u8>,
        /// How long it was waited for them.
        waited: Duration,
    },
    /// The group was founded with leases of another length.
    #[error(
        "the group `{group}` was founded with a lease of {its:?}, not of {given:?} (zero is none): give \
         `GroupBuilder::read_lease` the same in all programs"
    )]
    OtherLease {
        /// The group.
        group: String,
        /// As it was founded.
        its: Duration,
        /// What this program gave.
        given: Duration,
    },
    /// The group was founded with acknowledgements of another class.
    #[error(
        "the acknowledgements of the group `{group}` are {its}, not {given}: give `GroupBuilder::synced` in all of its \
         programs or in none"
    )]
    OtherClass {
        /// The group.
        group: String,
        /// As it was founded.
        its: Class,
        /// What this program gave.
        given: Class,
    },
    /// A directory that is not what this member's memory can be made of. Nothing in it was changed.
    #[error(
        "the directory {} is not this member's: {what}; give the one that this member had, or begin as a new memory: with \
         an empty directory, after program and daemon of this host have ended", path.display()
    )]
    OtherDirectory {
        /// Which.
        path: PathBuf,
        /// Why.
        what: &'static str,
    },
    /// Another program has the directory.
    #[error("another program keeps a member in {}: each member has a directory of its own", path.display())]
    DirectoryInUse {
        /// Which.
        path: PathBuf,
    },
    /// The directory cannot be read or written.
    #[error("the directory {}: {what}: {cause}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What was done with it.
        what: &'static str,
        /// What the system said.
        cause: String,
    },
    /// A host has the group's region, and no program has opened the group there.
    #[error("no program has opened the group `{group}` on {host} yet: look again when it has")]
    NotOpened {
        /// The group.
        group: String,
        /// The host.
        host: IpAddr,
    },
    /// The members that were given do not have the one that this program is.
    #[error("member {me} is none of the group's members: give its host in `GroupBuilder::members`")]
    NoMember {
        /// Which.
        me: u8,
    },
    /// The system did not give what a member needs.
    #[error("{what}: {cause}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        cause: String,
    },
    /// The group was closed, or its thread ended.
    #[error("this program has closed the group")]
    Closed,
}

raas::debug_says_the_words!(GroupError);
