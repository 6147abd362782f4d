//! What the clients of a story saw.
//!
//! Owns the order of what was asked for and what ended, and the judgement of each object.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use histories::{Event, Verdict, judge_by};

use crate::world::World;

/// The calls of each object.
pub type Calls<A> = BTreeMap<u64, Vec<Event<A>>>;

/// What is asked of a word, with what was found once that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordAct {
    /// Stores this.
    Write(u64),
    /// Adds; what was there before.
    Add(u64, Option<u64>),
    /// Leaves the greater one; what was there before.
    Max(u64, Option<u64>),
    /// Looks at it.
    Read(Option<u64>),
}

impl WordAct {
    /// The word afterwards; `None`: it cannot have found what it found.
    pub fn apply(state: &u64, act: &Self) -> Option<u64> {
        let sees = |found: &Option<u64>| found.is_none_or(|found| found == *state);
        match act {
            Self::Write(value) => Some(*value),
            Self::Add(value, found) => sees(found).then(|| state.wrapping_add(*value)),
            Self::Max(value, found) => sees(found).then(|| *value.max(state)),
            Self::Read(found) => sees(found).then_some(*state),
        }
    }
}

/// The calls of several objects. `A` is what was asked for, with what was found.
#[derive(Debug)]
pub struct History<A> {
    world: World,
    calls: Arc<Mutex<Calls<A>>>,
}

impl<A> Clone for History<A> {
    fn clone(&self) -> Self {
        Self { world: self.world.clone(), calls: Arc::clone(&self.calls) }
    }
}

/// A call that was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    object: u64,
    index: usize,
}

impl<A: Clone + Debug> History<A> {
    /// Without calls.
    pub fn new(world: &World) -> Self {
        Self { world: world.clone(), calls: Arc::default() }
    }

    /// A call is asked for. What it finds is not known, and until it has ended it may happen at any time, or never.
    pub fn ask(&self, object: u64, unknown: A) -> Asked {
        let asked = self.world.moment();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(object).or_default();
        calls.push(Event { what: unknown, asked, ended: None, after: None });
        Asked { object, index: calls.len() - 1 }
    }

    /// It has ended, and this is what it found.
    pub fn end(&self, call: Asked, what: A) {
        let now = self.world.moment();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = calls.get_mut(&call.object).and_then(|calls| calls.get_mut(call.index)) {
            (call.what, call.ended) = (what, Some(now));
        }
    }

    /// Calls that have ended.
    pub fn ended(&self) -> usize {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.values().flatten().filter(|call| call.ended.is_some()).count()
    }

    /// All calls, as they are known now.
    pub fn calls(&self) -> Calls<A> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Judges each object, which was `start` at first; the first one that no order explains.
    pub fn judge<S: Clone + Eq + Hash>(&self, start: &S, apply: impl Fn(&S, &A) -> Option<S>) -> Result<(), String> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        for (object, calls) in calls.iter() {
            if judge_by(calls, start.clone(), &apply) == Verdict::Wrong {
                let lines: Vec<String> =
                    calls.iter().map(|c| format!("  {:?} asked {} ended {:?}", c.what, c.asked, c.ended)).collect();
                return Err(format!("object {object}: no order explains\n{}", lines.join("\n")));
            }
        }
        Ok(())
    }
}
