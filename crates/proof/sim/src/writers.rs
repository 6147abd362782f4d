//! Take-overs of regions with one writer, as those who take them over see them.
//!
//! Owns who the last writer of each region is, and what those before it had asked for: from the answer to a take-over on
//! nothing of that may be done. The histories judge whether it was.

use std::collections::BTreeMap;

use histories::{CallId, Histories};
use rand::RngExt;
use rand::rngs::StdRng;

/// A writer among those of a region: by the epoch in which it took the region over, since a daemon that is new knows no terms,
/// and by its term.
pub(crate) type Turn = (u64, u64);

/// A term that is asked for is at most so much beside the greatest that was.
const STEP_MAX: u64 = 3;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// Of each region the last one that was answered.
    last: BTreeMap<u64, Turn>,
    /// What writers have asked for, that were not over when they did.
    calls: Vec<(u64, Turn, CallId)>,
    /// The greatest term that was asked for, by the host of the region.
    terms: BTreeMap<usize, u64>,
    /// Take-overs in whose place another one came.
    pub(crate) superseded: u64,
}

impl Writers {
    /// A term for a take-over of a host's region, which may be too small.
    pub(crate) fn draw_term(&mut self, host: usize, rng: &mut StdRng) -> u64 {
        let greatest = self.terms.entry(host).or_default();
        let term = (*greatest + rng.random_range(0..2 * STEP_MAX)).saturating_sub(STEP_MAX - 2);
        *greatest = term.max(*greatest);
        term
    }

    /// A take-over was answered: those before it are over.
    pub(crate) fn on_taken(&mut self, region: u64, turn: Turn, histories: &mut Histories) {
        let last = self.last.entry(region).or_default();
        self.superseded += u64::from(*last != Turn::default());
        *last = turn.max(*last);
        let last = *last;
        let is_over = |(of, by, _): &mut (u64, Turn, CallId)| *of == region && *by < last;
        self.calls.extract_if(.., is_over).for_each(|(.., call)| histories.on_fenced(call));
    }

    /// Whether another writer has come after this one.
    pub(crate) fn is_over(&self, region: u64, turn: Turn) -> bool {
        self.last.get(&region).is_some_and(|last| turn < *last)
    }

    /// A writer asks for something.
    pub(crate) fn on_asked(&mut self, region: u64, turn: Turn, call: CallId, histories: &mut Histories) {
        if self.is_over(region, turn) {
            histories.on_fenced(call);
        } else {
            self.calls.push((region, turn, call));
        }
    }
}
