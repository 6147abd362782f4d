//! Where one thread sleeps until another notifies it, and the lock that forgives a panic.
//!
//! Owns the notified flag and its condition variable. It must never make a system call to notify nobody.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
}

#[derive(Debug, Default)]
struct State {
    notified: bool,
    asleep: bool,
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
        if state.asleep {
            self.condvar.notify_one();
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
}
