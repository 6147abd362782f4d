//! Who sees to the completions of an operation queue while nobody looks, and which threads sleep until an end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;

use super::flight::Flight;
use crate::park::Parker;

/// What is seen to.
pub(super) trait Attended: std::fmt::Debug + Send + Sync {
    /// The thread that leads the session has news for it.
    fn attend_as_leader(&self);
}

/// Attends to the queue when its session has news. The thread that leads the session rings it.
#[derive(Debug)]
pub(super) struct Alarm(Weak<dyn Attended>);

impl Alarm {
    pub(super) fn of(queue: Weak<dyn Attended>) -> Self {
        Self(queue)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            // The thread that has the news leads, and looks at its own wait before it sleeps again.
            queue.attend_as_leader();
        }
    }
}

/// A thread sleeps, or is about to, for as long as this lives.
#[derive(Debug)]
pub(super) struct Asleep<'q>(&'q AtomicU32);

impl<'q> Asleep<'q> {
    pub(super) fn begin(sleepers: &'q AtomicU32) -> Self {
        sleepers.fetch_add(1, Ordering::AcqRel);
        Self(sleepers)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The end of a flight wakes the thread of a parker, for as long as this lives.
#[derive(Debug)]
pub(super) struct Armed<'q> {
    flight: &'q Flight,
    parker: Arc<Parker>,
    _asleep: Asleep<'q>,
}

impl<'q> Armed<'q> {
    pub(super) fn begin(flight: &'q Flight, parker: &Arc<Parker>, asleep: Asleep<'q>) -> Self {
        flight.enter_waiters(parker);
        Self { flight, parker: Arc::clone(parker), _asleep: asleep }
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.flight.leave_waiters(&self.parker);
    }
}
