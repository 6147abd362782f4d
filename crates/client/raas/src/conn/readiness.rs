//! Not waiting: what can be done now, and who is told when that changes.
//!
//! Owns the order "clear, announce, look again". It must never say that there is nothing before the announcement of whoever
//! will wait for it stands.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::MutexGuard;
use std::sync::TryLockError;
use std::sync::atomic::{Ordering, fence};

use super::{Conn, End, Side};
use crate::Readiness;

impl Conn {
    pub(crate) fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// The descriptor that turns readable when the readiness changed.
    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.ensure_watched()?;
        let fd = self.poller.fd()?;
        // What changed before it was there counts as a change: the first look is the caller's.
        fd.signal();
        Ok(fd.as_fd())
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.poller.fd()?.as_fd())
    }

    /// What can be done now; of the rest the descriptor will tell.
    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        self.readiness_for(1)
    }

    /// As [`Conn::readiness`], where writing takes `room` bytes.
    pub(crate) fn readiness_for(&self, room: u64) -> io::Result<Readiness> {
        self.inner.check_fork()?;
        self.poller.clear();
        let now = self.look(room);
        if now.contains(Readiness::READ | Readiness::WRITE) {
            return Ok(now);
        }
        if !now.contains(Readiness::READ) {
            self.show_room();
            self.announce(Side::Read);
        }
        if !now.contains(Readiness::WRITE) {
            self.announce(Side::Write);
        }
        Ok(self.look(room))
    }

    /// Somebody is going to wait for `side` elsewhere. The caller looks after this.
    pub(super) fn announce(&self, side: Side) {
        self.inner.turn();
        if self.poller.is_used() {
            self.arm(side);
        }
        // PAIRS WITH the fence in PairEnd::wake, as in Inner::block: announced, then looked.
        fence(Ordering::SeqCst);
    }

    fn look(&self, room: u64) -> Readiness {
        // The ends first: bytes that came before are in the ring after them.
        let (read_end, write_end) = (self.read_end(), self.write_end());
        let bytes =
            read_end.is_some() || free(self.read.try_lock()).is_none_or(|mut r| !matches!(r.ring.available(), Ok(0)));
        let room = write_end.is_some()
            || free(self.write.try_lock()).is_none_or(|mut w| !matches!(w.free(), Ok(free) if free < room));
        let broken = matches!(read_end, Some(End::Reset(_))) || matches!(write_end, Some(End::Reset(_)));
        Readiness::when(Readiness::READ, bytes)
            | Readiness::when(Readiness::WRITE, room)
            | Readiness::when(Readiness::HUP, read_end.is_some())
            | Readiness::when(Readiness::ERR, broken)
    }

    /// Tells the peer of all room, unless another thread is reading, which does it itself.
    pub(super) fn show_room(&self) {
        if let Some(mut reader) = free(self.read.try_lock()) {
            self.tell_room(&mut reader);
        }
    }
}

/// A direction in which another thread is busy, perhaps asleep, counts as ready: it is to be tried.
fn free<'a, T>(tried: Result<MutexGuard<'a, T>, TryLockError<MutexGuard<'a, T>>>) -> Option<MutexGuard<'a, T>> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
