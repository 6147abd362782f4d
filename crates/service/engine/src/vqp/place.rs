//! Where a connection stands on its lane: in the list of all, and in those of connections with something to send.

use crate::ids::{LaneId, RouteId};

/// A lane's lists in which a connection may stand, each at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// Of those with records to send.
    Control,
    /// Of those whose consumed bytes may wait.
    LazyHead,
    /// Of those with data to send.
    Ready,
}

/// In which lists it stands, and what is left of its turn.
#[derive(Debug, Default)]
struct Listed {
    control: bool,
    lazy_head: bool,
    ready: bool,
    deficit: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LanePlace {
    /// `None` once the lane is lost; a lane that is only reset keeps its connections.
    lane: Option<LaneId>,
    /// Neighbours in the lane's list of connections. The table of connections walks and changes it.
    pub(super) previous: Option<RouteId>,
    pub(super) next: Option<RouteId>,
    listed: Listed,
}

impl LanePlace {
    pub(super) fn on(lane: LaneId) -> Self {
        Self { lane: Some(lane), previous: None, next: None, listed: Listed::default() }
    }

    #[inline]
    pub(crate) fn lane(&self) -> Option<LaneId> {
        self.lane
    }

    /// The lane is lost.
    pub(super) fn leave_lane(&mut self) {
        (self.lane, self.previous, self.next) = (None, None, None);
        self.leave_lists();
    }

    /// Enters a list of its lane, at whose end the caller puts it. False: it is there already.
    #[inline]
    pub(crate) fn enter(&mut self, list: List) -> bool {
        !std::mem::replace(self.in_list(list), true)
    }

    /// It was taken out of a list.
    #[inline]
    pub(crate) fn leave(&mut self, list: List) {
        *self.in_list(list) = false;
    }

    /// Its lane forgot all lists.
    pub(crate) fn leave_lists(&mut self) {
        self.listed = Listed::default();
    }

    #[inline]
    fn in_list(&mut self, list: List) -> &mut bool {
        match list {
            List::Control => &mut self.listed.control,
            List::LazyHead => &mut self.listed.lazy_head,
            List::Ready => &mut self.listed.ready,
        }
    }

    /// Bytes that are left of its turn.
    #[inline]
    pub(crate) fn deficit(&self) -> u32 {
        self.listed.deficit
    }

    #[inline]
    pub(crate) fn deficit_mut(&mut self) -> &mut u32 {
        &mut self.listed.deficit
    }
}
