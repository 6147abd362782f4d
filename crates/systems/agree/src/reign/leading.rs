//! What a leader does.
//!
//! Owns what is committed: an entry of the own term that a majority of members' memories holds, in a synced group their
//! files too, and all before it (Raft, section 5.4.2: what a majority holds of older terms may still be lost). Every input ends in [`Reign::settle`], which
//! brings everything to where it can be: memories attached, entries committed and applied, ring recycled, WRITEs begun.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::action::{Answer, Event, Use};
use crate::confirm::Confirm;
use crate::context::Context;
use crate::entry::{Draft, Kind, lines_of};
use crate::error::Refused;
use crate::held::{Held, Snapshot};
use crate::layout::{LINE_BYTES, Mark};
use crate::lease::Lease;
use crate::log::Log;
use crate::machine::{Known, Machine, crc_of_snapshot};
use crate::members::{MEMBERS_MAX, Member, Members};
use crate::memory::{Memory, Stage};
use crate::reign::{End, Phase, Reign};
use crate::settings::{CHECK_PERIODS, LOG_LINES_MIN, LOG_PER_SNAPSHOT, RESERVED_SHARE};
use crate::term::Term;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Leading {
    log: Log,
    commit: u64,
    /// The first entry of the own term.
    first: u64,
    /// The commit index that the last entry carries.
    carried: u64,
    /// The last entry that changes the members.
    changed: u64,
    /// Clients that wait for an entry, by its index.
    pub(crate) pending: BTreeMap<u64, (u64, u64)>,
    snapshot: Option<Arc<Snapshot>>,
    /// Where the ring begins for all who have the latest mark.
    begin: u64,
    /// Lines of the latest snapshot.
    snapshot_lines: u64,
    /// No snapshot is tried before the log is this far.
    try_from: u64,
    /// Hosts that are to become members.
    joining: BTreeSet<u8>,
    pub(crate) confirm: Confirm,
    lease: Lease,
    check_at: u64,
}

impl Leading {
    pub(crate) fn new<M: Machine>(log: Log, snapshot_bytes: u64, term: Term, cx: &mut Context<'_, M>) -> Self {
        let mut leading = Self {
            commit: cx.state.applied.index,
            first: log.tail().index + 1,
            carried: 0,
            changed: log.tail().index,
            pending: BTreeMap::new(),
            snapshot: None,
            begin: log.base.line,
            snapshot_lines: snapshot_bytes.div_ceil(LINE_BYTES as u64),
            try_from: 0,
            joining: BTreeSet::new(),
            confirm: Confirm::default(),
            lease: Lease::new(cx.settings.lease_us),
            check_at: cx.now,
            log,
        };
        // The ring may be full of what is known to be committed: applied, it can be recycled.
        leading.apply_to(leading.log.told(), cx);
        leading.append(term, Kind::Nothing, (0, 0), &[]);
        leading
    }

    fn append(&mut self, term: Term, kind: Kind, (client, number): (u64, u64), bytes: &[u8]) -> u64 {
        self.carried = self.commit;
        self.log.append(Draft { term, kind, client, number, commit: self.commit, bytes }).index
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let (tail, commit, pending) = (self.log.tail().index, self.commit, self.pending.len());
        let joining: Vec<&u8> = self.joining.iter().collect();
        let changed = self.changed;
        format!(
            "leads, log to {tail}, commit {commit}, members changed at {changed}, joining {joining:?}, {pending} pending"
        )
    }

    /// Whether its log has all that was ever committed, and its state too.
    pub(crate) fn is_whole(&self) -> bool {
        self.commit >= self.first
    }

    /// A read begins.
    pub(crate) fn read<M>(&mut self, read: u64, members: &Members, cx: &mut Context<'_, M>) {
        if self.is_whole() && self.lease.holds(cx.now) {
            return cx.outbox.events.push_back(Event::Readable { read });
        }
        self.confirm.ask(read);
        if self.is_whole() {
            self.confirm.begin(false, members, (cx.now, cx.outbox));
        }
    }

    /// A head was read, or not.
    pub(crate) fn on_confirm<M>(
        &mut self,
        (id, number): (u8, u64),
        answer: &Answer,
        (term, members): (Term, &Members),
        cx: &mut Context<'_, M>,
    ) -> Result<(), Term> {
        self.confirm.on_answer((id, number), answer, term, cx.outbox)?;
        self.confirm.take_confirmed().into_iter().for_each(|begun| self.lease.extend(begun));
        if matches!(answer, Answer::Read { .. }) {
            self.confirm.begin(false, members, (cx.now, cx.outbox));
        }
        Ok(())
    }

    fn commit_to<M: Machine>(&mut self, commit: u64, term: Term, cx: &mut Context<'_, M>) {
        let may_commit = commit > self.commit && self.lease.may_commit(cx.now);
        if may_commit && self.log.get(commit).is_some_and(|entry| entry.tail.term == term) {
            self.apply_to(commit, cx);
        }
    }

