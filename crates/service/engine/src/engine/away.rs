//! Connections whose other ends cannot be reached, because a daemon or the link between two was lost: they wait, and go on
//! when both daemons have a lane again (docs/operate/restart.md).
//!
//! Owns for how long they wait, and that the daemons try meanwhile. It must never keep a connection for longer, and must
//! never let one that waits hold memory that its peer may still write: the queue pair is destroyed first.

use control::Reason;
use verbs::Provider;

use super::Engine;
use super::mechanism::Mechanism;
use super::mechanisms::Mechanisms;
use crate::frame::{Back, check_ring, check_route};
use crate::ids::{LaneId, RouteId};
use crate::limits::{AWAY_TICK, RING_BYTES_MAX, TIMERS_PER_RUN};
use crate::ring_size::RingSize;
use crate::violation::Violation;
use crate::vqp::Vqp;
use crate::vqp::away::Heard;

impl Engine {
    /// Whether connections wait when the link to a peer is lost for this reason.
    pub(super) fn waits_after(&self, reason: Reason) -> bool {
        !self.config.peer_return.is_zero() && reason == Reason::PeerLost
    }

    /// The link to a peer's daemon is lost. Its queue pair is destroyed, what can go on waits, and all else ends with
    /// `reason`.
    pub(super) fn part_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId, reason: Reason) {
        self.destroy_lane_qp(nic, id);
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let routes = self.vqps.of(&lane.members);
        lane.part();
        Mechanisms::on_severed(self, id, reason);
        // Before anything is freed: rings that become free must not go to an open of this lane.
        self.drop_parked_opens(id);
        let (waits, mut is_new) = (self.config.peer_return, false);
        for route in routes {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            if vqp.can_part() {
                let wait = vqp.slot.peer_timeout().map_or(waits, |own| own.min(waits));
                is_new |= !vqp.is_away();
                self.counters.connections_parted += u64::from(!vqp.is_away());
                vqp.part(self.now + wait);
                self.try_release(route);
            } else {
                self.end_member(id, route, reason);
            }
        }
        // The daemon may say at once that the peer's next one has no such lane, as it has fewer engines: it is asked again
        // later.
        if is_new {
            self.seek_peer(id);
        } else {
            self.seek_peer_later(id);
        }
    }

    /// Takes a connection out of its lane and ends it without asking the peer, of which nothing can come any more.
    fn end_member(&mut self, id: LaneId, route: RouteId, reason: Reason) {
        if let Some(lane) = self.lanes.get_mut(id) {
            self.vqps.unlink(&mut lane.members, route, self.now);
        }
        self.sever_vqp(route, reason);
    }

    /// The connections of a lane that wait.
    fn waiting_on(&self, id: LaneId) -> Vec<RouteId> {
        let routes = self.lanes.get(id).map(|lane| self.vqps.of(&lane.members)).unwrap_or_default();
        routes.into_iter().filter(|route| self.vqps.get(*route).is_some_and(Vqp::is_away)).collect()
    }

    /// The lane has connections that wait: the daemon tries to reach the peer, and looks again soon.
    pub(super) fn seek_peer(&mut self, id: LaneId) {
        let Some(&route) = self.waiting_on(id).first() else { return };
        let uid = self.vqps.get(route).and_then(|vqp| self.apps.get(vqp.app())).map_or(0, |app| app.uid());
        if self.lanes.get(id).is_some_and(|lane| !lane.qp.exists() && !lane.dialing.is_wanted()) {
            self.want_link(id, uid);
        }
        self.seek_peer_later(id);
    }

    /// As [`Self::seek_peer`], but nothing is tried before the next look.
    pub(super) fn seek_peer_later(&mut self, id: LaneId) {
        if self.lanes.get_mut(id).is_some_and(|lane| lane.on.connections.away.watch()) {
            self.timers.start_away(self.now + AWAY_TICK, id);
        }
    }

    /// Whether something waits there that a rest of the lane would keep waiting.
    pub(super) fn is_lane_settling(&self, id: LaneId) -> bool {
        let routes = self.lanes.get(id).map(|lane| self.vqps.of(&lane.members)).unwrap_or_default();
        routes.into_iter().filter_map(|route| self.vqps.get(route)).any(|vqp| vqp.is_away() || vqp.is_unconfirmed())
    }

    /// Looks at connections that wait: those whose time is over end. Says whether there were lanes to look at.
    pub(super) fn run_away(&mut self) -> bool {
        let now = self.now;
        let mut worked = false;
        for _ in 0..TIMERS_PER_RUN {
            let Some(id) = self.timers.due_away(now) else { break };
            worked = true;
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            lane.on.connections.away.on_timer();
            let has_qp = self.lanes.get(id).is_some_and(|lane| lane.qp.exists());
            if has_qp && self.overdue_on(id).iter().any(|route| self.vqps.get(*route).is_some_and(Vqp::may_be_known)) {
                // The peer may send to them at any time, and has the key of their rings.
                self.lanes.fail(id, "the peer did not answer for connections of which it may know".into());
            } else {
                self.end_overdue(id);
            }
            self.seek_peer(id);
        }
        worked
    }

    /// The connections of a lane that have waited for as long as they may.
    fn overdue_on(&self, id: LaneId) -> Vec<RouteId> {
        let is_over = |vqp: &Vqp| vqp.away_until().is_some_and(|until| until <= self.now);
        let mut routes = self.waiting_on(id);
        routes.retain(|route| self.vqps.get(*route).is_some_and(is_over));
        routes
    }

    /// They end. Nothing can come of the peer any more for those of which it may know: there is no queue pair.
    pub(super) fn end_overdue(&mut self, id: LaneId) {
        for route in self.overdue_on(id) {
            self.counters.connections_given_up += 1;
            self.end_member(id, route, Reason::PeerLost);
        }
    }

    /// The lane is up: the peer is told of all that waits for it.
    pub(super) fn tell_back(&mut self, id: LaneId) {
        for route in self.waiting_on(id) {
            self.update(route);
        }
    }

    /// All connections of a lane that wait end, because the peer will not have them.
    pub(super) fn give_waiting_up(&mut self, id: LaneId, reason: Reason) {
        for route in self.waiting_on(id) {
            self.end_member(id, route, reason);
        }
    }

    // ---- the peer

    /// The peer's end of a connection is back.
    pub(super) fn on_back(&mut self, id: LaneId, back: &Back) -> Result<(), Violation> {
        check_route(back.own_route)?;
        check_ring(&back.ring, RingSize::fixed(RING_BYTES_MAX))?;
        let route = self.vqps.named(back.route);
        let found = self.vqps.on_lane(id, route).filter(|vqp| vqp.peer_route() == back.own_route);
        let Some(vqp) = found else {
            // Of a program of this host that may still come back nothing is said.
            let age = self.now.saturating_since(self.started.unwrap_or(self.now));
            let is_known_gone = age >= self.config.peer_return;
            if !back.is_answer
                && is_known_gone
                && let Some(lane) = self.lanes.get_mut(id)
            {
                lane.on.connections.away.tell_gone(back.own_route);
                self.lanes.queue(id);
            }
            return Ok(());
        };
        let heard = vqp.on_back(back);
        if heard != Heard::Nothing {
            self.counters.connections_returned += u64::from(heard == Heard::Back);
            let at = vqp.at();
            self.notify(at);
        }
        self.update(route);
        Ok(())
    }

    /// The peer has nothing of a connection that waits.
    pub(super) fn on_gone(&mut self, id: LaneId, route: u32) {
        let route = self.vqps.named(route);
        if self.vqps.on_lane(id, route).is_some_and(|vqp| vqp.is_away()) {
            self.end_member(id, route, Reason::PeerLost);
        }
    }

    /// Whether a record is about a connection whose two ends cannot be brought together, so that it does not matter what it
    /// says.
    pub(super) fn is_about_spoiled(&self, route: Option<u32>) -> bool {
        route.is_some_and(|route| self.vqps.get(self.vqps.named(route)).is_some_and(Vqp::is_spoiled))
    }
}
