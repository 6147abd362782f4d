//! A leader's log.
//!
//! Owns the entries from some point on, in the leader's own memory, from which all members' memories are written.

use std::collections::VecDeque;

use crate::entry::{Draft, Entry};
use crate::layout::Tail;
use crate::scan::Found;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Log {
    /// The last entry that is not here.
    pub(crate) base: Tail,
    entries: VecDeque<Entry>,
}

impl Log {
    pub(crate) fn of(found: &Found) -> Self {
        Self { base: found.head.mark.tail, entries: found.log.entries.iter().cloned().collect() }
    }

    pub(crate) fn tail(&self) -> Tail {
        self.entries.back().map_or(self.base, |entry| entry.tail)
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// The log's end at this index.
    pub(crate) fn tail_at(&self, index: u64) -> Option<Tail> {
        if index == self.base.index { Some(self.base) } else { self.get(index).map(|entry| entry.tail) }
    }

    /// The log's end that a word of index and sum names (see [`Tail::commit_word`]), if it is here.
    pub(crate) fn named(&self, word: u64) -> Option<Tail> {
        let behind = (word as u32).wrapping_sub(self.base.index as u32);
        self.tail_at(self.base.index + u64::from(behind)).filter(|tail| tail.commit_word() == word)
    }

    /// What its entries say is committed. It holds, since each names all entries before it.
    pub(crate) fn told(&self) -> u64 {
        self.entries.iter().map(|entry| entry.commit).max().unwrap_or(0)
    }

    /// Whether the log that ends so is a part of this one.
    pub(crate) fn holds(&self, tail: &Tail) -> bool {
        self.tail_at(tail.index) == Some(*tail)
    }

    pub(crate) fn append(&mut self, draft: Draft<'_>) -> Tail {
        let entry = Entry::new(self.tail(), draft);
        let tail = entry.tail;
        self.entries.push_back(entry);
        tail
    }

    /// Entries to this index are not needed any more.
    pub(crate) fn forget(&mut self, to: u64) {
        while self.entries.front().is_some_and(|entry| entry.tail.index <= to) {
            if let Some(entry) = self.entries.pop_front() {
                self.base = entry.tail;
            }
        }
    }

    /// Lines of the entries that are here.
    pub(crate) fn lines(&self) -> u64 {
        self.tail().line - self.base.line
    }
}
