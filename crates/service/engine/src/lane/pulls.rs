//! READs of peers' rings on a lane: which are posted, and who waits to post one.

use std::collections::VecDeque;

use crate::ids::RouteId;
use crate::operations::flight::Flight;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    /// Those that are posted: work request, connection, bytes.
    posted: VecDeque<(u64, RouteId, u32)>,
    /// Connections that wait until a READ may be posted.
    waiting: Vec<RouteId>,
}

impl Pulls {
    pub(super) fn on_posted(&mut self, wr: u64, route: RouteId, bytes: u32) {
        self.posted.push_back((wr, route, bytes));
    }

    pub(super) fn wait(&mut self, route: RouteId) {
        self.waiting.push(route);
    }

    /// The next one that is done, of those up to this work request.
    pub(crate) fn take_done(&mut self, seq: u64) -> Option<(RouteId, u32)> {
        let &(_, route, bytes) = self.posted.front().filter(|(wr, ..)| *wr <= seq)?;
        self.posted.pop_front();
        Some((route, bytes))
    }

    /// READs up to this work request are done: connections that may post theirs.
    pub(crate) fn take_waiting(&mut self, flight: &mut Flight, seq: u64) -> Vec<RouteId> {
        flight.on_reads_done(seq);
        if self.waiting.is_empty() || !flight.may_read() {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting)
    }

    /// The queue pair is destroyed.
    pub(super) fn forget(&mut self) {
        self.posted.clear();
        self.waiting.clear();
    }
}
