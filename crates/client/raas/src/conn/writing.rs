//! Writing to a connection.
//!
//! Owns the producing end of its ring. It must never hold bytes back: what a write took is on its way when it returns.

use std::io::{self, IoSlice};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use shm::RingWriter;

use super::{Conn, End, FAULTY, Link, Side};
use crate::StreamError;
use crate::park::lock;
use crate::patience::Patience;

impl Conn {
    pub(crate) fn write(&self, buf: &[u8]) -> io::Result<usize> {
        if buf.is_empty() || buf.len() > self.piece_bytes {
            return self.write_slices(&[IoSlice::new(buf)]);
        }
        // One piece of one buffer goes without the loops over both, which would cost a small message more than its copy.
        let mut ring = lock(&self.write);
        if let Some(end) = self.write_end() {
            return Err(write_error(end));
        }
        self.note_answer();
        match ring.write(buf).map_err(|fault| self.on_fault(fault))? {
            0 => self.write_slowly(&mut ring, &[IoSlice::new(buf)]),
            count => {
                self.tell_written();
                Ok(count)
            }
        }
    }

    pub(crate) fn write_slices(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Ok(0);
        }
        let mut ring = lock(&self.write);
        if let Some(end) = self.write_end() {
            return Err(write_error(end));
        }
        match self.put(&mut ring, bufs)? {
            0 => self.write_slowly(&mut ring, bufs),
            count => Ok(count),
        }
    }

    #[inline(never)]
    fn write_slowly(&self, ring: &mut RingWriter, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_nonblocking() {
            return self.write_now(ring, bufs)?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
        }
        let mut patience = Patience::new(self.wait_policy(Side::Write), &self.inner.turns, self.timeout(Side::Write));
        loop {
            self.wait(Side::Write, &mut patience, &mut |_| {
                !matches!(ring.free(), Ok(0)) || self.write_end().is_some()
            })?;
            if let Some(count) = self.write_once(ring, bufs)? {
                return Ok(count);
            }
        }
    }

    /// After a look that found no room, without waiting; None: there is still none, and whoever uses the poller is told
    /// when there is.
    pub(super) fn write_now(&self, ring: &mut RingWriter, bufs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.announce(Side::Write);
        self.write_once(ring, bufs)
    }

    /// One look: room, an error, or nothing yet.
    pub(super) fn write_once(&self, ring: &mut RingWriter, bufs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if let Some(end) = self.write_end() {
            return Err(write_error(end));
        }
        let count = self.put(ring, bufs)?;
        Ok((count > 0).then_some(count))
    }

    /// Writes all of `bufs`, `len` bytes, at once, when there is room for all; `len` is at most [`Conn::tx_bytes`].
    pub(crate) fn write_whole(&self, bufs: &[IoSlice<'_>], len: usize) -> io::Result<()> {
        let mut ring = self.reserve(len)?;
        let put = self.put(&mut ring, bufs).map(drop);
        ring.let_go();
        put
    }

    /// As [`Conn::write_whole`], with one look: None if there is no room for all.
    #[cfg(feature = "tokio")]
    pub(super) fn write_whole_once(
        &self,
        ring: &mut RingWriter,
        bufs: &[IoSlice<'_>],
        len: usize,
    ) -> io::Result<Option<()>> {
        if let Some(end) = self.write_end() {
            return Err(write_error(end));
        }
        if ring.free().map_err(|fault| self.on_fault(fault))? < len as u64 || !ring.hold() {
            return Ok(None);
        }
        let put = self.put(ring, bufs).map(drop);
        ring.let_go();
        put.map(Some)
    }

    /// Waits until there is room for `len` bytes, at most [`Conn::tx_bytes`], and lends the ring, held: the caller lets it go.
    pub(crate) fn reserve(&self, len: usize) -> io::Result<MutexGuard<'_, RingWriter>> {
        let mut ring = lock(&self.write);
        let mut patience = Patience::new(self.inner.policy, &self.inner.turns, self.timeout(Side::Write));
        let mut announced = false;
        loop {
            if self.try_hold(&mut ring, len)? {
                return Ok(ring);
            }
            if self.is_nonblocking() {
                if announced {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                announced = true;
                self.announce(Side::Write);
                continue;
            }
            self.wait(Side::Write, &mut patience, &mut |_| {
                !matches!(ring.free(), Ok(free) if free < len as u64) || self.write_end().is_some()
            })?;
        }
    }

    /// One look of [`Conn::reserve`]: whether there is room, and the ring is held.
    pub(super) fn try_hold(&self, ring: &mut RingWriter, len: usize) -> io::Result<bool> {
        if let Some(end) = self.write_end() {
            return Err(write_error(end));
        }
        Ok(ring.free_for(len as u64).map_err(|fault| self.on_fault(fault))? >= len as u64 && ring.hold())
    }

    /// Bytes that the ring of this direction holds.
    pub(crate) fn tx_bytes(&self) -> usize {
        self.tx_bytes
    }

    /// Puts in what fits and says so to the other side: at the end, and after each piece, so that the other side works on
    /// one while the next is copied.
    #[inline]
    fn put(&self, ring: &mut RingWriter, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.note_answer();
        let (mut total, mut untold) = (0, 0);
        'all: for buf in bufs {
            for piece in buf.chunks(self.piece_bytes) {
                let count = ring.write(piece).map_err(|fault| self.on_fault(fault))?;
                total += count;
                untold += count;
                if count < piece.len() {
                    break 'all;
                }
                if untold >= self.piece_bytes {
                    self.tell_written();
                    untold = 0;
                }
            }
        }
        if untold > 0 {
            self.tell_written();
        }
        Ok(total)
    }

    /// This side writes: its reader is in a conversation.
    #[inline]
    fn note_answer(&self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn tell_written(&self) {
        match &self.link {
            Link::Pair(end) => end.wake(Side::Read.bit()),
            Link::Lane(end) => self.wake_engine(end.ring()),
        }
    }

    #[inline]
    pub(super) fn write_end(&self) -> Option<End> {
        if self.is(Side::Write.bit() | FAULTY) {
            return Some(self.own_end());
        }
        match &self.link {
            Link::Pair(end) => end.write_end(),
            Link::Lane(end) => {
                let lost = self.inner.lost();
                end.write_end().or(lost.map(End::Reset))
            }
        }
    }
}

fn write_error(end: End) -> io::Error {
    match end {
        End::Finished => StreamError::broken_pipe(),
        End::Reset(reason) => StreamError::reset(reason),
    }
}
