//! Histories of words in regions, and whether some order of one operation at a time explains each.
//!
//! The algorithm is that of Wing and Gong (1993) with Lowe's memory of what was tried (2017). Linearizability is local:
//! each word of each region is judged alone (Herlihy and Wing, 1990). It must never take a history for wrong because it
//! is too long to judge: those are counted.

use std::collections::{BTreeMap, HashSet};

use shm::AtomicOp;

/// Steps of one judgement; with more it is undecided.
const STEPS_MAX: usize = 300_000;

/// What a call does with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write(u64),
    Change(AtomicOp),
}

impl Act {
    /// What is there afterwards, and whether a caller that found `found` saw it right.
    fn apply(self, word: u64, found: Option<u64>) -> Option<u64> {
        let sees = |found: Option<u64>| found.is_none_or(|found| found == word);
        match self {
            Self::Read => sees(found).then_some(word),
            Self::Write(value) => Some(value),
            Self::Change(atomic) => sees(found).then(|| atomic.apply(word)),
        }
    }
}

/// An operation as its caller saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) act: Act,
    /// When it was asked for, as the order of what callers did.
    pub(crate) asked: u64,
    /// When it ended. `None`: nobody knows whether and when it was done.
    pub(crate) ended: Option<u64>,
    /// What it found, of a read or an atomic.
    pub(crate) found: Option<u64>,
}

/// What was found about one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Explained,
    /// No order explains it.
    Wrong,
    Undecided,
}

/// Judges the calls of one word, which was 0 at first.
pub(crate) fn judge(calls: &[Call]) -> Verdict {
    let mut calls = calls.to_vec();
    calls.sort_unstable_by_key(|c| c.asked);
    // Nobody can see whether a read was done that nobody heard of.
    calls.retain(|c| c.ended.is_some() || c.act != Act::Read);
    let words = calls.len().div_ceil(64);
    let mut tried: HashSet<(Vec<u64>, u64)> = HashSet::new();
    let mut stack = vec![(vec![0u64; words], 0u64)];
    for _ in 0..STEPS_MAX {
        let Some((done, word)) = stack.pop() else { return Verdict::Wrong };
        let is_done = |i: usize| done[i / 64] >> (i % 64) & 1 == 1;
        let open = || (0..calls.len()).filter(|i| !is_done(*i));
        let Some(first_end) = open().filter_map(|i| calls[i].ended).min() else { return Verdict::Explained };
        for i in open().take_while(|i| calls[*i].asked < first_end) {
            let Some(next) = calls[i].act.apply(word, calls[i].found) else { continue };
            let mut also = done.clone();
            also[i / 64] |= 1 << (i % 64);
            if tried.insert((also.clone(), next)) {
                stack.push((also, next));
            }
        }
    }
    Verdict::Undecided
}

/// The histories of all regions, by region and word.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    calls: BTreeMap<(u64, u64), Vec<Call>>,
    order: u64,
    /// Calls that ended with what they did.
    pub(crate) ended: u64,
    /// Calls of which nobody knows.
    pub(crate) unknown: u64,
    /// Calls that did nothing, and said so.
    pub(crate) refused: u64,
    /// Words whose history was too long to judge.
    pub(crate) undecided: u64,
}

/// A call that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallId {
    region: u64,
    word: u64,
    index: usize,
}

impl Histories {
    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// A call is asked for. Until more is known of it, it may be done at any time.
    pub(crate) fn on_asked(&mut self, region: u64, word: u64, act: Act) -> CallId {
        let asked = self.next();
        let calls = self.calls.entry((region, word)).or_default();
        calls.push(Call { act, asked, ended: None, found: None });
        self.unknown += 1;
        CallId { region, word, index: calls.len() - 1 }
    }

    fn call(&mut self, id: CallId) -> Option<&mut Call> {
        self.calls.get_mut(&(id.region, id.word))?.get_mut(id.index)
    }

    /// A call was done, and found this.
    pub(crate) fn on_ended(&mut self, id: CallId, found: Option<u64>) {
        let now = self.next();
        self.ended += 1;
        self.unknown -= 1;
        if let Some(call) = self.call(id) {
            (call.ended, call.found) = (Some(now), found);
        }
    }

