//! READs of peers' rings on a lane: which are posted, and who waits to post one.

use std::collections::VecDeque;

use crate::ids::RouteId;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    /// Those that are posted: work request, connection, bytes.
    posted: VecDeque<(u64, RouteId, u32)>,
    /// Connections that wait until a READ may be posted.
    waiting: Vec<RouteId>,
}

impl Pulls {
    pub(crate) fn on_posted(&mut self, wr: u64, route: RouteId, bytes: u32) {
        self.posted.push_back((wr, route, bytes));
    }

    pub(crate) fn wait(&mut self, route: RouteId) {
        self.waiting.push(route);
    }

    /// The next one that is done, of those up to this work request.
    pub(crate) fn take_done(&mut self, seq: u64) -> Option<(RouteId, u32)> {
        let &(_, route, bytes) = self.posted.front().filter(|(wr, ..)| *wr <= seq)?;
        self.posted.pop_front();
        Some((route, bytes))
    }

    /// READs may be posted: connections that wait for it.
    pub(crate) fn take_waiting(&mut self) -> Vec<RouteId> {
        std::mem::take(&mut self.waiting)
    }

    /// The queue pair is destroyed.
    pub(crate) fn forget(&mut self) {
        self.posted.clear();
        self.waiting.clear();
    }
}
