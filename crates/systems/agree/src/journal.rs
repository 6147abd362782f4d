//! The file of a member whose memory is durable.
//!
//! Owns its codec, and so what a file proves. It must never give more than was written behind each other, nor take a file
//! for whole whose beginning is not.
//!
//! ```text
//!    0  title    magic, group, member, number of the memory, sizes; mark of the snapshot, if there is one; sum
//!  512  snapshot
//!    .  records  length, kind, sum over the record and the sum before it; a term that was promised, or entries
//! ```
//!
//! Entries of a record take the place of all that the file has from the first one's index on: so a log that a new leader
//! overwrote is followed by appending. A record that is torn ends the file. A file is made whole beside the older one and
//! takes its name, so a snapshot is there before what it stands for goes.

use crate::entry::{Decoded, Entry, decode};
use crate::error::BadJournal;
use crate::kept::Kept;
use crate::layout::{HEAD_AT, Head, LINE_BYTES, Layout, MARK_BYTES, Mark, Tail, mark_at};
use crate::machine::crc_of_snapshot;
use crate::members::{MEMBERS_BYTES, MEMBERS_MAX};
use crate::term::Term;
use crate::words::{half, put, put_half, word};

const MAGIC: u64 = 0x3172_6e6c_6a67_6172;
const TITLE_BYTES: usize = 512;
const MARK_IN_TITLE: usize = 64;
const RECORD_BYTES: usize = 16;

const _: () = assert!(MARK_IN_TITLE + MARK_BYTES <= TITLE_BYTES - 8 && MEMBERS_MAX < 256);

/// Whose file it is. All but member and number are the same in all programs of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Title {
    /// The group's number.
    pub group: u64,
    /// The member.
    pub member: u8,
    /// The number of its memory. It was drawn when the file was made, and is that of every memory that is made of it.
    pub number: u64,
    /// The sizes of the memory.
    pub layout: Layout,
    /// Bytes of a command, at most.
    pub command_bytes_max: u64,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// Whose it is.
    pub title: Title,
    pub(crate) mark: Option<Mark>,
    pub(crate) snapshot: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) promised: Term,
}

/// What is added to a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Change {
    pub(crate) promised: Option<Term>,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Promise = 1,
    Entries = 2,
}

fn push_record(kind: Kind, payload: &[u8], before: u32, into: &mut Vec<u8>) -> u32 {
    let mut head = [0; RECORD_BYTES];
    put_half(&mut head, 0, payload.len() as u32);
    put_half(&mut head, 4, kind as u32);
    let sum = sum_of_record(before, &head, payload);
    put_half(&mut head, 8, sum);
    into.extend(head);
    into.extend(payload);
    sum
}

fn sum_of_record(before: u32, head: &[u8], payload: &[u8]) -> u32 {
    let chained = crc32c::crc32c(&before.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(chained, &head[..8]), payload)
}

impl Change {
    pub(crate) fn is_empty(&self) -> bool {
        self.promised.is_none() && self.entries.is_empty()
    }

    /// Behind the sum of the record before; and the last sum.
    pub(crate) fn encode(&self, mut sum: u32, into: &mut Vec<u8>) -> u32 {
        if let Some(term) = self.promised {
            sum = push_record(Kind::Promise, &term.bits().to_le_bytes(), sum, into);
        }
        if !self.entries.is_empty() {
            let lines: Vec<u8> = self.entries.iter().flat_map(|entry| entry.lines.iter().copied()).collect();
            sum = push_record(Kind::Entries, &lines, sum, into);
        }
        sum
    }
}

impl Journal {
    /// The file of a memory of zeroes.
    #[must_use]
    pub const fn new(title: Title) -> Self {
        Self { title, mark: None, snapshot: Vec::new(), entries: Vec::new(), promised: Term::NONE }
    }

    /// The log's end before the first entry.
    pub(crate) fn base(&self) -> Tail {
        self.mark.as_ref().map_or_else(|| Tail::start(self.title.group), |mark| mark.tail)
    }

    pub(crate) fn tail(&self) -> Tail {
        self.entries.last().map_or_else(|| self.base(), |entry| entry.tail)
    }

    pub(crate) fn tail_at(&self, index: u64) -> Option<Tail> {
        let base = self.base();
        if index == base.index {
            return Some(base);
        }
        let at = usize::try_from(index.checked_sub(base.index + 1)?).ok()?;
        self.entries.get(at).map(|entry| entry.tail)
    }

    /// The term below which nobody leads with this memory.
    fn term(&self) -> Term {
        self.promised.max(self.tail().term)
    }

    pub(crate) fn apply(&mut self, change: Change) {
        self.promised = self.promised.max(change.promised.unwrap_or(Term::NONE));
        if let Some(first) = change.entries.first() {
            let kept = first.tail.index - 1 - self.base().index;
            self.entries.truncate(kept as usize);
            self.entries.extend(change.entries);
        }
    }

    /// The whole file, and the sum that the next record goes on from.
    pub(crate) fn encode(&self) -> (Vec<u8>, u32) {
        let mut bytes = vec![0; TITLE_BYTES];
        let Title { group, member, number, layout, command_bytes_max } = self.title;
        let sizes = [layout.snapshot_bytes(), layout.ring_lines(), command_bytes_max];
        let words = [MAGIC, group, u64::from(member), number, sizes[0], sizes[1], sizes[2]];
        words.into_iter().enumerate().for_each(|(at, value)| put(&mut bytes, at * 8, value));
        if let Some(mark) = &self.mark {
            put(&mut bytes, 56, 1);
            bytes[MARK_IN_TITLE..MARK_IN_TITLE + MARK_BYTES].copy_from_slice(&mark.encode(group));
        }
        let sum = crc32c::crc32c(&bytes[..TITLE_BYTES - 8]);
        put_half(&mut bytes, TITLE_BYTES - 8, sum);
        bytes.extend(&self.snapshot);
        let promised = (self.promised > Term::NONE).then_some(self.promised);
        let sum = Change { promised, entries: self.entries.clone() }.encode(sum, &mut bytes);
        (bytes, sum)
    }

