//! Where one thread sleeps until another notifies it, and the lock that forgives a panic.
//!
//! Owns the notified flag, its condition variable, and the descriptor that stands for that where a thread sleeps in the
//! kernel on another one too. It must never make a system call to notify nobody.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::descriptor::timespec;

/// Locks; data behind a lock that a panicking thread held is still consistent here, because no code between two stores
/// to it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for one sleeping thread. A notification that comes early is kept.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    state: Mutex<State>,
    condvar: Condvar,
    /// None inside: none could be made.
    alarm: OnceLock<Option<OwnedFd>>,
}

#[derive(Debug, Default)]
struct State {
    notified: bool,
    asleep: bool,
    /// The sleeper is in a poll, which the alarm ends.
    polls: bool,
}

impl Parker {
    /// Forgets earlier notifications. Afterwards the caller looks at what it waits for.
    pub(crate) fn prepare(&self) {
        lock(&self.state).notified = false;
    }

    /// Whether a notification is kept.
    pub(crate) fn is_notified(&self) -> bool {
        lock(&self.state).notified
    }

    /// Wakes the thread that sleeps here, or the next one that wants to. Says whether one slept.
    pub(crate) fn notify(&self) -> bool {
        let mut state = lock(&self.state);
        state.notified = true;
        match (&*state, self.alarm.get()) {
            (State { asleep: true, polls: true, .. }, Some(Some(alarm))) => {
                // It can only fail where so many notices wait that the poll ends anyway.
                let _ = rustix::io::write(alarm, &1_u64.to_ne_bytes());
            }
            (State { asleep: true, .. }, _) => self.condvar.notify_one(),
            _ => {}
        }
        state.asleep
    }

    /// Sleeps until notified, at most `bound`.
    pub(crate) fn park(&self, bound: Duration) {
        let mut state = lock(&self.state);
        state.asleep = true;
        let (mut state, _) =
            self.condvar.wait_timeout_while(state, bound, |s| !s.notified).unwrap_or_else(PoisonError::into_inner);
        state.asleep = false;
        state.notified = false;
    }

    /// Whether a thread can sleep here and on another descriptor too: it takes a descriptor, and there may be none left.
    pub(crate) fn can_poll(&self) -> bool {
        self.alarm().is_some()
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        self.alarm.get_or_init(|| eventfd(0, flags).ok().map(shm::raised)).as_ref().map(|alarm| alarm.as_fd())
    }

    /// As [`Parker::park`], and until `beside` has something to tell. To be called where [`Parker::can_poll`].
    pub(crate) fn park_beside(&self, beside: PollFd<'_>, bound: Duration) {
        let Some(alarm) = self.alarm() else { return };
        let mut state = lock(&self.state);
        if !state.notified {
            (state.asleep, state.polls) = (true, true);
            drop(state);
            // Whatever ends it, the caller looks again.
            let _ = poll(&mut [beside, PollFd::from_borrowed_fd(alarm, PollFlags::IN)], Some(&timespec(bound)));
            state = lock(&self.state);
            (state.asleep, state.polls) = (false, false);
            if state.notified {
                // Nothing is there if the notice came after the poll's end.
                let _ = rustix::io::read(alarm, &mut [0; 8]);
            }
        }
        state.notified = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn an_early_notification_is_kept_and_prepare_forgets_it() {
        let parker = Arc::new(Parker::default());
        assert!(!parker.notify(), "nobody sleeps");
        parker.park(Duration::from_secs(60));
        assert!(!parker.notify(), "nobody sleeps");
        parker.prepare();
        let other = Arc::clone(&parker);
        let thread = std::thread::spawn(move || other.notify());
        parker.park(Duration::from_secs(60));
        thread.join().unwrap();
    }

    #[test]
    fn bytes_and_notices_end_a_sleep_beside_a_descriptor() {
        let (read, write) = std::io::pipe().unwrap();
        let parker = Arc::new(Parker::default());
        assert!(parker.can_poll());
        for (bytes, notices) in [(true, false), (false, true), (true, true), (false, true)] {
            parker.prepare();
            let (other, mut write) = (Arc::clone(&parker), write.try_clone().unwrap());
            let thread = std::thread::spawn(move || {
                if bytes {
                    std::io::Write::write_all(&mut write, b"x").unwrap();
                }
                if notices {
                    other.notify();
                }
            });
            parker.park_beside(PollFd::new(&read, PollFlags::IN), Duration::from_secs(60));
            thread.join().unwrap();
            if bytes {
                std::io::Read::read_exact(&mut &read, &mut [0]).unwrap();
            }
        }
        parker.prepare();
        // Longer than any test may take.
        parker.park_beside(PollFd::new(&write, PollFlags::OUT), Duration::MAX / 2);
        parker.park_beside(PollFd::new(&read, PollFlags::IN), Duration::from_millis(1));
        assert!(!parker.is_notified() && !parker.notify(), "its time was over, and it sleeps no more");
    }
}
