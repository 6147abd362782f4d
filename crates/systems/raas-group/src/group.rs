//! A group, as a program holds it.
//!
//! Owns the thread that drives it while no caller does. It must not leave a caller without an answer.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::class::Class;
use crate::committed::Committed;
use crate::drive::Drive;
use crate::durable::Keeping;
use crate::error::GroupError;
use crate::proposal::{self, Pending, Proposal};
use crate::wish::{Caller, Inbox, Wish};
use agree::{Machine, Members, Role};

/// A member of a group. Any number of threads may use it. Dropping it ends the member's part: its memory stays, and the
/// others go on with it.
pub struct Group<M: Machine> {
    inbox: Arc<Inbox<M>>,
    drive: Arc<Drive<M>>,
    thread: Option<JoinHandle<()>>,
    class: Class,
    /// Ends after the thread: what came until then is kept.
    _keeping: Option<Keeping>,
}

impl<M: Machine> fmt::Debug for Group<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("shown", &self.inbox.shown()).finish_non_exhaustive()
    }
}

impl<M: Machine + Send + 'static> Group<M> {
    pub(crate) fn start(
        (drive, inbox): (Drive<M>, Arc<Inbox<M>>),
        (class, keeping): (Class, Option<Keeping>),
    ) -> io::Result<Self> {
        let drive = Arc::new(drive);
        let driven = Arc::clone(&drive);
        let thread = std::thread::Builder::new().name("raas-group".into()).spawn(move || driven.run())?;
        Ok(Self { inbox, drive, thread: Some(thread), class, _keeping: keeping })
    }

    /// Has a command applied by all members, once. It returns when a majority has it, as the group's [class](Self::class)
    /// says where, and this member has applied it. [`GroupError::Refused`] if this member does not lead: then the command was not begun, and the error says
    /// who leads, as far as is known. [`GroupError::Unknown`] if it led no more before the command was committed.
    pub fn propose(&self, command: &[u8]) -> Result<Committed, GroupError> {
        let (client, number) = self.inbox.take_client();
        let result = self.propose_as(client, number, command);
        self.inbox.on_end(client, number, &result);
        result
    }

    /// As [`Group::propose`], for a task: it begins at once, and ends when the future does. Any number may be under way.
    pub fn propose_async(&self, command: &[u8]) -> Proposal {
        let (client, number) = self.inbox.take_client();
        let (proposal, answerer) = proposal::pair(&self.inbox.wakes);
        let inbox = Arc::clone(&self.inbox);
        let caller: Caller = Box::new(move |outcome| {
            inbox.on_end(client, number, &outcome);
            answerer.answer(outcome);
        });
        // One that nobody takes any more ends with its caller.
        if self.inbox.wish(Wish::Propose { client, number, bytes: command.to_vec(), caller }) {
            self.drive.call();
        }
        proposal
    }

    /// As [`Group::propose`], under a name of the caller's: a command with the same `client` and `number` is the same one,
    /// wherever it is proposed, and is applied once. A client's numbers grow, and it has one command under way at a time.
    pub fn propose_as(&self, client: u64, number: u64, command: &[u8]) -> Result<Committed, GroupError> {
        let (reply, answer) = sync_channel(1);
        let caller: Caller = Box::new(move |outcome| drop(reply.try_send(outcome)));
        let wish = Wish::Propose { client, number, bytes: command.to_vec(), caller };
        if !self.inbox.wish(wish) {
            return Err(GroupError::Closed);
        }
        self.drive.wait(&answer)?
    }

    /// Looks at the machine when it has everything that was committed before this call, whoever committed it: one READ of
    /// a few bytes at a majority of members, or of none under a [lease](crate::GroupBuilder::read_lease), and no program of
    /// theirs takes part. The look is taken by the thread that drives the group at that moment: this one, another caller's,
    /// or the group's own.
    pub fn read<T: Send + 'static>(&self, look: impl FnOnce(&M) -> T + Send + 'static) -> Result<T, GroupError> {
        let (reply, answer) = sync_channel(1);
        let reader = Box::new(move |machine: Result<&M, GroupError>| {
            let _ = reply.try_send(machine.map(look));
        });
        if !self.inbox.wish(Wish::Read(reader)) {
            return Err(GroupError::Closed);
        }
        self.drive.wait(&answer)?
    }

    /// As [`Group::read`], for a task: it begins at once. Any number may be under way.
    pub fn read_async<T: Send + 'static>(&self, look: impl FnOnce(&M) -> T + Send + 'static) -> Pending<T> {
        let (pending, answerer) = proposal::pair(&self.inbox.wakes);
        let reader = Box::new(move |machine: Result<&M, GroupError>| answerer.answer(machine.map(look)));
        // One that nobody takes any more ends with its reader.
        if self.inbox.wish(Wish::Read(reader)) {
            self.drive.call();
        }
        pending
    }

    /// The machine's state, as [`Machine::save`] writes it, with everything that was committed before this call: a copy to
    /// keep, from which [`Machine::load`] makes a machine that a new group begins with.
    pub fn snapshot(&self) -> Result<Vec<u8>, GroupError> {
        self.read(|machine| {
            let mut bytes = Vec::new();
            machine.save(&mut bytes);
            bytes
        })
    }

    /// What the group's acknowledgements are worth.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// What this member is now.
    #[must_use]
    pub fn role(&self) -> Role {
        self.inbox.shown().role
    }

    /// Waits until this member is what is wanted, at most for so long. Whether it is.
    pub fn wait_role(&self, within: Duration, wanted: impl Fn(Role) -> bool) -> bool {
        self.inbox.wait_until(within, &|shown| shown.is_over || wanted(shown.role)) && wanted(self.role())
    }

    /// For a task: waits until this member is something else than `was`, or the group is closed. What it is then.
    pub async fn role_after(&self, was: Role) -> Role {
        std::future::poll_fn(|context| self.inbox.poll_role(was, context.waker())).await
    }

    /// The members, as of the last command that this one has applied.
    #[must_use]
    pub fn members(&self) -> Members {
        self.inbox.shown().members
    }

    /// The index of the last entry that this member has applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.inbox.shown().applied
    }

    /// Waits until this member has applied the entry of that index, at most for so long. Whether it has.
    pub fn wait_applied(&self, index: u64, within: Duration) -> bool {
        self.inbox.wait_until(within, &|shown| shown.is_over || shown.applied >= index) && self.applied() >= index
    }

    /// Has a host join that was given to the builder: it is a member when its memory has caught up.
    pub fn add(&self, member: u8) -> Result<(), GroupError> {
        self.alter(member, true)
    }

    /// Has a member leave.
    pub fn remove(&self, member: u8) -> Result<(), GroupError> {
        self.alter(member, false)
    }

    /// What this member is, and what it knows of the others' memories, for people who ask why a group does not go on.
    pub fn describe(&self) -> Result<String, GroupError> {
        let (reply, answer) = sync_channel(1);
        if !self.inbox.wish(Wish::Describe(reply)) {
            return Err(GroupError::Closed);
        }
        self.drive.wait(&answer)
    }

    fn alter(&self, id: u8, is_added: bool) -> Result<(), GroupError> {
        let (reply, answer) = sync_channel(1);
        if !self.inbox.wish(Wish::Alter { id, is_added, reply }) {
            return Err(GroupError::Closed);
        }
        self.drive.wait(&answer)?
    }
}

impl<M: Machine> Drop for Group<M> {
    fn drop(&mut self) {
        self.inbox.wish(Wish::Close);
        self.inbox.ring();
        if let Some(thread) = self.thread.take() {
            // What it panicked with it has said.
            let _ = thread.join();
        }
    }
}
