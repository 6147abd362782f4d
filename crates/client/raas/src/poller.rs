//! How a change is signalled to a program that does not sleep in this library: a descriptor for poll and epoll, wakers
//! of tasks, a function that is called.
//!
//! Owns the descriptor, made when it is first asked for, and one waker for each direction. It must never cost anything
//! while nobody uses it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use raas_core::Side;
use shm::ReadyFd;

use crate::park::{Parker, lock};

/// Called for each change.
type Hook = Box<dyn Fn() + Send + Sync>;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Poller {
    used: AtomicBool,
    fd: OnceLock<ReadyFd>,
    hook: OnceLock<Hook>,
    making: Mutex<()>,
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl Poller {
    /// Whether somebody wants a signal.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// The descriptor; made now if there is none yet.
    pub(crate) fn fd(&self) -> io::Result<&ReadyFd> {
        let _one_at_a_time = lock(&self.making);
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let made = ReadyFd::new()?;
        self.used.store(true, Ordering::Relaxed);
        Ok(self.fd.get_or_init(|| made))
    }

    /// Has `hook` called for each change from now on. False: there is one already.
    pub(crate) fn set_hook(&self, hook: Hook) -> bool {
        self.used.store(true, Ordering::Relaxed);
        self.hook.set(hook).is_ok()
    }

    /// Whether changes are told to a function.
    #[inline]
    pub(crate) fn has_hook(&self) -> bool {
        self.hook.get().is_some()
    }

    /// Makes the descriptor unreadable until the next change. Afterwards the caller announces itself and looks.
    pub(crate) fn clear(&self) {
        if let Some(fd) = self.fd.get() {
            fd.clear();
        }
    }

    /// A task waits for `side`. Afterwards the caller announces itself and looks.
    pub(crate) fn set_waker(&self, side: Side, waker: &Waker) {
        self.used.store(true, Ordering::Relaxed);
        let mut wakers = lock(&self.wakers);
        let place = &mut wakers[side as usize];
        if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }

    /// Something changed.
    pub(crate) fn tell(&self) {
        if !self.is_used() {
            return;
        }
        if let Some(fd) = self.fd.get() {
            fd.signal();
        }
        if let Some(hook) = self.hook.get() {
            hook();
        }
        // Woken outside of the lock: a waker may poll at once.
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("used", &self.used).field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// What is notified of an answer or a new connection.
#[derive(Debug, Clone)]
pub(crate) enum Waiter {
    /// A thread that sleeps, or is about to.
    Thread(Arc<Parker>),
    /// A program that waits elsewhere.
    Poller(Arc<Poller>),
}

impl Waiter {
    pub(crate) fn notify(&self) {
        match self {
            Self::Thread(parker) => {
                parker.notify();
            }
            Self::Poller(poller) => poller.tell(),
        }
    }
}
