//! One connection in several processes: what a child has of it, who may use it, and what is kept for children.
//!
//! It must never let two processes have one connection over RaaS.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Connection, Role, lock};
use crate::wish::Wish;

/// Where it is said which process has a connection that nobody has used.
pub(crate) trait Claim: std::fmt::Debug + Send + Sync {
    /// This process uses it.
    fn claim(&self);
}

impl Connection {
    /// What a child made by `fork` has of it. It touches nothing of the parent's that another thread may hold.
    pub(crate) fn for_child(&self, wish: Option<Wish>) -> Self {
        let is_lost = self.is_switching() || self.is_lost();
        // A connection that the parent used is the parent's; the child's bytes would not be counted there.
        // So are those of a signal handler, which does not begin the upgrade.
        let has_counted = [&self.tcp_in, &self.tcp_out].iter().any(|count| count.load(Ordering::Relaxed) > 0);
        let is_used = self.is_used.load(Ordering::Relaxed) || has_counted;
        let role = if is_used { Role::Kernel } else { self.role() };
        let mut child = Self::new(role, self.is_nonblocking());
        child.is_lost.store(is_lost, Ordering::Relaxed);
        // A child of a child asks as its parent would.
        child.inherit(self);
        child.guard = self.guard.for_child();
        child.shares = u64::MAX;
        child.wish = wish.or_else(|| self.wish.clone());
        child.read_timeout.store(self.read_timeout.load(Ordering::Relaxed), Ordering::Relaxed);
        child.write_timeout.store(self.write_timeout.load(Ordering::Relaxed), Ordering::Relaxed);
        child
    }

    /// Before a fork: what was used and of which neither end may have switched stays on TCP, where both may use it.
    pub(crate) fn prepare_fork(&self) {
        if self.is_used() && !self.is_the_kernels() && !self.is_lost() {
            self.stay();
        }
    }

    /// After a fork: a connection that nobody has used, and that nobody can claim, is the child's.
    pub(crate) fn leave_to_child(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
        if !self.has_heirs()
            && !self.is_used.load(Ordering::Relaxed)
            && matches!(self.role(), Role::Connected | Role::Accepted)
        {
            self.set_role(Role::Kernel);
        }
    }

    /// Whether this descriptor is of this connection's socket, also in a process that has the parent's memory but
    /// descriptors of its own.
    pub(crate) fn is_of_socket(&self, fd: c_int) -> bool {
        inode_of(fd).is_some_and(|inode| inode == self.inode.load(Ordering::Relaxed))
    }

    /// Whether it is, or may come, over RaaS, which one process alone can have.
    pub(crate) fn is_for_one_process(&self) -> bool {
        let is_nobodys = !self.is_used() && matches!(self.role(), Role::Connected | Role::Accepted);
        !self.is_lost() && (is_nobodys || self.is_switching())
    }

    /// Whether this process has read or written it.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// This process uses it for the first time. False: it stays on TCP here, because the parent was first, or because it
    /// was left to a child.
    pub(super) fn claim(&self) -> bool {
        let claims = std::mem::take(&mut *lock(&self.claims));
        // The child learns of it, and stays on TCP too.
        claims.iter().for_each(|of| of.claim());
        self.wish.as_ref().is_none_or(Wish::claim) && claims.is_empty()
    }

    /// A child that uses what its parent upgraded: both have it on TCP from now on. False: the parent does not give it.
    pub(crate) fn regain(&self) -> bool {
        if !self.is_lost() {
            return true;
        }
        let code = crate::errno::get();
        let is_back = self.wish.as_ref().is_some_and(Wish::ask);
        if is_back {
            self.set_role(Role::Kernel);
            self.is_settled.store(true, Ordering::Release);
            self.is_lost.store(false, Ordering::Release);
        }
        crate::errno::set(code);
        is_back
    }

    /// This process has closed its last descriptor of what is its parent's.
    pub(crate) fn renounce(&self) {
        if self.is_lost()
            && !self.has_forked.load(Ordering::Relaxed)
            && let Some(wish) = &self.wish
        {
            wish.note_closed();
        }
    }

    /// One more fork has left it to a child.
    pub(crate) fn add_heir(&self, claim: Box<dyn Claim>) {
        if !self.is_used() {
            lock(&self.claims).push(claim);
        }
        self.heirs.fetch_add(1, Ordering::AcqRel);
    }

    /// One fork less. What is kept of it if that was the last.
    pub(crate) fn remove_heir(&self) -> Option<Arc<OwnedFd>> {
        if self.heirs.fetch_sub(1, Ordering::AcqRel) == 1 { lock(&self.kept).take() } else { None }
    }

    /// Whether this is a child that has it from its parent.
    pub(crate) fn has_wish(&self) -> bool {
        self.wish.is_some()
    }

    pub(crate) fn has_heirs(&self) -> bool {
        self.heirs.load(Ordering::Acquire) > 0
    }

    /// The program has closed its last descriptor; `copy` is another one.
    pub(crate) fn keep(&self, copy: OwnedFd) {
        *lock(&self.kept) = Some(Arc::new(copy));
        // The last child may have gone just now.
        if !self.has_heirs() {
            lock(&self.kept).take();
        }
    }

    /// The descriptor of a connection that the program has closed.
    pub(crate) fn kept(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.kept).clone()
    }
}

/// The number of a descriptor's file.
pub(super) fn inode_of(fd: c_int) -> Option<u64> {
    let mut about = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for what the kernel says.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled `about`.
    Some(unsafe { about.assume_init() }.st_ino)
}
