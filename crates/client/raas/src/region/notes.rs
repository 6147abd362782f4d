//! Notifications that came for an owner and were not taken.
//!
//! Owns their order and who waits for them. Their number is bounded by what the daemon sends ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::park::{Parker, lock};
use crate::poller::Poller;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Notes {
    tags: Mutex<VecDeque<u32>>,
    parkers: Mutex<Vec<Arc<Parker>>>,
    pub(super) poller: Poller,
}

impl Notes {
    pub(super) fn push(&self, tag: u32) {
        lock(&self.tags).push_back(tag);
        self.wake();
    }

    pub(super) fn pop(&self) -> Option<u32> {
        lock(&self.tags).pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.tags).is_empty()
    }

    /// Everybody who waits looks again.
    pub(super) fn wake(&self) {
        let parkers = lock(&self.parkers).clone();
        for parker in &parkers {
            parker.notify();
        }
        self.poller.tell();
    }

    /// A thread waits, until [`Self::leave`].
    pub(super) fn enter(&self) -> Arc<Parker> {
        let parker = Arc::new(Parker::default());
        lock(&self.parkers).push(Arc::clone(&parker));
        parker
    }

    pub(super) fn leave(&self, parker: &Arc<Parker>) {
        lock(&self.parkers).retain(|one| !Arc::ptr_eq(one, parker));
    }
}
