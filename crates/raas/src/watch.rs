//! The watcher: a thread that follows the session while nobody sleeps in this library.
//!
//! Owns that thread, which is started when somebody asks for a descriptor or polls a task, or for
//! [`crate::SessionBuilder::background`]. It must never keep a session alive for longer than one of its rounds.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::SessionError;
use crate::inner::Inner;
use crate::park::Parker;
use crate::reactor::SLEEP_MAX;

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
        if Arc::strong_count(&inner) == 1
            || inner.block(&parker, Some(Instant::now() + SLEEP_MAX), &mut || false).is_err()
        {
            return;
        }
    }
}
