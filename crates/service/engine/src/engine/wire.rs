//! Lanes that change their wire: one that is silent is left, and one that leads to the peer again is taken
//! (docs/operate/failover.md).
//!
//! Owns when that is right. It must never take a queue pair down that works while an operation is on it whose outcome
//! would be unknown then.

use verbs::{Provider, Qpn};

use super::Engine;
use crate::event::Event;
use crate::lane::Lane;
use crate::lane_at::LaneAt;

impl Engine {
    /// The device says that nothing comes back over a queue pair's wire.
    pub(super) fn on_wire_silent(&mut self, qpn: Qpn) {
        let Some(lane) = self.lanes.of_qp(qpn).and_then(|id| self.lanes.get(id)) else { return };
        if !lane.is_failing() {
            let (peer, lane) = (lane.peer(), lane.number());
            self.events.push_back(Event::WireSilent { peer, lane });
        }
    }

    /// The wire of a lane does not lead to the peer, whose daemon answers all the same: the lane is reset, and its next
    /// queue pair is on another wire that both hosts have.
    pub fn lane_leave_wire<P: Provider>(&mut self, nic: &mut P, at: impl Into<LaneAt>) {
        let Some(id) = self.lanes.at(at) else { return };
        let Some(lane) = self.lanes.get(id).filter(|lane| lane.can_receive() && !lane.is_failing()) else { return };
        let Some((qpn, wire)) = lane.qpn().zip(lane.wire()) else { return };
        if nic.leave_wire(qpn) {
            self.counters.wires_left += 1;
            let detail =
                format!("nothing comes back over {wire}, though the peer's daemon answers: it goes over another wire");
            self.lanes.fail(id, detail);
        }
    }

    /// The device says that the wire which it prefers leads to the peer of a queue pair again. The lane changes to it in
    /// a moment in which no operation is under way.
    pub(super) fn on_wire_returned(&mut self, qpn: Qpn) {
        let Some(id) = self.lanes.of_qp(qpn) else { return };
        let can = |lane: &&Lane| lane.is_up() && !lane.is_failing() && lane.flight().is_quiet();
        if self.lanes.get(id).filter(can).is_some() {
            self.counters.wires_returned += 1;
            self.lanes.fail(id, "the wire that it left leads to the peer again".into());
        }
    }
}