    fn apply_to<M: Machine>(&mut self, commit: u64, cx: &mut Context<'_, M>) {
        self.commit = self.commit.max(commit);
        while let Some(entry) = self.log.get(cx.state.applied.index + 1).filter(|entry| entry.tail.index <= commit) {
            let index = entry.tail.index;
            let reply = cx.state.apply(entry);
            if let (Some(reply), Some((client, number))) = (reply, self.pending.remove(&index)) {
                cx.outbox.events.push_back(Event::Committed { index, client, number, reply });
            }
        }
    }

    /// Takes a snapshot if the log is long beside the last one, or half of the ring is in use, or a memory can be brought up
    /// by nothing else.
    fn recycle<'m, M: Machine>(&mut self, mut held: impl Iterator<Item = &'m Held>, cx: &mut Context<'_, M>) {
        let (applied, tail, lines) = (cx.state.applied, self.log.tail(), cx.settings.layout.ring_lines());
        let most = self.snapshot_lines.saturating_mul(LOG_PER_SNAPSHOT).max(LOG_LINES_MIN).min(lines / 2);
        let is_long = tail.line - self.begin > most && applied.line > self.begin;
        let latest = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.mark.tail.index);
        let is_needed = held.any(|held| held.waits_for_snapshot(&self.log, (latest, applied.index), lines));
        if !(is_long || is_needed) || tail.line < self.try_from {
            return;
        }
        let bytes = cx.state.save();
        let max = cx.settings.layout.snapshot_bytes();
        if bytes.len() as u64 > max {
            self.try_from = tail.line + lines / 8;
            cx.outbox.events.push_back(Event::SnapshotTooLarge { bytes: bytes.len() as u64, max });
            return;
        }
        let (snapshot_bytes, snapshot_crc) = (bytes.len() as u64, crc_of_snapshot(&bytes));
        self.snapshot_lines = snapshot_bytes.div_ceil(LINE_BYTES as u64);
        let mark = Mark { tail: applied, snapshot_bytes, snapshot_crc, members: cx.state.members.clone() };
        self.snapshot = Some(Arc::new(Snapshot { mark, bytes }));
        self.begin = applied.line;
    }

    /// Gives up what nobody needs. A memory that lags behind twice the ring takes the snapshot.
    fn forget<'m>(&mut self, held: impl Iterator<Item = &'m Held>, ring_lines: u64) {
        let Some(snapshot) = self.snapshot.as_ref().map(|snapshot| snapshot.mark.tail.index) else { return };
        let needed = held.filter(|held| !held.is_below(&self.log)).map(|held| held.matched).min();
        self.log.forget(needed.unwrap_or(snapshot).min(snapshot));
        if self.log.lines() > 2 * ring_lines {
            self.log.forget(snapshot);
        }
    }
}

impl Reign {
    /// Brings everything to where it can be.
    pub(crate) fn settle<M: Machine>(&mut self, cx: &mut Context<'_, M>) -> Result<(), End> {
        let Phase::Leading(leading) = &mut self.phase else { return Ok(()) };
        for memory in self.memories.values_mut() {
            if let Stage::Ready(found) = &memory.stage {
                match Held::attach(found, &leading.log) {
                    Some(held) => {
                        if !memory.hold(held, &leading.log) {
                            cx.outbox.events.push_back(Event::Wild { member: memory.id });
                        }
                    }
                    None => memory.lose(cx.now, cx.settings, cx.outbox),
                }
            }
            if let Stage::Held(held) = &mut memory.stage {
                held.resolve(&leading.log);
            }
        }
        let matched = |member: Member| match self.memories.get(&member.id).map(|memory| (memory.number, &memory.stage))
        {
            Some((number, Stage::Held(held))) if number == member.number => held.counted(cx.settings.is_synced),
            _ => 0,
        };
        let mut all: Vec<u64> = self.members.iter().map(matched).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let majority = all.get(self.members.majority() - 1).copied().unwrap_or(0);
        leading.commit_to(majority, self.term, cx);
        let held = || self.memories.values().filter_map(held_of);
        leading.recycle(held(), cx);
        leading.forget(held(), cx.settings.layout.ring_lines());
        self.bring_in(cx)?;
        self.pump(cx);
        Ok(())
    }

    fn pump<M>(&mut self, cx: &mut Context<'_, M>) {
        let Phase::Leading(leading) = &self.phase else { return };
        let source = (&leading.log, leading.snapshot.as_ref());
        for memory in self.memories.values_mut() {
            let writer = memory.writer(self.term);
            if let Stage::Held(held) = &mut memory.stage {
                held.pump(writer, source, cx.settings, cx.outbox);
            }
        }
    }

