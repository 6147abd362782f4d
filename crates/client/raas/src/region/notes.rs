//! Notifications that came for an owner and were not taken.
//!
//! Owns their order and who waits for them. Their number is bounded by what the daemon sends ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::park::{Parker, lock};
use crate::poller::Poller;

/// What the owner is to be told next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// A writer's tag, and the handle to which the daemon said it.
    Tag { tag: u32, open: u64 },
    /// The daemon has ended, and may have had more.
    Lost,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: Mutex<VecDeque<Note>>,
    parkers: Mutex<Vec<Arc<Parker>>>,
    pub(super) poller: Poller,
}

impl Notes {
    pub(super) fn push(&self, tag: u32, open: u64) {
        lock(&self.notes).push_back(Note::Tag { tag, open });
        self.wake();
    }

    /// The daemon has ended. The caller wakes those who wait.
    pub(super) fn lose(&self) {
        let mut notes = lock(&self.notes);
        if notes.back() != Some(&Note::Lost) {
            notes.push_back(Note::Lost);
        }
    }

    pub(super) fn pop(&self) -> Option<Note> {
        lock(&self.notes).pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.notes).is_empty()
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
