//! Not waiting: what can be done now, and what is notified when that changes.
//!
//! Owns the order "clear, announce, look again". It must never say that there is nothing before it has announced that
//! somebody is going to wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use raas_core::{Readiness, Side};

use super::Conn;

/// How long a look waits for a call of another thread, which copies bytes or looks itself, and may stand still for a
/// while where many threads want a processor.
const BUSY_MAX: Duration = Duration::from_millis(250);

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
        self.attachment.ensure_watched()?;
        let fd = self.bell.poller.fd()?;
        // What changed before it was there counts as a change: the first look is the caller's.
        fd.signal();
        Ok(fd.as_fd())
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.bell.poller.fd()?.as_fd())
    }

    /// Has a function called for each change that was asked for by [`Conn::readiness`].
    pub(crate) fn set_hook(&self, hook: Box<dyn Fn() + Send + Sync>) -> bool {
        self.bell.poller.set_hook(hook)
    }

    /// What can be done now, without a word to anybody: a change is not signalled.
    pub(crate) fn glance(&self) -> io::Result<Readiness> {
        self.check_fork()?;
        Ok(self.look(1))
    }

    /// What can be done now. The descriptor signals the rest.
    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        self.readiness_for(1)
    }

    /// As [`Conn::readiness`], and bytes that come behind those that are there are signalled too.
    pub(crate) fn readiness_and_more(&self) -> io::Result<Readiness> {
        self.check_fork()?;
        self.bell.poller.clear();
        self.announce(Side::Read);
        self.readiness_for(1)
    }

    /// As [`Conn::readiness`], where writing takes `room` bytes.
    pub(crate) fn readiness_for(&self, room: u64) -> io::Result<Readiness> {
        self.check_fork()?;
        self.bell.poller.clear();
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

    /// As [`Conn::announce`], after a call found nothing; who has a function called asks by [`Conn::readiness`].
    pub(super) fn announce_try(&self, side: Side) {
        if !self.bell.poller.has_hook() {
            self.announce(side);
        }
    }

    /// Somebody is going to wait for `side` elsewhere. Afterwards the caller looks.
    pub(super) fn announce(&self, side: Side) {
        self.attachment.look();
        if self.bell.poller.is_used() {
            self.endpoint.arm(side);
            self.endpoint.arm_direct(side);
        }
    }

    fn look(&self, room: u64) -> Readiness {
        let tx = self.soon_free(&self.tx);
        // Who has a function called stands between a program and its socket: the program knows TCP.
        let room = match &tx {
            Some(tx) if self.bell.poller.has_hook() => room.max(tx.writable_from()),
            _ => room,
        };
        raas_core::readiness(&self.endpoint, self.soon_free(&self.rx), tx, room)
    }

    /// The lock of a ring. Where changes are told to a function nobody waits with a ring, so one that is in use is free
    /// soon; calling it ready would be news that nobody finds. Unless a signal handler asks, which interrupted the call
    /// of its own thread that uses it.
    fn soon_free<'a, T>(&self, ring: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        let found = free(ring.try_lock());
        if found.is_some() || !self.bell.poller.has_hook() {
            return found;
        }
        let until = Instant::now() + BUSY_MAX;
        loop {
            std::thread::yield_now();
            let found = free(ring.try_lock());
            if found.is_some() || Instant::now() > until {
                return found;
            }
        }
    }

    /// Tells the peer of all room, unless another thread is reading, which does it itself.
    pub(super) fn show_room(&self) {
        if let Some(mut rx) = free(self.rx.try_lock()) {
            rx.tell_room(&self.endpoint);
        }
    }
}

/// None: another thread is busy in this direction, perhaps asleep. It counts as ready: it is to be tried.
fn free<'a, T>(tried: Result<MutexGuard<'a, T>, TryLockError<MutexGuard<'a, T>>>) -> Option<MutexGuard<'a, T>> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