    /// Makes one more memory a member, if it has caught up: one with a new number in the place of the host's old one,
    /// or one of a host that joins. One change at a time, and none before an entry of the own term is committed.
    fn bring_in<M>(&mut self, cx: &mut Context<'_, M>) -> Result<(), End> {
        let Phase::Leading(leading) = &mut self.phase else { return Ok(()) };
        if !leading.is_whole() || leading.changed > leading.commit {
            return Ok(());
        }
        if !self.members.has_host(cx.settings.me) {
            return Err(End::Removed);
        }
        let stays = |id: u8| self.members.has_host(id) || leading.joining.contains(&id);
        self.memories.retain(|id, _| stays(*id));
        cx.outbox.forget(|what| matches!(what, Use::Hold(id, _) if !stays(*id)));
        let is_new = |memory: &&Memory| !self.members.contains(memory.id, memory.number);
        let has_come = |memory: &&Memory| {
            held_of(memory).is_some_and(|held| held.counted(cx.settings.is_synced) >= leading.commit)
        };
        let come = self.memories.values().filter(is_new).find(has_come);
        if let Some(member) = come.map(|memory| Member { id: memory.id, number: memory.number }) {
            leading.joining.remove(&member.id);
            self.change(self.members.with(member));
        }
        Ok(())
    }

    fn change(&mut self, members: Members) {
        if let Phase::Leading(leading) = &mut self.phase {
            leading.changed = leading.append(self.term, Kind::Members, (0, 0), &members.encode());
            self.members = members;
        }
    }

    pub(crate) fn propose<M: Machine>(
        &mut self,
        (client, number, bytes): (u64, u64, &[u8]),
        cx: &mut Context<'_, M>,
    ) -> Result<(), Refused> {
        let Phase::Leading(leading) = &mut self.phase else { return Err(Refused::NotLeader { hint: None }) };
        if bytes.len() > cx.settings.command_bytes_max {
            return Err(Refused::TooLong { bytes: bytes.len(), max: cx.settings.command_bytes_max });
        }
        match cx.state.known(client, number) {
            Known::Done(reply) => {
                let reply = reply.to_vec();
                cx.outbox.events.push_back(Event::Committed { index: 0, client, number, reply });
                return Ok(());
            }
            Known::Over(last) => return Err(Refused::Superseded { client, number, last }),
            Known::New => {}
        }
        if leading.pending.values().any(|pending| *pending == (client, number)) {
            return Ok(());
        }
        let lines = cx.settings.layout.ring_lines();
        let used = leading.log.tail().line - leading.begin;
        if used + lines_of(bytes.len()) > lines - lines / RESERVED_SHARE {
            return Err(Refused::Full { used, lines });
        }
        let index = leading.append(self.term, Kind::Command, (client, number), bytes);
        leading.pending.insert(index, (client, number));
        Ok(())
    }

    /// Adds or removes a host. A new one is a member when its memory has caught up.
    pub(crate) fn alter<M: Machine>(
        &mut self,
        (id, is_added): (u8, bool),
        cx: &mut Context<'_, M>,
    ) -> Result<(), Refused> {
        let term = self.term;
        let Phase::Leading(leading) = &mut self.phase else { return Err(Refused::NotLeader { hint: None }) };
        if !leading.is_whole() || leading.changed > leading.commit {
            return Err(Refused::Changing);
        }
        let members = self.members.len();
        let is_wrong = if is_added {
            self.members.has_host(id) || members + leading.joining.len() >= MEMBERS_MAX
        } else {
            !self.members.has_host(id) || members == 1
        };
        if is_wrong {
            return Err(Refused::NoChange { id, members, max: MEMBERS_MAX });
        }
        if is_added {
            leading.joining.insert(id);
            self.memories.entry(id).or_insert_with(|| Memory::ask(id, term, cx.outbox));
        } else {
            self.change(self.members.without(id));
        }
        Ok(())
    }

    pub(crate) fn on_leader_period<M: Machine>(&mut self, cx: &mut Context<'_, M>) -> Result<(), End> {
        let Phase::Leading(leading) = &mut self.phase else { return Ok(()) };
        if leading.carried < leading.commit {
            for memory in self.memories.values_mut() {
                let writer = memory.writer(self.term);
                if let Stage::Held(held) = &mut memory.stage {
                    held.tell(writer, &leading.log, leading.commit, cx.outbox);
                }
            }
        }
        leading.lease.on_time(cx.now);
        let is_due = cx.now >= leading.check_at;
        if is_due {
            leading.check_at = cx.now + leading.lease.look_again_in(CHECK_PERIODS * cx.settings.period_us);
        }
        if leading.is_whole() {
            leading.confirm.begin(is_due, &self.members, (cx.now, cx.outbox));
        }
        self.settle(cx)
    }
}

fn held_of(memory: &Memory) -> Option<&Held> {
    match &memory.stage {
        Stage::Held(held) => Some(held),
        _ => None,
    }
}
