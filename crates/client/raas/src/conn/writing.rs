//! Writing to a connection: trying, and waiting between the tries.
//!
//! Owns the two ways of waiting for room: for some, and for room for a whole message. It must never send a part of what
//! was to go whole.

use std::io::{self, IoSlice};
use std::sync::MutexGuard;

use raas_core::{End, Reserved, Side, Tx};

use super::Conn;
use super::lent::Room;
use super::waiting::Waits;
use crate::patience::Patience;

/// A call that waits for room for all that it has.
struct WholeWait<'a> {
    patience: Patience<'a>,
    /// Of a call that must not wait: the poller's user is notified of room from now on.
    is_announced: bool,
}

impl WholeWait<'_> {
    /// After a look that found no room for `len` bytes: the caller looks again.
    fn go_on(&mut self, conn: &Conn, tx: &mut Tx, len: usize) -> io::Result<()> {
        if conn.is_nonblocking() {
            if self.is_announced {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.is_announced = true;
            conn.announce(Side::Write);
            return Ok(());
        }
        conn.wait(Side::Write, None, &mut self.patience, &mut |_| {
            tx.sees_room(&conn.endpoint, len as u64) || conn.endpoint.write_end().is_some()
        })
    }
}

impl Conn {
    #[inline]
    pub(crate) fn write(&self, buf: &[u8]) -> io::Result<usize> {
        if buf.is_empty() || !Tx::is_piece(&self.endpoint, buf.len()) {
            return self.write_slices(&[IoSlice::new(buf)]);
        }
        // One piece of one buffer goes without the loops over both, which would cost a small message more than its
        // copy.
        let mut tx = self.begin(&self.tx)?;
        if let Some(end) = self.endpoint.write_end() {
            return Err(self.failed(end));
        }
        match tx.put_piece(&self.endpoint, buf).map_err(|end| self.failed(end))? {
            0 => self.write_slowly(&mut tx, &[IoSlice::new(buf)]),
            count => Ok(count),
        }
    }

    pub(crate) fn write_slices(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Ok(0);
        }
        let mut tx = self.begin(&self.tx)?;
        match self.write_once(&mut tx, bufs)? {
            Some(count) => {
                self.note_moved(count);
                Ok(count)
            }
            None => self.write_slowly(&mut tx, bufs),
        }
    }

    #[inline(never)]
    fn write_slowly(&self, tx: &mut Tx, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_nonblocking() {
            return self.write_now(tx, bufs)?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
        }
        let mut patience = self.patience_of_writer(Waits::Room, tx);
        loop {
            let beside = if tx.is_direct() { self.endpoint.direct_descriptor(Side::Write) } else { None };
            self.wait(Side::Write, beside, &mut patience, &mut |_| {
                tx.sees_room(&self.endpoint, 1) || self.endpoint.write_end().is_some()
            })?;
            if let Some(count) = self.write_once(tx, bufs)? {
                return Ok(count);
            }
        }
    }

    fn patience_of_writer(&self, waits: Waits, tx: &Tx) -> Patience<'_> {
        let policy = waits.policy(self.endpoint.is_lane(), tx.is_direct(), self.attachment.config.policy);
        Patience::new(policy, &self.attachment.turns, self.timeout(Side::Write))
    }

    /// After a look that found no room; does not wait. None: there is still no room, and the poller's user is notified
    /// when there is.
    pub(super) fn write_now(&self, tx: &mut Tx, bufs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.announce_try(Side::Write);
        self.write_once(tx, bufs)
    }

    /// One look: room, an error, or nothing yet.
    pub(super) fn write_once(&self, tx: &mut Tx, bufs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        tx.try_write(&self.endpoint, bufs).map_err(|end| self.failed(end))
    }

    /// Sends a message, `len` bytes, when there is room for all of it; `len` is at most [`Conn::tx_bytes`].
    pub(crate) fn send_message(&self, bufs: &[IoSlice<'_>], len: usize) -> io::Result<()> {
        let mut tx = self.begin(&self.tx)?;
        let mut wait = self.wait_for_whole(&tx);
        let may_wait = !self.is_nonblocking();
        while !tx.put_message(&self.endpoint, bufs, len, may_wait).map_err(|end| self.failed(end))? {
            wait.go_on(self, &mut tx, len)?;
        }
        Ok(())
    }

    /// Waits until there is room for `len` bytes, at most [`Conn::tx_bytes`], and lends it.
    pub(crate) fn reserve(&self, len: usize) -> io::Result<Room<'_>> {
        let mut tx = self.begin(&self.tx)?;
        let mut wait = self.wait_for_whole(&tx);
        loop {
            tx = match self.try_reserve(tx, len).map_err(|end| self.failed(end))? {
                Ok(room) => return Ok(room),
                Err(tx) => tx,
            };
            wait.go_on(self, &mut tx, len)?;
        }
    }

    fn wait_for_whole(&self, tx: &Tx) -> WholeWait<'_> {
        WholeWait { patience: self.patience_of_writer(Waits::WholeRoom, tx), is_announced: false }
    }

    /// One look of [`Conn::reserve`]: the room, or the ring back.
    pub(super) fn try_reserve<'a>(
        &self,
        tx: MutexGuard<'a, Tx>,
        len: usize,
    ) -> Result<Result<Room<'a>, MutexGuard<'a, Tx>>, End> {
        Reserved::try_new(tx, &self.endpoint, len)
    }

    /// Leaves at most so many bytes unread from now on. A thread that waits in a write is waited for.
    pub(crate) fn set_unread_max(&self, bytes: Option<u64>) -> io::Result<()> {
        self.begin(&self.tx)?.set_unread_max(bytes);
        Ok(())
    }

    /// Bytes that the ring of this direction holds.
    pub(crate) fn tx_bytes(&self) -> usize {
        self.endpoint.tx_bytes()
    }
}
