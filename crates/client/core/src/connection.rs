//! A connection with both its rings, for a caller that uses it from one thread.
//!
//! Owns the calls that put the parts together. It must never do anything of its own between them.

use std::io::IoSlice;
use std::ops::DerefMut;
use std::sync::Arc;

use shm::{RingReader, RingWriter};

use crate::endpoint::RingSizes;
use crate::{End, Endpoint, Forked, Readiness, Reserved, Rx, Side, Tx};

/// One end of a connection. To use it from several threads, take it apart: the fields are public for that. Dropping it
/// before [`Connection::close`] resets the connection.
#[derive(Debug)]
pub struct Connection {
    /// State, ends, waiting; for any thread.
    pub endpoint: Endpoint,
    /// The receive ring.
    pub rx: Rx,
    /// The transmit ring.
    pub tx: Tx,
}

impl Connection {
    pub(crate) fn new(endpoint: Endpoint, reader: RingReader, writer: RingWriter, rings: RingSizes) -> Self {
        let tx = Tx::new(writer, Arc::clone(endpoint.life()));
        Self { endpoint, rx: Rx::new(reader, rings.rx), tx }
    }

    /// As [`Rx::try_read`].
    pub fn try_read(&mut self, buf: &mut [u8]) -> Result<Option<usize>, End> {
        self.rx.try_read(&self.endpoint, buf)
    }

    /// As [`Tx::try_write`], of one buffer.
    pub fn try_write(&mut self, buf: &[u8]) -> Result<Option<usize>, End> {
        self.tx.try_write(&self.endpoint, &[IoSlice::new(buf)])
    }

    /// As [`Reserved::try_new`]; `None`: there is no room yet.
    pub fn try_reserve(&mut self, len: usize) -> Result<Option<Reserved<&mut Tx>>, End> {
        Ok(Reserved::try_new(&mut self.tx, &self.endpoint, len)?.ok())
    }

    /// Ends a direction and tells the other side, once.
    pub fn shut(&mut self, side: Side) -> Result<(), Forked> {
        if self.endpoint.mark_shut(side)? {
            self.endpoint.say_shut(side);
        }
        Ok(())
    }

    /// As [`readiness`]; writing takes one byte of room.
    pub fn readiness(&mut self) -> Readiness {
        readiness(&self.endpoint, Some(&mut self.rx), Some(&mut self.tx), 1)
    }

    /// Gives the connection back in order, or by a reset if bytes that arrived were not read.
    pub fn close(mut self) {
        self.rx.close(&self.endpoint, true);
    }
}

/// What can be done now, where writing takes `room` bytes. A ring that is not given (`None`) is in use by another
/// thread, perhaps one that waits. Its direction counts as ready: the caller should try it. To get a signal when the
/// rest becomes ready, arm it ([`Endpoint::arm`]) and ask again.
pub fn readiness<R, T>(at: &Endpoint, rx: Option<R>, tx: Option<T>, room: u64) -> Readiness
where
    R: DerefMut<Target = Rx>,
    T: DerefMut<Target = Tx>,
{
    // The ends first: bytes that came before are in the ring after them.
    let (read_end, write_end) = (at.read_end(), at.write_end());
    // A ring that breaks the rules is news, too.
    let has_bytes = |mut rx: R| rx.has_news(at) || rx.follow(at).is_err() || rx.has_news(at);
    let has_bytes = read_end.is_some() || rx.is_none_or(has_bytes);
    let has_room = write_end.is_some() || tx.is_none_or(|mut tx| tx.may_write(at, room));
    let is_broken = [read_end, write_end].into_iter().flatten().any(|end| end != End::Finished);
    Readiness::when(Readiness::READ, has_bytes)
        | Readiness::when(Readiness::WRITE, has_room)
        | Readiness::when(Readiness::HUP, read_end.is_some())
        | Readiness::when(Readiness::ERR, is_broken)
}
