//! The connections of one lane, as a list through them: its head and its length.
//!
//! The links are in the connections; the table of connections walks and changes the list.

use verbs::Time;

use crate::ids::RouteId;

/// A lane's end of the list.
#[derive(Debug)]
pub(crate) struct Members {
    first: Option<RouteId>,
    count: u32,
    /// When the last one left, or the lane came up without one.
    unused_since: Time,
}

impl Members {
    pub(crate) fn new(now: Time) -> Self {
        Self { first: None, count: 0, unused_since: now }
    }

    /// The youngest.
    pub(crate) fn first(&self) -> Option<RouteId> {
        self.first
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn unused_since(&self) -> Time {
        self.unused_since
    }

    /// The lane came up.
    pub(crate) fn on_up(&mut self, now: Time) {
        self.unused_since = now;
    }

    /// A connection joins in front. The one that was first.
    pub(crate) fn push(&mut self, route: RouteId) -> Option<RouteId> {
        self.count += 1;
        self.first.replace(route)
    }

    /// A connection left. If it was the first, `next` is.
    pub(crate) fn remove(&mut self, was_first: bool, next: Option<RouteId>, now: Time) {
        self.count -= 1;
        self.unused_since = now;
        if was_first {
            self.first = next;
        }
    }

    /// All were taken out.
    pub(crate) fn clear(&mut self) {
        (self.first, self.count) = (None, 0);
    }
}
