//! A memory that a leader writes.
//!
//! Owns what it is known to hold, and what is written next: entries, or bank and mark. It must never count what is not
//! known to be there, and never write over a line that the memory's mark still needs, or that an older WRITE may still fill.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::action::{Hold, Outbox};
use crate::layout::{COMMIT_AT, Mark, mark_at};
use crate::log::Log;
use crate::scan::Found;
use crate::settings::{SMALL_WRITES_MAX, Settings, WRITES_MAX};

/// Pieces of a snapshot that are under way to one memory, at most.
const PIECES_MAX: usize = 4;

/// A snapshot of the leader's state, and the mark that goes with it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) mark: Mark,
    pub(crate) bytes: Vec<u8>,
}

/// A WRITE of entries.
#[derive(Debug)]
struct Sent {
    id: u64,
    /// Where it begins.
    line: u64,
    /// When it and all before it are done, the memory holds the log to here.
    to: u64,
    is_done: bool,
}

/// A snapshot on its way.
#[derive(Debug)]
struct Copying {
    snapshot: Arc<Snapshot>,
    sent: usize,
    under_way: usize,
    is_marking: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Held {
    /// It holds the leader's log to this index; 0: nobody knows of anything.
    pub(crate) matched: u64,
    /// So does its owner's file, to this index. What the file's owner said last, until it is looked up in the log.
    synced: u64,
    said: Option<u64>,
    next: u64,
    /// Index and line of its mark.
    mark: (u64, u64),
    bank: usize,
    sent: VecDeque<Sent>,
    /// The commit index that stands in its head, and the one that is on its way there. One at a time: of two WRITEs the
    /// older one could be the last.
    told: u64,
    telling: Option<u64>,
    copying: Option<Copying>,
}

/// Where it is written to: member and fence.
pub(crate) type Writer = (u8, u64);

impl Held {
    /// The memory, as it was found after the grant. `None`: it has what the leader's log does not explain.
    pub(crate) fn attach(found: &Found, log: &Log) -> Option<Self> {
        let mark = found.head.mark.tail;
        let tails = found.log.entries.iter().rev().map(|entry| entry.tail).chain([mark]);
        let matched = match tails.into_iter().find(|tail| log.holds(tail)) {
            Some(tail) => tail.index,
            None if mark.index < log.base.index => 0,
            None => return None,
        };
        Some(Self {
            matched,
            synced: 0,
            said: None,
            next: matched + 1,
            mark: (mark.index, mark.line),
            bank: found.head.bank,
            sent: VecDeque::new(),
            told: 0,
            telling: None,
            copying: None,
        })
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let (matched, synced, next, under_way) = (self.matched, self.synced, self.next, self.sent.len());
        let copying = if self.copying.is_some() { ", a snapshot is written" } else { "" };
        format!(
            "held, matched {matched}, synced {synced}, next {next}, {under_way} WRITEs under way{copying}, told {}",
            self.told
        )
    }

    /// The owner of the memory says what its file has.
    pub(crate) fn on_kept(&mut self, word: u64) {
        self.said = Some(word);
    }

    /// Looks up what was said: only of a log that has this very entry it says anything.
    pub(crate) fn resolve(&mut self, log: &Log) {
        if let Some(tail) = self.said.take().and_then(|word| log.named(word)) {
            self.synced = self.synced.max(tail.index);
        }
    }

    /// To which index this memory counts.
    pub(crate) fn counted(&self, is_synced: bool) -> u64 {
        if is_synced { self.matched.min(self.synced) } else { self.matched }
    }

    pub(crate) fn is_unsynced(&self) -> bool {
        self.synced < self.matched
    }

    /// Whether the log cannot bring it up any more.
    pub(crate) fn is_below(&self, log: &Log) -> bool {
        self.next <= log.base.index
    }

    /// Whether nothing but a snapshot of `applied` gets it on: its next entry is not in the log, or its ring has no room
    /// for it before the mark moves, and `latest`, the last snapshot that there is, does not move it.
    pub(crate) fn waits_for_snapshot(&self, log: &Log, (latest, applied): (u64, u64), ring_lines: u64) -> bool {
        let has_no_room = || log.get(self.next).is_some_and(|entry| entry.tail.line > self.mark.1 + ring_lines);
        latest <= self.mark.0 && applied > self.mark.0 && (self.is_below(log) || has_no_room())
    }

