//! Peers that stand still: their daemon says nothing, and nothing has ended.
//!
//! Owns which connections do not wait for such a peer, and for how long the others show that they do. It must never
//! measure silence itself: the daemon does, on the control link, and leaves out the time in which it stood still
//! itself.

use std::net::IpAddr;
use std::time::Duration;

use control::Reason;
use verbs::Time;

use super::Engine;
use crate::ids::{LaneId, RouteId};
use crate::stall::Stall;
use crate::vqp::Phase;

impl Engine {
    /// The daemon of a host has said nothing for this long, or (`None`) speaks again. Its connections wait, except
    /// those whose applications asked for a shorter time: these end with [`Reason::PeerTimeout`]. To be called
    /// repeatedly while the silence lasts.
    pub fn peer_silent(&mut self, now: Time, peer: IpAddr, silent: Option<Duration>) {
        self.see(now);
        let Some(id) = self.lanes.to(peer) else { return };
        let Some(silent) = silent else {
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.stall = None;
            }
            return;
        };
        self.begin_stall(id);
        while let Some(route) = self.lanes.get_mut(id).and_then(|l| l.stall.as_mut()?.take_due(silent)) {
            self.give_up(route);
        }
        self.apps.collect_wakes();
    }

    fn begin_stall(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.stall.is_none()) else { return };
        let routes = self.vqps.of(&lane.members);
        let stall = lane.stall.insert(Stall::default());
        for route in routes {
            let Some(vqp) = self.vqps.get(route) else { break };
            stall.note(route, vqp.slot.peer_timeout());
        }
    }

    /// The application does not wait any longer. The peer learns it when it is back; until then the connection's memory
    /// is not freed.
    fn give_up(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        let is_over = vqp.is_complete() || vqp.is_reset() || vqp.is_app_released();
        if is_over || matches!(vqp.phase(), Phase::Opening(_)) {
            return;
        }
        vqp.abort(Reason::PeerTimeout);
        vqp.slot.publish_reset(Reason::PeerTimeout);
        let at = vqp.at();
        self.counters.peer_timeouts += 1;
        self.notify(at);
        self.update(route);
    }
}
