//! Histories of words in regions, and whether some order of one operation at a time explains each.
//!
//! The algorithm is that of Wing and Gong (1993) with Lowe's memory of what was tried (2017). Linearizability is local:
//! each word of each region is judged alone (Herlihy and Wing, 1990). It must never take a history for wrong because it
//! is too long to judge: those are counted.
//!
//! The simulator and tests with real processes judge by it.
//!
//! Owns the judgement. May use `shm`. Order of calls: calls and answers in the order of time, then the judgement.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

use shm::AtomicOp;

/// Steps of one judgement; with more it is undecided.
const STEPS_MAX: usize = 300_000;

/// What a call does with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Looks at it.
    Read,
    /// Stores this.
    Write(u64),
    /// Changes it by an atomic.
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
pub struct Call {
    /// What it does.
    pub act: Act,
    /// When it was asked for, as the order of what callers did.
    pub asked: u64,
    /// When it ended. `None`: nobody knows whether and when it was done.
    pub ended: Option<u64>,
    /// What it found, of a read or an atomic.
    pub found: Option<u64>,
    /// When the call was asked for that was done before this one, by a fence. It is of the same word.
    pub after: Option<u64>,
    /// It was done before this moment, or not at all: its caller was fenced off.
    pub by: Option<u64>,
}

/// What was found about one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Some order of one call at a time does.
    Explained,
    /// No order explains it.
    Wrong,
    /// It took too long to tell.
    Undecided,
}

/// A call of any kind, for [`judge_by`].
#[derive(Debug, Clone, Copy)]
pub struct Event<A> {
    /// What was asked for, and what was found.
    pub what: A,
    /// As in [`Call`].
    pub asked: u64,
    /// As in [`Call`].
    pub ended: Option<u64>,
    /// As in [`Call`].
    pub after: Option<u64>,
}

/// Judges the calls of one word, which was 0 at first. No two were asked for at the same time.
pub fn judge(calls: &[Call]) -> Verdict {
    // Nobody can see whether a read was done that nobody heard of.
    let seen = calls.iter().filter(|c| c.ended.is_some() || c.act != Act::Read);
    let event = |c: &Call| {
        let event = Event { what: (c.act, c.found), asked: c.asked, ended: c.ended, after: c.after };
        (event, c.by)
    };
    search(seen.map(event).collect(), 0, |word: &u64, (act, found)| act.apply(*word, *found))
}

/// Judges the calls of one object of any kind, which was `start` at first. `apply` says what the object is after a call,
/// or `None` if the call cannot have found what it found. No two were asked for at the same time.
pub fn judge_by<A: Clone, S: Clone + Eq + Hash>(
    calls: &[Event<A>],
    start: S,
    apply: impl Fn(&S, &A) -> Option<S>,
) -> Verdict {
    search(calls.iter().map(|call| (call.clone(), None)).collect(), start, apply)
}

/// Each call with the moment after which it was not done.
fn search<A: Clone, S: Clone + Eq + Hash>(
    mut calls: Vec<(Event<A>, Option<u64>)>,
    start: S,
    apply: impl Fn(&S, &A) -> Option<S>,
) -> Verdict {
    calls.sort_unstable_by_key(|(c, _)| c.asked);
    let (calls, by): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    let words = calls.len().div_ceil(64);
    let mut tried: HashSet<(Vec<u64>, S)> = HashSet::new();
    let mut stack = vec![(vec![0u64; words], start)];
    for _ in 0..STEPS_MAX {
        let Some((done, state)) = stack.pop() else { return Verdict::Wrong };
        let is_done = |i: usize| done[i / 64] >> (i % 64) & 1 == 1;
        let open = || (0..calls.len()).filter(|i| !is_done(*i));
        // One that may never have been done keeps nothing waiting.
        let keeps = |before: usize, after: u64| calls[before].asked == after && calls[before].ended.is_some();
        let waits = |i: usize| calls[i].after.is_some_and(|after| open().any(|before| keeps(before, after)));
        // What was asked for later and is done already was done later.
        let last_done = || (0..calls.len()).rev().find(|i| is_done(*i)).map_or(0, |i| calls[i].asked);
        let is_too_late = |i: usize| by[i].is_some_and(|by| last_done() > by);
        let Some(first_end) = open().filter_map(|i| calls[i].ended).min() else { return Verdict::Explained };
        for i in open().take_while(|i| calls[*i].asked < first_end).filter(|i| !waits(*i) && !is_too_late(*i)) {
            let Some(next) = apply(&state, &calls[i].what) else { continue };
            let mut also = done.clone();
            also[i / 64] |= 1 << (i % 64);
            if tried.insert((also.clone(), next.clone())) {
                stack.push((also, next));
            }
        }
    }
    Verdict::Undecided
}

