//! What connections keep on a lane: which have something to say, Opens, READs, and what is known of other ends.

mod away;
mod lists;
mod opening;
mod pulls;

use crate::lane_part::LanePart;

use away::AwayList;
use lists::ConnectionLists;
use opening::Opening;
use pulls::Pulls;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ConnectionsOnLane {
    pub(crate) lists: ConnectionLists,
    pub(crate) opening: Opening,
    pub(crate) away: AwayList,
    pub(crate) pulls: Pulls,
}

impl LanePart for ConnectionsOnLane {
    #[inline]
    fn wants_frame(&self) -> bool {
        self.lists.wants_frame() || self.opening.wants_frame() || self.away.wants_frame()
    }

    fn is_quiet(&self) -> bool {
        self.lists.is_quiet() && self.opening.is_quiet() && !self.away.wants_frame()
    }

    fn forget_queue_pair(&mut self) {
        self.lists.forget();
        self.opening.forget();
        self.away.forget();
        self.pulls.forget();
    }
}
