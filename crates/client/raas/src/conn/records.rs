//! Rings of records for a caller that does its own waiting: one look at each, and a waker for what comes later.
//!
//! Owns nothing. It must never wait, and never notify anybody: its caller holds a lock that those who are notified take.

use std::io;
use std::task::Waker;

use raas_core::{End, Side};

use super::lent::{Lent, Room};
use super::{Conn, said};

impl Conn {
    /// Bytes that are there, lent. `None`: nothing is there yet.
    pub(crate) fn look_loan(&self) -> io::Result<Option<Lent<'_>>> {
        let mut rx = self.lock_ring(&self.rx)?;
        match rx.look(&self.endpoint, &mut |rx| self.count(rx)).map_err(said)? {
            Some(0) => Err(said(End::Finished)),
            Some(count) => Ok(Some(Lent { rx, bytes: count as u64 })),
            None => Ok(None),
        }
    }

    /// Room for `len` bytes, at most [`Conn::tx_bytes`], lent. `None`: there is none yet.
    pub(crate) fn look_reserve(&self, len: usize) -> io::Result<Option<Room<'_>>> {
        let tx = self.lock_ring(&self.tx)?;
        Ok(self.try_reserve(tx, len).map_err(said)?.ok())
    }

    /// Has a waker woken once when either ring changes, or the session ends. Afterwards the caller looks.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.bell.poller.set_waker(Side::Read, waker);
        self.show_room();
        self.announce(Side::Read);
        self.announce(Side::Write);
    }
}
