//! A look at one member's memory by somebody who is no member: what its head, its log and its owner's page say.
//!
//! Owns what such a look takes for committed: what a follower with this memory would. It writes nothing.

use crate::layout::{Layout, Owner, Tail};
use crate::members::{Member, Members};
use crate::scan::{Found, Scan, Step};
use crate::settings::Settings;
use crate::term::Term;

/// What is read to see a log, a piece at a time.
const PIECE_BYTES: usize = 32 << 10;

/// See the head of this file.
#[derive(Debug)]
pub struct Glance {
    settings: Settings,
    number: u64,
    scan: Scan,
}

/// How a glance goes on.
#[derive(Debug)]
pub enum Glanced {
    /// These bytes are read next, and given to [`Glance::on_read`].
    Read {
        /// Where.
        offset: u64,
        /// How many.
        bytes: usize,
    },
    /// All was seen.
    Seen(Sight),
    /// The memory is another group's.
    Foreign,
}

/// What a memory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// The term in its head: that of the last leader who took hold of it.
    pub term: Term,
    /// The last entry of its log.
    pub last: u64,
    /// Where its log ends, in bytes since the group began.
    pub end: u64,
    /// The last entry that this memory says is committed.
    pub commit: u64,
    /// Where that ends.
    pub commit_end: u64,
    /// The members by its log.
    pub members: Members,
}

/// What the program beside a memory says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Grows while it lives, by one in each period.
    pub beat: u64,
    /// The term in which it leads or tries to.
    pub leads: Term,
    /// The last entry that it has applied.
    pub applied: u64,
}

impl Beat {
    /// Bytes of a memory, from [`crate::OWNER_AT`] on, that tell it.
    pub const BYTES: usize = crate::layout::OWNER_BYTES;

    /// As it was read.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Owner::decode(bytes).map(|Owner { beat, leads, applied, .. }| Self { beat, leads, applied })
    }
}

impl Glance {
    /// Begins one at the memory of that number: of a group's number, its layout, its first members, and the bytes of a
    /// command, at most, as its members have them. What is read first.
    #[must_use]
    pub fn begin(
        group: u64,
        layout: Layout,
        members: Vec<Member>,
        command_bytes_max: usize,
        number: u64,
    ) -> (Self, Glanced) {
        let settings = Settings {
            group,
            me: 0,
            members,
            layout,
            command_bytes_max,
            piece_bytes_max: PIECE_BYTES,
            period_us: 1,
            lease_us: 0,
            is_synced: false,
            seed: 0,
        };
        let (offset, bytes) = Scan::HEAD;
        (Self { settings, number, scan: Scan::default() }, Glanced::Read { offset, bytes })
    }

    /// What came.
    pub fn on_read(&mut self, bytes: &[u8]) -> Glanced {
        match self.scan.on_read(self.number, bytes, &self.settings) {
            Step::Read((offset, bytes)) => Glanced::Read { offset, bytes },
            Step::Done(found) => Glanced::Seen(sight(&found)),
            Step::Foreign => Glanced::Foreign,
        }
    }
}

fn sight(found: &Found) -> Sight {
    let (mark, log) = (found.head.mark.tail, &found.log);
    let tails = || log.entries.iter().map(|entry| entry.tail);
    let told = tails().filter(|tail| tail.commit_word() == found.head.commit).map(|tail| tail.index);
    let said = log.entries.iter().map(|entry| entry.commit);
    let index = told.chain(said).max().unwrap_or(0);
    let commit: Tail = tails().find(|tail| tail.index == index).unwrap_or(mark);
    let bytes = |line: u64| line * crate::layout::LINE_BYTES as u64;
    Sight {
        term: found.head.term,
        last: log.tail.index,
        end: bytes(log.tail.line),
        commit: commit.index,
        commit_end: bytes(commit.line),
        members: found.members(),
    }
}