/// The histories of all regions, by region and word.
#[derive(Debug, Default)]
pub struct Histories {
    calls: BTreeMap<(u64, u64), Vec<Call>>,
    order: u64,
    /// Calls that ended with what they did.
    pub ended: u64,
    /// Calls of which nobody knows.
    pub unknown: u64,
    /// Calls that did nothing, and said so.
    pub refused: u64,
    /// Words whose history was too long to judge.
    pub undecided: u64,
}

/// A call that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId {
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
    pub fn on_asked(&mut self, region: u64, word: u64, act: Act) -> CallId {
        self.on_asked_after(region, word, act, None)
    }

    /// As [`Histories::on_asked`], of a call that a fence keeps from being done before another one of the same word.
    pub fn on_asked_after(&mut self, region: u64, word: u64, act: Act, before: Option<CallId>) -> CallId {
        let asked = self.next();
        let after = before.and_then(|id| self.call(id)).map(|call| call.asked);
        let calls = self.calls.entry((region, word)).or_default();
        calls.push(Call { act, asked, ended: None, found: None, after, by: None });
        self.unknown += 1;
        CallId { region, word, index: calls.len() - 1 }
    }

    fn call(&mut self, id: CallId) -> Option<&mut Call> {
        self.calls.get_mut(&(id.region, id.word))?.get_mut(id.index)
    }

    /// A call was done, and found this.
    pub fn on_ended(&mut self, id: CallId, found: Option<u64>) {
        let now = self.next();
        self.ended += 1;
        self.unknown -= 1;
        if let Some(call) = self.call(id) {
            (call.ended, call.found) = (Some(now), found);
        }
    }

    /// A call was not done: it has no place in the history, as a read that nobody heard of.
    pub fn on_refused(&mut self, id: CallId) {
        self.refused += 1;
        self.unknown -= 1;
        if let Some(call) = self.call(id) {
            call.act = Act::Read;
        }
    }

    /// Its caller was fenced off: what was not done by now is never done.
    pub fn on_fenced(&mut self, id: CallId) {
        let now = self.next();
        if let Some(call) = self.call(id) {
            call.by.get_or_insert(now);
        }
    }

    /// A word as its host sees it.
    pub fn on_seen(&mut self, region: u64, word: u64, value: u64) {
        let id = self.on_asked(region, word, Act::Read);
        self.on_ended(id, Some(value));
        self.ended -= 1;
    }

    /// Judges all; the words of which no order explains the history.
    pub fn judge(&mut self) -> Vec<String> {
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
        Call { act, asked, ended: (ended > 0).then_some(ended), found, after: None, by: None }
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
    fn a_fence_is_an_order() {
        let read = call(Act::Read, 1, 10, Some(7));
        let write = call(Act::Write(7), 2, 11, None);
        assert_eq!(judge(&[read, write]), Verdict::Explained, "they overlap");
        assert_eq!(judge(&[read, Call { after: Some(1), ..write }]), Verdict::Wrong, "the write came behind the read");
        let read = Call { found: Some(0), ..read };
        assert_eq!(judge(&[read, Call { after: Some(1), ..write }]), Verdict::Explained);
    }

    #[test]
    fn a_call_that_was_fenced_off_is_not_done_later() {
        let mut h = Histories::default();
        let write = h.on_asked(1, 0, Act::Write(5));
        h.on_seen(1, 0, 0);
        h.on_fenced(write);
        h.on_seen(1, 0, 5);
        assert!(h.judge().is_empty(), "it was done between the look and the fence");
        let write = h.on_asked(1, 0, Act::Write(6));
        h.on_fenced(write);
        h.on_seen(1, 0, 5);
        assert!(h.judge().is_empty(), "it was not done");
        h.on_seen(1, 0, 6);
        assert_eq!(h.judge().len(), 1, "it was done behind the fence");
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
