//! The state that all replicas have: the user's machine, what clients were answered, and who the members are.
//!
//! Owns that a command is applied once. It must depend on the entries alone, so that all replicas stay the same.

use std::collections::BTreeMap;

use crate::entry::{Entry, Kind};
use crate::error::BadSnapshot;
use crate::layout::{Mark, Tail};
use crate::members::{MEMBERS_BYTES, Members};
use crate::term::Term;
use crate::words::{put, word};

/// Clients whose last number is kept. One that was silent while so many others wrote may have a command done twice.
pub const CLIENTS_MAX: usize = 4096;

/// A state machine of the user's. The same commands in the same order must give the same state and the same replies.
pub trait Machine {
    /// Carries out a command; the reply goes to the client.
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8>;

    /// The state as bytes, behind what is in `into`.
    fn save(&self, into: &mut Vec<u8>);

    /// Takes the state from bytes that `save` made. On an error it may be in any state.
    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot>;
}

/// What a client was answered last.
#[derive(Debug, Clone)]
struct Answered {
    number: u64,
    index: u64,
    reply: Vec<u8>,
}

/// What is known of a client's command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known<'s> {
    New,
    /// It was done, with this reply.
    Done(&'s [u8]),
    /// A later one was done.
    Over(u64),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct State<M> {
    pub(crate) machine: M,
    clients: BTreeMap<u64, Answered>,
    /// The members as of the last applied entry.
    pub(crate) members: Members,
    pub(crate) applied: Tail,
    /// The term of the last command that was applied as an entry.
    pub(crate) commanded: Term,
}

pub(crate) fn crc_of_snapshot(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

impl<M: Machine> State<M> {
    pub(crate) fn new(machine: M, group: u64, members: Members) -> Self {
        Self { machine, clients: BTreeMap::new(), members, applied: Tail::start(group), commanded: Term::NONE }
    }

    pub(crate) fn known(&self, client: u64, number: u64) -> Known<'_> {
        match self.clients.get(&client) {
            Some(last) if last.number == number => Known::Done(&last.reply),
            Some(last) if last.number > number => Known::Over(last.number),
            _ => Known::New,
        }
    }

    /// Applies the entry behind the last one; the reply, if it is a command.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Option<Vec<u8>> {
        self.applied = entry.tail;
        match entry.kind {
            Kind::Nothing => None,
            Kind::Members => {
                self.members = Members::decode(entry.bytes()).unwrap_or_else(|| self.members.clone());
                None
            }
            Kind::Command => {
                self.commanded = entry.tail.term;
                Some(self.command(entry))
            }
        }
    }

    fn command(&mut self, entry: &Entry) -> Vec<u8> {
        let (index, client, number) = (entry.tail.index, entry.client, entry.number);
        match self.known(client, number) {
            Known::Done(reply) => return reply.to_vec(),
            Known::Over(_) => return vec![],
            Known::New => {}
        }
        let reply = self.machine.apply(index, entry.bytes());
        self.clients.insert(client, Answered { number, index, reply: reply.clone() });
        if self.clients.len() > CLIENTS_MAX {
            let oldest = self.clients.iter().min_by_key(|(_, last)| last.index).map(|(client, _)| *client);
            oldest.map(|client| self.clients.remove(&client));
        }
        reply
    }

    pub(crate) fn save(&self) -> Vec<u8> {
        let mut bytes = self.members.encode();
        push(&mut bytes, self.clients.len() as u64);
        for (client, last) in &self.clients {
            for value in [*client, last.number, last.index, last.reply.len() as u64] {
                push(&mut bytes, value);
            }
            bytes.extend_from_slice(&last.reply);
        }
        let at = bytes.len();
        push(&mut bytes, 0);
        self.machine.save(&mut bytes);
        let length = (bytes.len() - at - 8) as u64;
        put(&mut bytes, at, length);
        // Memory is written in words.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// Goes to the state of a snapshot.
    pub(crate) fn load(&mut self, mark: &Mark, bytes: &[u8]) -> Result<(), BadSnapshot> {
        let members = Members::decode(bytes).ok_or(BadSnapshot)?;
        let (clients, rest) = read_clients(bytes, MEMBERS_BYTES).ok_or(BadSnapshot)?;
        let length = word(rest, 0).and_then(|length| usize::try_from(length).ok()).ok_or(BadSnapshot)?;
        let machine = rest.get(8..).and_then(|rest| rest.get(..length)).ok_or(BadSnapshot)?;
        self.machine.load(machine)?;
        (self.members, self.clients, self.applied) = (members, clients, mark.tail);
        Ok(())
    }
}

fn push(bytes: &mut Vec<u8>, value: u64) {
    let at = bytes.len();
    bytes.resize(at + 8, 0);
    put(bytes, at, value);
}

fn read_clients(bytes: &[u8], mut at: usize) -> Option<(BTreeMap<u64, Answered>, &[u8])> {
    let mut clients = BTreeMap::new();
    let count = word(bytes, at)?;
    at += 8;
    for _ in 0..count {
        let (number, index, length) = (word(bytes, at + 8)?, word(bytes, at + 16)?, word(bytes, at + 24)?);
        let client = word(bytes, at)?;
        let end = usize::try_from(length).ok()?.checked_add(at + 32)?;
        let reply = bytes.get(at + 32..end)?.to_vec();
        clients.insert(client, Answered { number, index, reply });
        at = end;
    }
    Some((clients, bytes.get(at..)?))
}
