//! Requests and replies over a connection of messages.
//!
//! Owns whether the next message is the reply to the next request. It must never give a late reply to another call.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::message_error::MessageError;
use crate::park::lock;

/// No call is under way, and each had its reply.
const IN_STEP: u8 = 0;
/// A call was begun.
const CALLING: u8 = 1;
/// A request was sent whose reply was not taken.
const OUT_OF_STEP: u8 = 2;

/// The calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    state: AtomicU8,
    /// Threads take turns.
    turn: Mutex<()>,
}

/// A call under way. Dropped after its request was sent, and before its reply came, it leaves the connection out of
/// step.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    calls: &'a Calls,
    end: u8,
}

impl Calls {
    /// The turn of a thread that calls.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Begins a call; fails while another one is under way, and after one that got no reply.
    pub(crate) fn begin(&self) -> Result<Call<'_>, MessageError> {
        let begun = self.state.compare_exchange(IN_STEP, CALLING, Ordering::AcqRel, Ordering::Relaxed);
        begun.map(|_| Call { calls: self, end: IN_STEP }).map_err(|_| MessageError::OutOfStep)
    }
}

impl Call<'_> {
    /// The request is about to leave.
    pub(crate) fn sending(&mut self) {
        self.end = OUT_OF_STEP;
    }

    /// Nothing of the request left, or its reply is here.
    pub(crate) fn in_step(&mut self) {
        self.end = IN_STEP;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.calls.state.store(self.end, Ordering::Release);
    }
}