    pub(crate) fn on_entries(&mut self, id: u64) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.id == id) {
            sent.is_done = true;
        }
        while let Some(to) = self.sent.front().filter(|sent| sent.is_done).map(|sent| sent.to) {
            self.sent.pop_front();
            self.matched = self.matched.max(to);
        }
    }

    pub(crate) fn on_told(&mut self) {
        self.told = self.telling.take().unwrap_or(self.told);
    }

    pub(crate) fn on_piece(&mut self) {
        if let Some(copying) = &mut self.copying {
            copying.under_way -= 1;
        }
    }

    /// The mark is there: the memory holds everything before it, and the lines before it are free.
    pub(crate) fn on_mark(&mut self) {
        if let Some(copying) = self.copying.take() {
            let tail = copying.snapshot.mark.tail;
            self.mark = (tail.index, tail.line);
            self.bank = 1 - self.bank;
            self.matched = self.matched.max(tail.index);
            self.next = self.next.max(tail.index + 1);
        }
    }

    /// Writes what is due.
    pub(crate) fn pump(
        &mut self,
        writer: Writer,
        (log, snapshot): (&Log, Option<&Arc<Snapshot>>),
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        self.copy(writer, snapshot, settings, outbox);
        while self.may_write(log, settings) && self.write_entries(writer, log, settings, outbox) {}
    }

    /// What waits goes together when a WRITE that is under way has ended, unless it is enough for one of its own: many small
    /// ones cost more than they hasten.
    fn may_write(&self, log: &Log, settings: &Settings) -> bool {
        let waits = || log.get(self.next).map_or(0, |entry| log.tail().line - entry.line());
        let is_enough = || waits() * crate::layout::LINE_BYTES as u64 >= settings.piece_bytes_max as u64;
        self.sent.len() < SMALL_WRITES_MAX || self.sent.len() < WRITES_MAX && is_enough()
    }

    fn copy(&mut self, writer: Writer, snapshot: Option<&Arc<Snapshot>>, settings: &Settings, outbox: &mut Outbox) {
        let newer = snapshot.filter(|snapshot| snapshot.mark.tail.index > self.mark.0);
        if self.copying.is_none() {
            let begin = |snapshot: &Arc<Snapshot>| Copying {
                snapshot: Arc::clone(snapshot),
                sent: 0,
                under_way: 0,
                is_marking: false,
            };
            self.copying = newer.map(begin);
        }
        let bank = 1 - self.bank;
        let Some(copying) = &mut self.copying else { return };
        let bytes = &copying.snapshot.bytes;
        while copying.under_way < PIECES_MAX && copying.sent < bytes.len() {
            let piece = bytes.len().min(copying.sent + settings.piece_bytes_max);
            let at = settings.layout.bank_at(bank) + copying.sent as u64;
            outbox.write(Hold::Piece, writer, at, bytes[copying.sent..piece].to_vec());
            copying.sent = piece;
            copying.under_way += 1;
        }
        if copying.under_way == 0 && !copying.is_marking {
            copying.is_marking = true;
            outbox.write(Hold::Mark, writer, mark_at(bank), copying.snapshot.mark.encode(settings.group));
        }
    }

    /// One WRITE of the entries that are next, or two where the ring ends. `false`: there is none, or no room.
    fn write_entries(&mut self, writer: Writer, log: &Log, settings: &Settings, outbox: &mut Outbox) -> bool {
        // A WRITE under way may land last, so its lines are not used again before it is done, wherever the mark is.
        let oldest = self.sent.front().map_or(self.mark.1, |sent| sent.line.min(self.mark.1));
        let room = oldest + settings.layout.ring_lines();
        let before = self.next - 1;
        let Some(first) = log.get(self.next) else { return false };
        let line = first.line();
        let mut bytes = Vec::new();
        while let Some(entry) = log.get(self.next).filter(|entry| entry.tail.line <= room) {
            if !bytes.is_empty() && bytes.len() + entry.lines.len() > settings.piece_bytes_max {
                break;
            }
            bytes.extend_from_slice(&entry.lines);
            self.next += 1;
        }
        if bytes.is_empty() {
            return false;
        }
        let rest = bytes.split_off(bytes.len().min(settings.layout.bytes_to_end(line)));
        let count = (bytes.len() / crate::layout::LINE_BYTES) as u64;
        let pieces = [(line, bytes, before), (line + count, rest, self.next - 1)];
        let is_one = pieces[1].1.is_empty();
        for (line, bytes, to) in pieces.into_iter().filter(|(_, bytes, _)| !bytes.is_empty()) {
            let id = outbox.write(Hold::Entries, writer, settings.layout.line_at(line), bytes);
            let to = if is_one { self.next - 1 } else { to };
            self.sent.push_back(Sent { id, line, to, is_done: false });
        }
        true
    }

    /// Tells the owner of the memory what is committed, if no entry will.
    pub(crate) fn tell(&mut self, writer: Writer, log: &Log, commit: u64, outbox: &mut Outbox) {
        let known = commit.min(self.matched);
        let is_due = self.told < known && self.telling.is_none() && self.sent.is_empty();
        if let Some(tail) = log.tail_at(known).filter(|_| is_due) {
            self.telling = Some(known);
            outbox.write(Hold::Commit, writer, COMMIT_AT, tail.commit_word().to_le_bytes().to_vec());
        }
    }
}