    /// A call was not done: it has no place in the history, as a read that nobody heard of.
    pub(crate) fn on_refused(&mut self, id: CallId) {
        self.refused += 1;
        self.unknown -= 1;
        if let Some(call) = self.call(id) {
            call.act = Act::Read;
        }
    }

    /// A word as its host sees it.
    pub(crate) fn on_seen(&mut self, region: u64, word: u64, value: u64) {
        let id = self.on_asked(region, word, Act::Read);
        self.on_ended(id, Some(value));
        self.ended -= 1;
    }

    /// Judges all; the words of which no order explains the history.
    pub(crate) fn judge(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (&(region, word), calls) in &self.calls {
            match judge(calls) {
                Verdict::Explained => {}
                Verdict::Undecided => self.undecided += 1,
                Verdict::Wrong => wrong.push(format!("word {word} of region {region}: no order explains {calls:?}")),
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(act: Act, asked: u64, ended: u64, found: Option<u64>) -> Call {
        Call { act, asked, ended: (ended > 0).then_some(ended), found }
    }

    fn add(asked: u64, ended: u64, found: u64) -> Call {
        call(Act::Change(AtomicOp::Add(1)), asked, ended, (ended > 0).then_some(found))
    }

    #[test]
    fn what_an_order_explains_is_right() {
        let read = |asked, ended, found| call(Act::Read, asked, ended, Some(found));
        let write = |asked, ended, value| call(Act::Write(value), asked, ended, None);
        assert_eq!(judge(&[write(1, 4, 7), read(2, 3, 0), read(5, 6, 7)]), Verdict::Explained);
        assert_eq!(judge(&[write(1, 4, 7), read(2, 3, 7), read(5, 6, 7)]), Verdict::Explained);
        assert_eq!(judge(&[write(1, 0, 7), read(2, 3, 0), read(4, 5, 7)]), Verdict::Explained, "done late");
        assert_eq!(judge(&[write(1, 0, 7), read(2, 3, 0), read(4, 5, 0)]), Verdict::Explained, "never done");
        assert_eq!(judge(&[add(1, 5, 1), add(2, 6, 0), add(3, 0, 0), read(7, 8, 3)]), Verdict::Explained);
        let swap = Act::Change(AtomicOp::CompareSwap { expected: 7, new: 9 });
        assert_eq!(judge(&[write(1, 2, 7), call(swap, 3, 4, Some(7)), read(5, 6, 9)]), Verdict::Explained);
    }

    #[test]
    fn what_no_order_explains_is_wrong() {
        let read = |asked, ended, found| call(Act::Read, asked, ended, Some(found));
        let write = |asked, ended, value| call(Act::Write(value), asked, ended, None);
        assert_eq!(judge(&[write(1, 2, 7), read(3, 4, 0)]), Verdict::Wrong, "a lost write");
        assert_eq!(judge(&[write(1, 0, 7), read(2, 3, 7), read(4, 5, 0)]), Verdict::Wrong, "undone");
        assert_eq!(judge(&[add(1, 2, 0), read(3, 4, 2)]), Verdict::Wrong, "done twice");
        assert_eq!(judge(&[add(1, 3, 0), add(2, 4, 0)]), Verdict::Wrong, "two found the same");
        assert_eq!(judge(&[write(1, 4, 7), read(2, 3, 5)]), Verdict::Wrong, "out of nowhere");
        assert_eq!(
            judge(&[write(1, 2, 7), write(3, 4, 8), write(5, 0, 7), read(6, 7, 7), read(8, 9, 8)]),
            Verdict::Wrong
        );
    }

    #[test]
    fn what_was_refused_has_no_place_and_must_not_be_seen() {
        let mut h = Histories::default();
        let id = h.on_asked(1, 0, Act::Write(5));
        h.on_refused(id);
        h.on_seen(1, 0, 0);
        assert!(h.judge().is_empty());
        h.on_seen(1, 0, 5);
        assert_eq!(h.judge().len(), 1);
        assert_eq!((h.ended, h.unknown, h.refused), (0, 0, 1));
    }

    #[test]
    fn many_calls_at_a_time_are_judged() {
        let calls: Vec<Call> = (0..200).map(|i| add(1 + i / 8 * 100 + i % 8, 50 + i / 8 * 100 + i % 8, i)).collect();
        assert_eq!(judge(&calls), Verdict::Explained);
    }
}
