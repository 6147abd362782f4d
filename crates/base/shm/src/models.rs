//! The protocols of this crate under loom: all interleavings of small cases, with the stale loads that the C11 memory
//! model allows.
//!
//! Owns words that live in loom's memory, as they are or deliberately weakened. Each protocol has a model that must
//! hold and the same model, weakened, that must fail: so a model that could not fail would show.
//!
//! Nothing blocks in a model. A party that would block says so, and at the end it is an error if one sleeps while there
//! is work for it and nobody sent a wake.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::sync::{AtomicRow, AtomicWord};

mod doorbell;
mod pair;
mod ready;
mod rest;
mod ring;
mod told;

/// What is taken away from a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strength {
    AsWritten,
    /// The sequentially consistent fences are left out.
    WithoutFences,
    /// All orderings are relaxed; the fences stay.
    Relaxed,
}

impl Strength {
    fn apply(self, order: Ordering) -> Ordering {
        if self == Self::Relaxed { Ordering::Relaxed } else { order }
    }

    fn fence(self) {
        if self != Self::WithoutFences {
            fence(Ordering::SeqCst);
        }
    }
}

/// A shared word of a model.
#[derive(Debug)]
struct Cell<A> {
    atomic: Arc<A>,
    strength: Strength,
}

impl<A> Clone for Cell<A> {
    fn clone(&self) -> Self {
        Self { atomic: self.atomic.clone(), strength: self.strength }
    }
}

macro_rules! cell {
    ($atomic:ty, $int:ty) => {
        impl Cell<$atomic> {
            fn new(strength: Strength) -> Self {
                Self { atomic: Arc::new(<$atomic>::new(0)), strength }
            }
        }

        impl AtomicWord<$int> for Cell<$atomic> {
            fn load(&self, order: Ordering) -> $int {
                self.atomic.load(self.strength.apply(order))
            }
            fn store(&self, value: $int, order: Ordering) {
                self.atomic.store(value, self.strength.apply(order));
            }
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                self.atomic.fetch_or(bits, self.strength.apply(order))
            }
            fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                self.atomic.fetch_and(bits, self.strength.apply(order))
            }
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.atomic.fetch_add(value, self.strength.apply(order))
            }
            fn compare_exchange(&self, current: $int, new: $int, order: Ordering) -> Result<$int, $int> {
                self.atomic.compare_exchange(current, new, self.strength.apply(order), Ordering::Relaxed)
            }
            fn fence_seq_cst(&self) {
                self.strength.fence();
            }
            // Loom knows no fence that one thread makes another pass; what it amounts to is a fence on both sides.
            fn fence_light(&self) {
                self.strength.fence();
            }
        }
    };
}
cell!(AtomicU32, u32);
cell!(AtomicU64, u64);
type Cell32 = Cell<AtomicU32>;
type Cell64 = Cell<AtomicU64>;

/// A row of words of which only some are ever touched (loom's memory is small): word 0 and the leaves from word 8.
#[derive(Debug, Clone)]
struct Row {
    summary: Cell64,
    leaves: Vec<Cell64>,
}

impl Row {
    fn new(leaves: usize, strength: Strength) -> Self {
        Self { summary: Cell64::new(strength), leaves: (0..leaves).map(|_| Cell64::new(strength)).collect() }
    }

    fn word(&self, index: usize) -> &Cell64 {
        if index == 0 { &self.summary } else { &self.leaves[index - 8] }
    }
}

impl AtomicRow for Row {
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).load(order)
    }
    fn fetch_or(&self, index: usize, bits: u64, order: Ordering) -> u64 {
        self.word(index).fetch_or(bits, order)
    }
    fn fetch_and(&self, index: usize, bits: u64, order: Ordering) -> u64 {
        self.word(index).fetch_and(bits, order)
    }
    fn fence_seq_cst(&self) {
        self.summary.fence_seq_cst();
    }
}

/// Explores a model with at most `preemptions` preemptions of a running thread in one execution, or as many as the
/// variable LOOM_MAX_PREEMPTIONS allows, if that is more.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.max(Some(preemptions));
    builder.check(model);
}

/// Explores a model that must fail with a message that contains `expected`.
fn must_fail(expected: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let failure = catch_unwind(AssertUnwindSafe(|| explore(preemptions, model)))
        .expect_err("the weakened protocol passed its model: the model shows nothing");
    let text = failure
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| failure.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without text");
    assert!(text.contains(expected), "failed for another reason than '{expected}': {text}");
}
