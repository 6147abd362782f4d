//! Requests and replies over a connection of messages.
//!
//! Owns whether the next message is the reply to the next request. It must never give a late reply to another call.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::message::{Message, MessageError};
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

impl Message {
    /// Sends `request` and receives the next message as its reply into `reply`; says how long it is. Threads that call
    /// take turns.
    ///
    /// A call that sent its request and fails before it took the reply (out of time, a buffer that is too small) leaves
    /// the connection **out of step**: the reply may still come, so every later call fails with
    /// [`MessageError::OutOfStep`] and sends nothing. Connect anew then. The peer must answer each message with one,
    /// and nobody else receive here.
    pub fn call(&self, request: &[u8], reply: &mut [u8]) -> io::Result<usize> {
        self.call_by(request, || self.receive(reply))
    }

    /// As [`Message::call`], for a reply of any length.
    pub fn call_vec(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.call_by(request, || self.receive_vec())
    }

    fn call_by<T>(&self, request: &[u8], receive: impl FnOnce() -> io::Result<Option<T>>) -> io::Result<T> {
        let _turn = lock(&self.calls.turn);
        let mut call = self.calls.begin()?;
        // On an error none of it was sent.
        self.send(request)?;
        call.sending();
        let reply = receive()?.ok_or(MessageError::NoReply)?;
        call.in_step();
        Ok(reply)
    }
}
