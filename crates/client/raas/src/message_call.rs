//! A request and its reply over a connection of messages.
//!
//! Owns the order of the two. It must never take a late reply for another call's.

use std::io;

use crate::message::MessageStream;
use crate::message_error::MessageError;

impl MessageStream {
    /// Sends `request` and receives the next message as its reply into `reply`; says how long it is. Threads that call
    /// take turns.
    ///
    /// A call that sent its request and fails before it took the reply (out of time, a buffer that is too small) leaves
    /// the connection **out of step**. The reply may still come, so every later call fails with
    /// [`MessageError::OutOfStep`] and sends nothing. The program must then connect again. The peer must answer each
    /// message with one message, and no other caller may receive here.
    pub fn call(&self, request: &[u8], reply: &mut [u8]) -> io::Result<usize> {
        self.call_by(request, || self.receive(reply))
    }

    /// As [`MessageStream::call`], for a reply of any length.
    pub fn call_vec(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.call_by(request, || self.receive_vec())
    }

    fn call_by<T>(&self, request: &[u8], receive: impl FnOnce() -> io::Result<Option<T>>) -> io::Result<T> {
        self.stream.carrier.check_fork()?;
        self.check_reliable("calls")?;
        let _turn = self.calls.turn();
        let mut call = self.calls.begin()?;
        // On an error none of it was sent.
        self.send(request)?;
        call.sending();
        let reply = receive()?.ok_or(MessageError::NoReply)?;
        call.in_step();
        Ok(reply)
    }
}
