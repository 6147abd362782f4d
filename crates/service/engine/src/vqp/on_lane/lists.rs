//! Connections of a lane that have something to say, or whose last word is on its way.
//!
//! Owns the lists, each connection at most once in each; the connection knows in which it stands. Which of them is told
//! when, and what, is `pump`'s.

use std::collections::VecDeque;

use crate::ids::RouteId;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLists {
    /// Connections with records to send.
    control: VecDeque<RouteId>,
    /// Connections whose consumed bytes may wait.
    lazy_heads: VecDeque<RouteId>,
    has_head_timer: bool,
    /// The timer fired: lazy heads are due.
    heads_due: bool,
    /// Connections whose last record is work request `.0`.
    closing: VecDeque<(u64, RouteId)>,
}

impl ConnectionLists {
    /// A connection has records to send, and is not in that list yet.
    #[inline]
    pub(crate) fn push_control(&mut self, route: RouteId) {
        self.control.push_back(route);
    }

    pub(crate) fn front_control(&self) -> Option<RouteId> {
        self.control.front().copied()
    }

    pub(crate) fn pop_control(&mut self) {
        self.control.pop_front();
    }

    /// A connection consumed bytes that may be reported to the peer later, and is not in that list yet. True: the timer
    /// of such reports must be started.
    #[inline]
    pub(crate) fn push_lazy_head(&mut self, route: RouteId) -> bool {
        self.lazy_heads.push_back(route);
        !std::mem::replace(&mut self.has_head_timer, true)
    }

    /// That timer fired.
    pub(crate) fn on_head_timer(&mut self) {
        self.has_head_timer = false;
        self.heads_due = !self.lazy_heads.is_empty();
    }

    pub(crate) fn front_lazy_head(&self) -> Option<RouteId> {
        self.lazy_heads.front().copied()
    }

    pub(crate) fn pop_lazy_head(&mut self) {
        self.lazy_heads.pop_front();
    }

    /// All of them rode along.
    pub(crate) fn on_heads_told(&mut self) {
        self.heads_due = false;
    }

    /// The last record of a connection is in the frame of this work request.
    pub(crate) fn push_closing(&mut self, wr: u64, route: RouteId) {
        self.closing.push_back((wr, route));
    }

    /// The next connection whose last record is done, as `is_done` says of work requests.
    pub(crate) fn take_closed(&mut self, is_done: impl FnOnce(u64) -> bool) -> Option<RouteId> {
        let (_, route) = *self.closing.front().filter(|(wr, _)| is_done(*wr))?;
        self.closing.pop_front();
        Some(route)
    }

    /// Whether a frame should leave for them.
    #[inline]
    pub(crate) fn wants_frame(&self) -> bool {
        !self.control.is_empty() || (self.heads_due && !self.lazy_heads.is_empty())
    }

    /// Whether none has anything to say.
    pub(crate) fn is_quiet(&self) -> bool {
        self.control.is_empty() && self.lazy_heads.is_empty() && self.closing.is_empty()
    }

    /// The queue pair is destroyed. The timer goes on.
    pub(crate) fn forget(&mut self) {
        self.control.clear();
        self.lazy_heads.clear();
        self.heads_due = false;
        self.closing.clear();
    }
}
