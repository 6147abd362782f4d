//! The two halves of a pair's segment, and whose slots are free.
//!
//! Owns generations: a slot that is given out again has another one. It must never give out a slot of a segment of
//! which one half is missing.

use std::collections::BTreeSet;

use super::PAIR_SLOTS;

/// Both ends' segment of one index.
#[derive(Debug)]
pub(super) struct Segment<F> {
    pub(super) ring_bytes: u32,
    /// Of whose share it is.
    pub(super) uid: u32,
    pub(super) halves: [Option<Half<F>>; 2],
    /// Which ends have sent their half, or said that they cannot.
    pub(super) answered: [bool; 2],
    /// One side had no descriptor for it: it is given to no further connection.
    pub(super) is_lost: bool,
    free: BTreeSet<u32>,
    pub(super) generations: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Half<F> {
    /// Gone once it was passed on.
    pub(super) fd: Option<F>,
    pub(super) view: shm::Pair,
}

impl<F> Segment<F> {
    pub(super) fn new(ring_bytes: u32, uid: u32) -> Self {
        let generations = vec![1; PAIR_SLOTS as usize];
        let (halves, answered) = ([None, None], [false; 2]);
        Self { ring_bytes, uid, halves, answered, is_lost: false, free: (0..PAIR_SLOTS).collect(), generations }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.halves.iter().all(Option::is_some)
    }

    /// Whether its slots can be waited for.
    pub(super) fn is_coming(&self) -> bool {
        !self.is_lost && !self.is_ready()
    }

    /// Whether another one may come in its place once no connection is in it: nothing of it is still on its way here.
    pub(super) fn can_be_replaced(&self) -> bool {
        self.is_lost && self.answered == [true; 2]
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        if self.is_ready() && !self.is_lost { self.free.pop_first() } else { None }
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        if let Some(generation) = self.generations.get_mut(slot as usize) {
            *generation = generation.wrapping_add(1).max(1);
            self.free.insert(slot);
        }
    }
}
