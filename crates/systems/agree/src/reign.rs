//! One term of one member: first as a candidate, then as the leader.
//!
//! Owns the way to leadership: a majority of memories, each with the own term in its head before anything else is
//! written anywhere; the log among them that is furthest on; and an own entry behind it. It must never lead from less.

mod leading;

use std::collections::{BTreeMap, BTreeSet};

use crate::action::{Answer, Event, Hold, Use};
use crate::context::Context;
use crate::layout::Mark;
use crate::log::Log;
use crate::machine::Machine;
use crate::members::Members;
use crate::memory::{Came, Memory, Stage};
use crate::scan::Load;
use crate::settings::{CAMPAIGN_PERIODS, PATIENCE_PERIODS};
use crate::term::Term;
use leading::Leading;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Reign {
    pub(crate) term: Term,
    /// The members as of the log's end.
    pub(crate) members: Members,
    pub(crate) memories: BTreeMap<u8, Memory>,
    pub(crate) phase: Phase,
    /// Without a majority until then it is given up.
    until: u64,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Memories are asked for.
    Gathering,
    /// This member's state is behind the log's first entry: it takes the snapshot of that member's memory.
    Loading(Box<Load>, u8),
    /// It leads.
    Leading(Box<Leading>),
}

/// Why it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Somebody has a greater term, or had this one.
    Superseded(Term),
    /// There is no majority to be had, or no attempt left: with a greater term there may be.
    NoMajority,
    /// This member was removed.
    Removed,
    /// The machine does not know the snapshot.
    BadSnapshot,
}

impl Reign {
    pub(crate) fn begin<M>(term: Term, members: Members, hosts: &BTreeSet<u8>, cx: &mut Context<'_, M>) -> Self {
        let ask = |id: &u8| (*id, Memory::ask(*id, term, cx.outbox));
        let memories = hosts.iter().map(ask).collect();
        Self { term, members, memories, phase: Phase::Gathering, until: cx.patiently_after(CAMPAIGN_PERIODS) }
    }

    pub(crate) fn leading(&self) -> Option<&Leading> {
        match &self.phase {
            Phase::Leading(leading) => Some(leading),
            _ => None,
        }
    }

    /// A memory was asked something, and this came.
    pub(crate) fn on_hold<M: Machine>(
        &mut self,
        (id, member, hold): (u64, u8, Hold),
        answer: Answer,
        cx: &mut Context<'_, M>,
    ) -> Result<(), End> {
        let Some(memory) = self.memories.get_mut(&member) else { return Ok(()) };
        match memory.on_answer((hold, id), answer, self.term, (cx.settings, cx.outbox)) {
            Came::On => self.advance(cx),
            Came::Superseded(term) => Err(End::Superseded(term)),
            Came::Lost => self.on_lost(member, cx),
            Came::Wild => {
                cx.outbox.events.push_back(Event::Wild { member });
                self.on_lost(member, cx)
            }
        }
    }

    /// A memory cannot be reached.
    pub(crate) fn on_lost<M: Machine>(&mut self, member: u8, cx: &mut Context<'_, M>) -> Result<(), End> {
        if let Some(memory) = self.memories.get_mut(&member) {
            memory.lose(cx.now, cx.settings, cx.outbox);
        }
        self.advance(cx)
    }

    /// A piece of the snapshot.
    pub(crate) fn on_load<M: Machine>(&mut self, answer: Answer, cx: &mut Context<'_, M>) -> Result<(), End> {
        let Phase::Loading(load, member) = &mut self.phase else { return Ok(()) };
        let Answer::Read { bytes, .. } = answer else { return Err(End::NoMajority) };
        load.on_read(&bytes);
        if let Some(place) = load.next(cx.settings) {
            cx.outbox.read(Use::Load, *member, place);
            return Ok(());
        }
        let bytes = load.snapshot().ok_or(End::NoMajority)?;
        cx.state.load(&load.mark, bytes).map_err(|_| End::BadSnapshot)?;
        self.phase = Phase::Gathering;
        self.advance(cx)
    }

