//! A descriptor that turns readable when the readiness of a socket has changed.
//!
//! Owns an edge-triggered epoll set of one socket: the set is itself pollable, and taking its event makes it unreadable
//! until the next change. It must never be asked to say what changed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;

use crate::descriptor::timespec;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Edge(OwnedFd);

impl Edge {
    /// Follows `socket`; readable at first if something of `what` is so already.
    pub(crate) fn new(socket: BorrowedFd<'_>, what: epoll::EventFlags) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, socket, epoll::EventData::new_u64(0), what | epoll::EventFlags::ET)?;
        Ok(Self(set))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Unreadable until the next change. Afterwards the caller looks.
    pub(crate) fn clear(&self) {
        let mut event = [const { MaybeUninit::<epoll::Event>::uninit() }; 1];
        // A failure leaves it readable: the caller looks once more than needed.
        let _ = epoll::wait(&self.0, &mut event, Some(&timespec(Duration::ZERO)));
    }
}
