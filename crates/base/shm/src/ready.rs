//! A descriptor that turns readable when something changed: for poll, epoll and event loops.
//!
//! Owns the flag that spares a system call for each change after the first, and the order of clearing. It must never
//! leave the flag set over an empty descriptor: then no later change would be signalled.
//!
//! A thread that waits: clear, announce the interest (see `sleep`), look, then poll. A thread that learns of a change:
//! signal. A change that the look missed comes after the announcement. So it is signalled after the clearing, and the
//! descriptor is readable.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::sync::AtomicWord;

const TOLD: u32 = 1;

/// An eventfd that is written once for any number of changes between two looks.
#[derive(Debug)]
pub struct ReadyFd {
    fd: OwnedFd,
    told: AtomicU32,
}

impl ReadyFd {
    /// A new one, not readable. Fails as `eventfd` does (out of descriptors).
    pub fn new() -> io::Result<Self> {
        let fd = crate::raised(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { fd, told: AtomicU32::new(0) })
    }

    /// Something changed: makes the descriptor readable, if it was not made so since the last [`ReadyFd::clear`].
    #[inline]
    pub fn signal(&self) {
        if claim_signal(&self.told) {
            // It can only fail by being full, and then it is readable.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Makes it unreadable until the next change. Afterwards the caller announces its interest, and looks.
    pub fn clear(&self) {
        clear_signal(&self.told, || {
            // Nothing to read: no change since the last clear, or its signal is on the way.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        });
    }
}

impl AsFd for ReadyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// The algorithms, over any memory.

/// Whether the caller must write the descriptor.
#[inline]
pub(crate) fn claim_signal(told: &impl AtomicWord<u32>) -> bool {
    // PAIRS WITH the fetch_and in `clear_signal`: a thread that finds the flag set leaves its change to the thread that
    // clears it.
    told.fetch_or(TOLD, Ordering::AcqRel) & TOLD == 0
}

#[inline]
pub(crate) fn clear_signal(told: &impl AtomicWord<u32>, drain: impl FnOnce()) {
    // The descriptor first. The other way round a signal may come between: then the flag is set, the descriptor
    // drained, and every later change finds the flag and writes nothing.
    drain();
    told.fetch_and(!TOLD, Ordering::AcqRel);
}
