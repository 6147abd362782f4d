//! One epoll set in several processes: the kernel's is shared with children, what is known of it is not.
//!
//! It must never leave an entry of the library's in the kernel's set for a connection that is the kernel's again.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use libc::epoll_event;

use super::EpollSet;
use super::entry::Registered;
use crate::connection::{Connection, Watcher, lock};
use crate::real;

impl EpollSet {
    /// Gives the kernel the program's own entry again. False: it is over for now, and the kernel has none. Children share
    /// the kernel's set, and know of no entry of the library's there.
    pub(super) fn unlink(&self, fd: c_int, entry: &mut Registered) -> bool {
        if !entry.is_armed {
            return false;
        }
        let mut event = epoll_event { events: entry.events, u64: entry.data };
        if entry.of_kernel.is_some() {
            // SAFETY: the event lives through the call.
            unsafe { real::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, &raw mut event) };
        }
        // SAFETY: as above.
        unsafe { real::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        entry.of_kernel = Some(entry.events);
        (entry.is_linked, entry.is_hot) = (false, false);
        self.linked.fetch_sub(1, Ordering::AcqRel);
        true
    }

    /// What a child has of the set: the kernel's, which it shares, and what was asked for, of connections of its own.
    /// `of_child` gives each. Where a thread of the parent has the parent's at this moment, that is the kernel's alone.
    pub(crate) fn for_child(&self, mut of_child: impl FnMut(&Arc<Connection>) -> Arc<Connection>) -> Arc<Self> {
        let child = Arc::new(Self::new(self.fd()));
        let Ok(state) = self.state.try_lock() else { return child };
        let mut own = lock(&child.state);
        for (fd, entry) in &state.registered {
            let Some(parents) = entry.connection.upgrade() else { continue };
            let connection = of_child(&parents);
            // The parent's is left where it is.
            std::mem::forget(parents);
            let mut copy = Registered::new(&connection, epoll_event { events: entry.events, u64: entry.data });
            (copy.is_armed, copy.of_kernel) = (entry.is_armed, entry.of_kernel);
            let set: Weak<dyn Watcher> = Arc::downgrade(&child) as Weak<dyn Watcher>;
            connection.add_set(set, *fd);
            child.note_kind(entry.events);
            child.has_lost.fetch_or(connection.is_lost(), Ordering::Relaxed);
            if !connection.is_the_kernels() && !connection.is_lost() {
                own.unsettled.push(*fd);
            }
            own.registered.insert(*fd, copy);
        }
        drop(own);
        std::mem::forget(state);
        child
    }

    /// The process waits for what its parent has over RaaS: both have it on TCP from now on.
    pub(super) fn regain(&self) {
        if !self.has_lost.swap(false, Ordering::AcqRel) {
            return;
        }
        let lost: Vec<_> = {
            let state = lock(&self.state);
            state
                .registered
                .values()
                .filter_map(|entry| entry.connection.upgrade())
                .filter(|one| one.is_lost())
                .collect()
        };
        for connection in lost {
            // What stays lost is told by its calls.
            let _is_back = connection.regain();
        }
    }
}