    pub(crate) fn on_period<M: Machine>(&mut self, cx: &mut Context<'_, M>) -> Result<(), End> {
        let term = self.term;
        for memory in self.memories.values_mut() {
            if matches!(memory.stage, Stage::Away { until } if cx.now >= until) {
                memory.ask_again(term, cx.outbox);
            }
        }
        if cx.settings.is_synced {
            self.memories.values().for_each(|memory| memory.probe(term, cx.settings, cx.outbox));
        }
        let held = self.counted(|stage| matches!(stage, Stage::Held(_)));
        if self.leading().is_some() && held >= self.members.majority() {
            self.until = cx.patiently_after(PATIENCE_PERIODS);
        }
        if cx.now >= self.until || self.memories.values().any(Memory::is_worn) {
            return Err(End::NoMajority);
        }
        self.on_leader_period(cx)
    }

    /// Looks what members' files have, of those that have less than is wanted.
    pub(crate) fn ask_files<M>(&mut self, cx: &mut Context<'_, M>) {
        if cx.settings.is_synced {
            self.memories.values().for_each(|memory| memory.ask_file(cx.outbox));
        }
    }

    pub(crate) fn waits_for_files(&self) -> bool {
        self.memories.values().any(Memory::waits_for_file)
    }

    /// Members whose memory is at such a stage.
    fn counted(&self, is_there: impl Fn(&Stage) -> bool) -> usize {
        let there = self.memories.values().filter(|memory| is_there(&memory.stage));
        there.filter(|memory| self.members.contains(memory.id, memory.number)).count()
    }

    pub(crate) fn advance<M: Machine>(&mut self, cx: &mut Context<'_, M>) -> Result<(), End> {
        match self.phase {
            Phase::Gathering => self.gather(cx),
            Phase::Loading(..) => Ok(()),
            Phase::Leading(_) => self.settle(cx),
        }
    }

    /// Of all logs that are known, none of which anybody else can change, takes the one that is furthest on: its last
    /// entry has the greatest term, and of those it is the longest (Raft, section 5.4). If a majority of the members **by
    /// this log** is among those that are known, what is committed is in it. The log may be that of a memory which is no
    /// member any more, as a server of Raft may campaign that its own log removes.
    fn gather<M: Machine>(&mut self, cx: &mut Context<'_, M>) -> Result<(), End> {
        let ready = self.memories.values().filter_map(|memory| match &memory.stage {
            Stage::Ready(found) => Some((memory.id, &**found)),
            _ => None,
        });
        let Some((id, best)) = ready.max_by_key(|(_, found)| found.log.tail.rank()) else { return Ok(()) };
        self.members = best.members();
        for member in self.members.iter() {
            let (term, outbox) = (self.term, &mut *cx.outbox);
            self.memories.entry(member.id).or_insert_with(|| Memory::ask(member.id, term, outbox));
        }
        if self.counted(|stage| matches!(stage, Stage::Ready(_))) < self.members.majority() {
            return Ok(());
        }
        let Some(Stage::Ready(best)) = self.memories.get(&id).map(|memory| &memory.stage) else { return Ok(()) };
        let log = Log::of(best);
        if cx.state.applied.index < log.base.index {
            let (mark, bank) = (best.head.mark.clone(), best.head.bank);
            return self.load(id, (&mark, bank), cx);
        }
        // Everything that was applied is committed, so it is in the log.
        if !log.holds(&cx.state.applied) {
            return Err(End::NoMajority);
        }
        let snapshot_bytes = best.head.mark.snapshot_bytes;
        self.phase = Phase::Leading(Box::new(Leading::new(log, snapshot_bytes, self.term, cx)));
        self.until = cx.patiently_after(PATIENCE_PERIODS);
        self.settle(cx)
    }

    fn load<M: Machine>(&mut self, id: u8, (mark, bank): (&Mark, usize), cx: &mut Context<'_, M>) -> Result<(), End> {
        let load = Load::new(mark, bank, cx.settings).ok_or(End::NoMajority)?;
        let place = load.next(cx.settings).ok_or(End::NoMajority)?;
        cx.outbox.read(Use::Load, id, place);
        self.phase = Phase::Loading(Box::new(load), id);
        Ok(())
    }
}
