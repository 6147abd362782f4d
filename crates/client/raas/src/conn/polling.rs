//! Reading and writing for tasks: what cannot be done now wakes the task when it can.
//!
//! Owns nothing beyond the order: the waker stands before the announcement and the last look.

use std::io::{self, IoSlice};
use std::sync::MutexGuard;
use std::task::{Context, Poll};

use shm::RingWriter;

use super::reading::Lent;
use super::{Conn, Reader, Side};
use crate::park::lock;

impl Conn {
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut reader = lock(&self.read);
        let mut attempt = |conn: &Self, reader: &mut _| conn.take(reader, buf);
        match self.receive_once(&mut reader, &mut attempt) {
            Ok(Some(count)) => return Poll::Ready(Ok(count)),
            Ok(None) => {}
            Err(e) => return Poll::Ready(Err(e)),
        }
        if let Err(e) = self.wake_later(Side::Read, context) {
            return Poll::Ready(Err(e));
        }
        ready(self.receive_now(&mut reader, &mut attempt))
    }

    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let mut ring = lock(&self.write);
        match self.write_once(&mut ring, bufs) {
            Ok(Some(count)) => return Poll::Ready(Ok(count)),
            Ok(None) => {}
            Err(e) => return Poll::Ready(Err(e)),
        }
        if let Err(e) = self.wake_later(Side::Write, context) {
            return Poll::Ready(Err(e));
        }
        self.show_room();
        ready(self.write_now(&mut ring, bufs))
    }

    /// Writes all of `bufs`, `len` bytes, or nothing; `len` is at most [`Conn::tx_bytes`].
    pub(crate) fn poll_write_whole(
        &self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        len: usize,
    ) -> Poll<io::Result<()>> {
        let mut ring = lock(&self.write);
        if let Some(done) = self.write_whole_once(&mut ring, bufs, len)? {
            return Poll::Ready(Ok(done));
        }
        self.wake_later(Side::Write, context)?;
        self.show_room();
        self.announce(Side::Write);
        match self.write_whole_once(&mut ring, bufs, len)? {
            Some(done) => Poll::Ready(Ok(done)),
            None => Poll::Pending,
        }
    }

    /// Bytes that arrived, lent. None: the end.
    pub(crate) fn poll_loan(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Lent<'_>>>> {
        let mut reader = lock(&self.read);
        let mut attempt = |conn: &Self, reader: &mut Reader| conn.available(reader);
        let seen = match self.receive_once(&mut reader, &mut attempt)? {
            Some(count) => Some(count),
            None => {
                self.wake_later(Side::Read, context)?;
                self.receive_now(&mut reader, &mut attempt)?
            }
        };
        let Some(count) = seen else { return Poll::Pending };
        Poll::Ready(Ok((count > 0).then_some((reader, count as u64))))
    }

    /// The transmit ring, lent and held, when it has room for `len` bytes, at most [`Conn::tx_bytes`].
    pub(crate) fn poll_reserve(
        &self,
        context: &mut Context<'_>,
        len: usize,
    ) -> Poll<io::Result<MutexGuard<'_, RingWriter>>> {
        let mut ring = lock(&self.write);
        if !self.try_hold(&mut ring, len)? {
            self.wake_later(Side::Write, context)?;
            self.announce(Side::Write);
            if !self.try_hold(&mut ring, len)? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(ring))
    }

    /// The task is woken when something changes. The caller looks after this.
    pub(crate) fn wake_later(&self, side: Side, context: &Context<'_>) -> io::Result<()> {
        self.inner.ensure_watched()?;
        self.poller.set_waker(side, context.waker());
        Ok(())
    }
}

fn ready(now: io::Result<Option<usize>>) -> Poll<io::Result<usize>> {
    match now {
        Ok(Some(count)) => Poll::Ready(Ok(count)),
        Ok(None) => Poll::Pending,
        Err(e) => Poll::Ready(Err(e)),
    }
}
