//! A member's program in the model: a replica, and what it has under way.
//!
//! Owns how an action becomes a flight, and how the end of a flight becomes an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use agree::{Action, Answer, Layout, Member, Replica, Settings};
use rmem::{Address, Chain, Error};

use super::registers::{Chronicle, Registers};
use crate::flight::{Flight, Outcome};
use crate::keeper::Taken;
use crate::world::World;

/// Lines of a ring: few, so that it goes round often.
const RING_LINES: u64 = 48;
const SNAPSHOT_BYTES: u64 = 1024;
/// Bytes of a command, at most.
pub(super) const COMMAND_BYTES_MAX: usize = 120;
/// A clock is fast or slow by one in so many.
const CLOCK_SHARE: u64 = 130;
const CLOCKS_APART_US: u64 = 1 << 40;
pub(super) const GROUP: u64 = 0x61_6772_6565;

/// The program of one member, in one life after the other.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) me: usize,
    /// `None`: it is dead.
    pub(super) replica: Option<Replica<Registers>>,
    /// How often it was started.
    pub(super) life: u64,
    /// It does nothing before.
    pub(super) paused_until: u64,
    pub(super) tick_at: u64,
    /// It leads, or wants to.
    pub(super) reigns: bool,
    /// Its host's clock is fast, right or slow: 1, 0, -1.
    rate: i64,
    /// The grants that it has: fence, and the model's number of the grant.
    grants: BTreeMap<u8, (u64, u64)>,
}

/// What a flight is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    pub(super) program: usize,
    pub(super) life: u64,
    pub(super) node: usize,
    id: u64,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    TakeOver(u64),
    /// The number of the memory that is read.
    Read(u64),
    Write,
}

/// Bytes of a member's memory.
pub(super) fn memory_bytes() -> u64 {
    layout().map_or(0, Layout::bytes)
}

pub(super) fn layout() -> Option<Layout> {
    Layout::new(SNAPSHOT_BYTES, RING_LINES).ok()
}

pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect()
}

impl Program {
    pub(super) fn new(me: usize) -> Self {
        Self {
            me,
            replica: None,
            life: 0,
            paused_until: 0,
            tick_at: 0,
            reigns: false,
            rate: 0,
            grants: BTreeMap::new(),
        }
    }

    /// What its host's clock says. Two hosts' go apart by less than a 64th.
    pub(super) fn clock(&self, now: u64) -> u64 {
        let apart = (now / CLOCK_SHARE) as i64 * self.rate;
        (now + self.me as u64 * CLOCKS_APART_US).saturating_add_signed(apart)
    }

    /// It is started, and knows the members as the group began.
    pub(super) fn start(
        &mut self,
        members: &[Member],
        (period_us, piece_bytes_max, is_synced): (u64, usize, bool),
        (lease_us, rate): (u64, i64),
        seed: u64,
        chronicle: &Arc<Mutex<Chronicle>>,
    ) {
        let Some(layout) = layout() else { return };
        let settings = Settings {
            group: GROUP,
            me: self.me as u8,
            members: members.to_vec(),
            layout,
            command_bytes_max: COMMAND_BYTES_MAX,
            piece_bytes_max,
            period_us,
            lease_us,
            is_synced,
            seed,
        };
        self.replica = Replica::new(settings, Registers::new(chronicle)).ok();
        (self.life, self.rate) = (self.life + 1, rate);
        self.grants.clear();
    }

    /// Carries out an action; a flight with what it is for, or the answer at once.
    pub(super) fn begin(&self, action: Action, world: &World) -> Option<Result<(u64, Posted), (u64, Answer)>> {
        let posted = |id, node: u8, what| Posted { program: self.me, life: self.life, node: node.into(), id, what };
        match action {
            // A memory that waits for its file is not found, as whoever looks for its number sees.
            Action::TakeOver { id, member, .. } | Action::Read { id, member, .. }
                if !world.state().keepers[usize::from(member)].is_whole =>
            {
                Some(Err((id, Answer::Lost)))
            }
            Action::TakeOver { id, member, fence } => {
                let flight = world.post(|at, _| Flight::of_take_over(self.me, member.into(), fence, at));
                Some(Ok((flight, posted(id, member, What::TakeOver(fence)))))
            }
            Action::Read { id, member, offset, bytes } => {
                let mut chain = Chain::new();
                chain.read(Address { node: member, offset }, bytes / 8);
                let number = world.state().keepers[usize::from(member)].number();
                let flight = world.post_to(self.me, &chain, None);
                Some(Ok((flight, posted(id, member, What::Read(number)))))
            }
            Action::Write { id, member, fence, offset, bytes } => match self.grants.get(&member) {
                Some((held, grant)) if *held == fence => {
                    let mut chain = Chain::new();
                    chain.write(Address { node: member, offset }, words(&bytes));
                    let flight = world.post_to(self.me, &chain, Some(*grant));
                    Some(Ok((flight, posted(id, member, What::Write))))
                }
                _ => Some(Err((id, Answer::Unknown))),
            },
            Action::Publish { offset, bytes } => {
                if let Some(Some(memory)) = world.state().nodes.get_mut(self.me) {
                    for (at, word) in words(&bytes).into_iter().enumerate() {
                        memory[offset as usize / 8 + at] = word;
                    }
                }
                None
            }
        }
    }

    /// The answer to what ended so.
    pub(super) fn end(&mut self, posted: Posted, outcome: Result<Outcome, Error>, world: &World) -> (u64, Answer) {
        let member = posted.node as u8;
        let answer = match (posted.what, outcome) {
            (What::TakeOver(fence), Ok(Outcome::Taken(Taken::Granted { number, last, grant })))
                if world.state().keepers[posted.node].is_whole =>
            {
                self.grants.insert(member, (fence, grant));
                Answer::Granted { number, last }
            }
            (_, Ok(Outcome::Taken(Taken::Superseded { fence }))) => Answer::Superseded { fence },
            (What::Read(number), Ok(Outcome::Found(found))) => {
                Answer::Read { number, bytes: found.concat().into_iter().flat_map(u64::to_le_bytes).collect() }
            }
            (What::Write, Ok(_)) => Answer::Done,
            (What::Write, Err(Error::Revoked { .. })) => {
                let by = world.state().keepers[posted.node].superseded_by();
                by.filter(|_| world.below(2) == 0).map_or(Answer::Unknown, |fence| Answer::Superseded { fence })
            }
            (What::Write, Err(_)) if world.below(2) == 0 => Answer::Unknown,
            _ => Answer::Lost,
        };
        (posted.id, answer)
    }

    /// The answer to what ended in a way that nobody heard of.
    pub(super) fn unheard(posted: Posted) -> (u64, Answer) {
        (posted.id, if matches!(posted.what, What::Write) { Answer::Unknown } else { Answer::Lost })
    }

    pub(super) fn is_awake(&self, now: u64) -> bool {
        self.replica.is_some() && self.paused_until <= now
    }
}
