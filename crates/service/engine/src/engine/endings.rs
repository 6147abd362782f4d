//! Ends of many connections of one application at once: it left, closed a listener, or lacks a chunk.
//!
//! Owns how many of them end in a round: as many as it had, which is its choice, and others are served between. Each
//! connection ends as if all had ended when the first did: nothing of its application is heard meanwhile.

use std::collections::VecDeque;

use control::Reason;
use verbs::Provider;

use super::Engine;
use crate::ids::{AppId, LaneId, RouteId};
use crate::limits::ENDINGS_PER_RUN;
use crate::vqp::Phase;

/// Why connections end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Why {
    /// The application left.
    Left(Reason),
    /// It left long ago, and the peers were told so for the first time, or once more.
    Overdue { again: bool },
    /// The listener at which they wait is closed.
    Unlistened,
    /// Their rings lie in a chunk that it could not take.
    NotTaken { chunk: u32 },
}

/// What is left to end.
#[derive(Debug)]
pub(super) struct Ending {
    app: AppId,
    why: Why,
    routes: VecDeque<RouteId>,
}

impl Engine {
    /// Ends connections of an application: few at once, others as their turn comes.
    pub(super) fn end_all(&mut self, app: AppId, why: Why, routes: Vec<RouteId>) {
        let mut routes = VecDeque::from(routes);
        // A lane that fails needs the device, which a round has.
        if !matches!(why, Why::Overdue { .. }) {
            for route in routes.drain(..routes.len().min(ENDINGS_PER_RUN)) {
                self.end_one(why, route);
            }
        }
        if !routes.is_empty() {
            self.start_waiting(app);
            self.endings.push_back(Ending { app, why, routes });
        }
    }

    /// Ends some connections of the application whose turn it is. Says whether there were any.
    pub(super) fn run_endings<P: Provider>(&mut self, nic: &mut P) -> bool {
        let Some(mut ending) = self.endings.pop_front() else { return false };
        for _ in 0..ENDINGS_PER_RUN {
            let Some(route) = ending.routes.pop_front() else { break };
            if let Some(lane) = self.end_one(ending.why, route) {
                self.fail_lane(nic, lane, "the peer did not confirm the end of a connection".into());
            }
        }
        if ending.routes.is_empty() {
            self.stop_waiting(ending.app);
        } else {
            self.endings.push_back(ending);
        }
        true
    }

    /// A lane that fails with it, whose peer does not confirm ends.
    fn end_one(&mut self, why: Why, route: RouteId) -> Option<LaneId> {
        match why {
            Why::Left(reason) => self.orphan(route, reason),
            Why::Overdue { again } => return self.reset_overdue(route, again),
            Why::Unlistened => self.end_unlistened(route),
            Why::NotTaken { chunk } => self.end_not_taken(route, chunk),
        }
        None
    }

    fn reset_overdue(&mut self, route: RouteId, again: bool) -> Option<LaneId> {
        let vqp = self.vqps.get_mut(route)?;
        vqp.abort(Reason::PeerAppDied);
        match vqp.place.lane() {
            // Its other end cannot be reached, and its lane has no part in that.
            Some(_) if vqp.is_away() => None,
            Some(lane) if again => Some(lane),
            _ => {
                self.update(route);
                None
            }
        }
    }

    fn end_unlistened(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        vqp.leave_backlog();
        if vqp.is_app_released() {
            // How it ends was decided when the application gave it back.
            return;
        }
        vqp.abort(Reason::ResetByPeer);
        vqp.slot.publish_reset(Reason::Closed);
        let at = vqp.at();
        self.notify(at);
        self.update(route);
    }

    fn end_not_taken(&mut self, route: RouteId, chunk: u32) {
        let Some(vqp) = self.vqps.get_mut(route).filter(|vqp| vqp.rings().is_in(chunk)) else { return };
        if let Phase::Opening(Some(connect)) = vqp.phase() {
            return self.fail_opening(connect, Reason::AppDescriptors);
        }
        vqp.abort(Reason::PeerAppDescriptors);
        vqp.release();
        self.update(route);
    }
}
