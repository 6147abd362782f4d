//! What a replica asks of its driver, what the driver answers, and what the user hears.
//!
//! Owns the numbers of what was asked. An answer to what is no longer waited for must change nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::members::Members;
use crate::term::Term;

/// What the driver is to do. Several may be under way at a time, and end in any order. Each with an `id` is answered
/// once, by [`Replica::answer`](crate::Replica::answer), with what it allows. Offsets and lengths are multiples of 8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask the daemon of a memory for its writer's place: [`Answer::Granted`], `Superseded` or `Lost`.
    TakeOver {
        /// Of the answer.
        id: u64,
        /// Whose memory.
        member: u8,
        /// The term that the daemon is to grant.
        fence: u64,
    },
    /// Read a memory; no grant is needed: [`Answer::Read`] or `Lost`.
    Read {
        /// Of the answer.
        id: u64,
        /// Whose memory.
        member: u8,
        /// From where.
        offset: u64,
        /// How many.
        bytes: usize,
    },
    /// Write to a memory **by the grant of this fence alone**; if it is not the one that is held, it is
    /// `Superseded` or `Unknown` and nothing is sent: [`Answer::Done`], `Superseded`, `Unknown` or `Lost`.
    Write {
        /// Of the answer.
        id: u64,
        /// Whose memory.
        member: u8,
        /// The grant.
        fence: u64,
        /// To where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Write into the owner's page of this host's own memory, if it is there; nobody waits for it.
    Publish {
        /// To where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The memory is this program's to write.
    Granted {
        /// The number of the memory.
        number: u64,
        /// What its daemon granted before, 0 if it does not know.
        last: u64,
    },
    /// Somebody has a fence at least as high.
    Superseded {
        /// That fence.
        fence: u64,
    },
    /// What was read.
    Read {
        /// The number of the memory.
        number: u64,
        /// As many as were asked for.
        bytes: Vec<u8>,
    },
    /// It was written: every later READ sees it.
    Done,
    /// It may have been written or not, in part too. It is not written after a later grant.
    Unknown,
    /// The memory cannot be reached. What was to be written may have been.
    Lost,
}

/// What the user hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A command that was proposed here is committed, and was applied once.
    Committed {
        /// Of its entry, or 0 if it was applied before and this repeats the reply.
        index: u64,
        /// The client.
        client: u64,
        /// Its number.
        number: u64,
        /// What the machine said.
        reply: Vec<u8>,
    },
    /// Nobody knows whether a command that was proposed here is or will be applied. To propose it again with the same
    /// number, at whoever leads, is safe.
    Unknown {
        /// The client.
        client: u64,
        /// Its number.
        number: u64,
    },
    /// The machine, as it is now, has everything that was committed when this read was asked for.
    Readable {
        /// What [`Replica::read`](crate::Replica::read) returned.
        read: u64,
    },
    /// This member leads no more, so the read cannot be answered here.
    ReadFailed {
        /// What [`Replica::read`](crate::Replica::read) returned.
        read: u64,
    },
    /// What this replica is.
    Role(Role),
    /// The members as of the last entry that this replica applied. One that catches up hears of older lists too.
    Members(Members),
    /// The state is more than a snapshot may have, so the log cannot be recycled and will be full.
    SnapshotTooLarge {
        /// Bytes of the state.
        bytes: u64,
        /// Of a snapshot, at most.
        max: u64,
    },
    /// A member's memory says what none of the group's programs writes: a term that is far from all others, or that cannot
    /// be; then it is not counted. Or it has not what this leader wrote there; then it is written again. Said each time that
    /// this is met.
    Wild {
        /// Whose memory.
        member: u8,
    },
    /// The machine does not know a snapshot of its group's: this replica learns nothing more.
    BadSnapshot,
}

/// What a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It learns.
    Follower {
        /// Who leads, as far as it knows.
        leader: Option<u8>,
    },
    /// It wants to lead.
    Candidate {
        /// In this term.
        term: Term,
    },
    /// It leads, and its log has all that was ever committed.
    Leader {
        /// In this term.
        term: Term,
    },
}

/// What an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The beat of the leader of this term.
    Beat(Term),
    /// A look at a member's memory before a campaign.
    Look(u8),
    /// Learning from the own memory.
    Learn,
    /// What a leader or candidate does with a memory.
    Hold(u8, Hold),
    /// The term in a member's head, of the round of that number.
    Confirm(u8, u64),
    /// A piece of the snapshot from which a new leader starts.
    Load,
}

/// See [`Use::Hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Grant,
    Head,
    Name,
    Log,
    /// Entries to the end of this index.
    Entries,
    Commit,
    Piece,
    Mark,
    /// What its owner says of its file.
    Kept,
}

/// What waits for driver and user.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) actions: VecDeque<Action>,
    pub(crate) events: VecDeque<Event>,
    uses: BTreeMap<u64, Use>,
    last: u64,
}

impl Outbox {
    fn next(&mut self, what: Use) -> u64 {
        self.last += 1;
        self.uses.insert(self.last, what);
        self.last
    }

    pub(crate) fn take_over(&mut self, member: u8, fence: u64) {
        let id = self.next(Use::Hold(member, Hold::Grant));
        self.actions.push_back(Action::TakeOver { id, member, fence });
    }

    pub(crate) fn read(&mut self, what: Use, member: u8, (offset, bytes): (u64, usize)) {
        let id = self.next(what);
        self.actions.push_back(Action::Read { id, member, offset, bytes });
    }

    pub(crate) fn write(&mut self, what: Hold, (member, fence): (u8, u64), offset: u64, bytes: Vec<u8>) -> u64 {
        let id = self.next(Use::Hold(member, what));
        self.actions.push_back(Action::Write { id, member, fence, offset, bytes });
        id
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<Use> {
        self.uses.remove(&id)
    }

    /// Answers for which this holds are no longer waited for.
    pub(crate) fn forget(&mut self, which: impl Fn(&Use) -> bool) {
        self.uses.retain(|_, what| !which(what));
    }

    /// Answers that are waited for.
    pub(crate) fn asked(&self) -> usize {
        self.uses.len()
    }

    pub(crate) fn waits_for(&self, which: impl Fn(&Use) -> bool) -> bool {
        self.uses.values().any(which)
    }
}