    /// What a file proves: title and snapshot, and the records before the first one that is not whole. An error: these
    /// bytes do not begin as a file does that was ever in its place.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadJournal> {
        Self::follow(bytes, |_, _| {})
    }

    /// Where its title and each of its records end, and what its owner may say of a file that ends there.
    pub fn ends(bytes: &[u8]) -> Result<Vec<(usize, Kept)>, BadJournal> {
        let mut ends = vec![];
        Self::follow(bytes, |end, journal| ends.push((end, journal.kept())))?;
        Ok(ends)
    }

    fn follow(bytes: &[u8], mut whole_to: impl FnMut(usize, &Self)) -> Result<Self, BadJournal> {
        let (mut journal, mut at, mut sum) = Self::decode_title(bytes).ok_or(BadJournal)?;
        whole_to(at, &journal);
        while let Some((change, end, next)) = journal.decode_record(bytes, at, sum) {
            journal.apply(change);
            (at, sum) = (end, next);
            whole_to(at, &journal);
        }
        Ok(journal)
    }

    /// What its owner says of it when it is synced.
    pub(crate) fn kept(&self) -> Kept {
        let (tail, promised) = (self.tail(), self.promised);
        let end = tail.line * LINE_BYTES as u64;
        Kept { synced: tail.commit_word(), promised, index: tail.index, end, fault: 0 }
    }

    fn decode_title(bytes: &[u8]) -> Option<(Self, usize, u32)> {
        let covered = bytes.get(..TITLE_BYTES - 8)?;
        let sum = half(bytes, TITLE_BYTES - 8)?;
        if word(bytes, 0)? != MAGIC || sum != crc32c::crc32c(covered) {
            return None;
        }
        let title = Title {
            group: word(bytes, 8)?,
            member: u8::try_from(word(bytes, 16)?).ok()?,
            number: word(bytes, 24)?,
            layout: Layout::new(word(bytes, 32)?, word(bytes, 40)?).ok()?,
            command_bytes_max: word(bytes, 48)?,
        };
        let mut journal = Self::new(title);
        if word(bytes, 56)? == 1 {
            let mark = Mark::decode(bytes.get(MARK_IN_TITLE..MARK_IN_TITLE + MARK_BYTES)?, title.group)?;
            let end = TITLE_BYTES.checked_add(usize::try_from(mark.snapshot_bytes).ok()?)?;
            journal.snapshot = bytes.get(TITLE_BYTES..end)?.to_vec();
            if crc_of_snapshot(&journal.snapshot) != mark.snapshot_crc {
                return None;
            }
            journal.mark = Some(mark);
        }
        let end = TITLE_BYTES + journal.snapshot.len();
        Some((journal, end, sum))
    }

    fn decode_record(&self, bytes: &[u8], at: usize, before: u32) -> Option<(Change, usize, u32)> {
        let head = bytes.get(at..at.checked_add(RECORD_BYTES)?)?;
        let end = at.checked_add(RECORD_BYTES)?.checked_add(half(head, 0)? as usize)?;
        let payload = bytes.get(at + RECORD_BYTES..end)?;
        let sum = half(head, 8)?;
        if sum_of_record(before, head, payload) != sum {
            return None;
        }
        let change = match half(head, 4)? {
            kind if kind == Kind::Promise as u32 => {
                Change { promised: Some(Term::from_bits(word(payload, 0)?)), entries: vec![] }
            }
            kind if kind == Kind::Entries as u32 => Change { promised: None, entries: self.decode_entries(payload)? },
            _ => return None,
        };
        Some((change, end, sum))
    }

    fn decode_entries(&self, mut lines: &[u8]) -> Option<Vec<Entry>> {
        let bytes_max = usize::try_from(self.title.command_bytes_max).ok()?.max(MEMBERS_BYTES);
        let mut before = self.tail_at(word(lines, 0)?.checked_sub(1)?)?;
        let mut entries = vec![];
        while !lines.is_empty() {
            let Decoded::Entry(entry) = decode(before, lines, bytes_max) else { return None };
            before = entry.tail;
            lines = lines.get(entry.lines.len()..)?;
            entries.push(entry);
        }
        Some(entries)
    }

    /// What makes of a memory of zeroes the memory that the file proves: places and bytes, to be written in this order,
    /// before anybody may believe a word of that memory.
    #[must_use]
    pub fn restore(&self) -> Vec<(u64, Vec<u8>)> {
        let layout = self.title.layout;
        let mut writes = vec![];
        if let Some(mark) = &self.mark {
            writes.push((layout.bank_at(0), self.snapshot.clone()));
            writes.push((mark_at(0), mark.encode(self.title.group)));
        }
        for entry in &self.entries {
            let lines = entry.lines.chunks(LINE_BYTES).zip(entry.line()..);
            writes.extend(lines.map(|(line, at)| (layout.line_at(at), line.to_vec())));
        }
        writes.push((HEAD_AT, Head::name(self.title.group, self.term())));
        writes
    }
}

#[cfg(test)]
mod tests;
