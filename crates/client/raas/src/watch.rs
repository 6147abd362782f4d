//! The watcher: a thread that follows the session while nobody sleeps in this library.
//!
//! Owns that thread, which is started when somebody asks for a descriptor or polls a task, or for
//! [`crate::SessionBuilder::background`]; of a session that was lost it opens the listeners' ports again in another. It
//! must never keep a session alive for longer than one of its rounds.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::SessionError;
use crate::inner::Inner;
use crate::park::Parker;
use crate::reactor::SLEEP_MAX;

/// Shortest sleep between two looks at listeners that another thread may be opening again.
const ROUND_MIN: Duration = Duration::from_millis(10);

impl Inner {
    /// Sees to it that there is a watcher.
    pub(crate) fn ensure_watched(self: &Arc<Self>) -> Result<(), SessionError> {
        self.check_fork()?;
        self.start_once(|| {
            let inner = Arc::downgrade(self);
            std::thread::Builder::new()
                .name("raas-watcher".into())
                .spawn(move || watch(&inner))
                .map(drop)
                .map_err(|e| SessionError::io("starting the session's watcher thread", e))
        })
    }
}

/// Takes part in the waiting like any thread that sleeps, so that somebody leads at all times.
fn watch(session: &Weak<Inner>) {
    let parker = Arc::new(Parker::default());
    while let Some(inner) = session.upgrade() {
        if Arc::strong_count(&inner) == 1 {
            return;
        }
        let next = if inner.lost().is_some() { recover_listeners(&inner) } else { None };
        let until = next.unwrap_or_else(|| Instant::now() + SLEEP_MAX).max(Instant::now() + ROUND_MIN);
        if inner.block(&parker, Some(until), &mut || false).is_err() {
            return;
        }
    }
}

/// Listens again where nobody sleeps in `accept`. When to look again, if there is one left to be.
fn recover_listeners(inner: &Arc<Inner>) -> Option<Instant> {
    let listenings = inner.listenings();
    for listening in &listenings {
        listening.try_recover();
    }
    // Those that moved on belong to another session's watcher.
    listenings.iter().filter(|l| Arc::ptr_eq(&l.inner(), inner)).filter_map(|l| l.next_try()).min()
}
