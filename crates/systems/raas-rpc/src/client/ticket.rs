//! A call under way, as its caller holds it.
//!
//! Owns the outcome and who waits for it: one thread or one task. It must never lose a wake.

use std::sync::Mutex;
use std::task::Waker;
use std::thread::Thread;

use crate::error::CallError;
use crate::server::lock;

/// What a call ended with.
pub(crate) type Outcome = Result<Vec<u8>, CallError>;

#[derive(Debug, Default)]
enum Waiter {
    #[default]
    Nobody,
    Thread(Thread),
    Task(Waker),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) sequence: u64,
    state: Mutex<(Option<Outcome>, Waiter)>,
}

impl Ticket {
    pub(crate) fn new(sequence: u64) -> Self {
        Self { sequence, state: Mutex::default() }
    }

    /// The call has ended; the first outcome counts.
    pub(crate) fn settle(&self, outcome: Outcome) {
        let mut state = lock(&self.state);
        if state.0.is_none() {
            state.0 = Some(outcome);
        }
        let waiter = std::mem::take(&mut state.1);
        drop(state);
        match waiter {
            Waiter::Nobody => {}
            Waiter::Thread(thread) => thread.unpark(),
            Waiter::Task(waker) => waker.wake(),
        }
    }

    pub(crate) fn take(&self) -> Option<Outcome> {
        lock(&self.state).0.take()
    }

    pub(crate) fn is_settled(&self) -> bool {
        lock(&self.state).0.is_some()
    }

    /// This thread is woken by the outcome, and by [`Self::wake_thread`].
    pub(crate) fn wait_here(&self) {
        lock(&self.state).1 = Waiter::Thread(std::thread::current());
    }

    /// A task is woken by the outcome. Returns the outcome if it is there already.
    pub(crate) fn wake_later(&self, waker: &Waker) -> Option<Outcome> {
        let mut state = lock(&self.state);
        let outcome = state.0.take();
        if outcome.is_none() {
            state.1 = Waiter::Task(waker.clone());
        }
        outcome
    }

    /// Wakes the thread that waits, without an outcome: somebody has to look for responses. False: no thread waits.
    pub(crate) fn wake_thread(&self) -> bool {
        match &lock(&self.state).1 {
            Waiter::Thread(thread) => thread.unpark(),
            _ => return false,
        }
        true
    }
}
