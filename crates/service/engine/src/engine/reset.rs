//! Lane reset: a lane gets a new queue pair, and its connections go on.
//!
//! Owns the way from a broken queue pair to the next incarnation (docs/inside/lanes.md, "Lane reset";
//! docs/inside/wire.md, "Going on after a reset"): what had arrived is handled, the queue pair is destroyed, both ends
//! tell each other what of each connection arrived, and everything else is owed again. It must never report before its
//! own old queue pair is destroyed, because what lands later would not be in the report. It must never free a
//! connection before both ends have reported everything, and never let a lane be reset without a bound.

use control::{LaneRoutes, ROUTES_PER_MESSAGE, Reason, RouteState, route_flag};
use verbs::{Provider, QpModify, Time};

use super::Engine;
use super::mechanism::Mechanism;
use super::mechanisms::Mechanisms;
use crate::event::Event;
use crate::ids::{LaneId, RouteId};
use crate::lane::LaneState;
use crate::lane_at::LaneAt;
use crate::limits::DRAIN_POLLS;
use crate::numbers::count;
use crate::resync::{Resync, ToTell};
use crate::violation::Violation;
use crate::vqp::{Phase, Vqp};

impl Engine {
    // ---- the old incarnation

    /// Resets the lanes that failed in this round. Says whether there were any.
    pub(super) fn run_resets<P: Provider>(&mut self, nic: &mut P) -> bool {
        let failing = self.lanes.take_failing();
        for &id in &failing {
            let Some(detail) = self.lanes.get_mut(id).and_then(|l| l.qp.take_failure()) else { continue };
            if !self.rest_broken_lane(nic, id) {
                self.reset_lane(nic, id, Some(detail));
            }
        }
        !failing.is_empty()
    }

    /// The peer gave the lane's queue pair up and keeps its connections; so does this end. The daemon makes a new offer
    /// next. If the lane was reset too often its connections end, with [`Event::LaneFailed`].
    pub fn lane_reset<P: Provider>(&mut self, now: Time, nic: &mut P, at: impl Into<LaneAt>) {
        self.see(now);
        if let Some(id) = self.lanes.at(at) {
            self.reset_lane(nic, id, None);
        }
    }

    /// Puts the queue pair of the lane to a peer into error, as a failure of the device would: the lane is reset.
    /// False: there is no lane to that peer.
    pub fn force_lane_error<P: Provider>(&mut self, nic: &mut P, at: impl Into<LaneAt>) -> bool {
        let Some(id) = self.lanes.at(at) else { return false };
        let Some(lane) = self.lanes.get_mut(id) else { return false };
        let Some(qpn) = lane.qp.qpn() else { return false };
        lane.mtu.forget_way();
        let _ = nic.modify_qp(qpn, &QpModify::Err);
        self.lanes.fail(id, "an operator asked for it".into());
        true
    }

    /// `failure`: what happened here, if it did not happen at the peer.
    fn reset_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId, failure: Option<String>) {
        self.handle_arrived(nic, id);
        // What had arrived may have made the lane fail.
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.qp.exists()) else { return };
        let (peer, number) = (lane.peer(), lane.number());
        if !lane.may_reset(now) {
            let detail = failure.unwrap_or_else(|| "the peer reset it".into());
            return self.fail_lane(nic, id, format!("{detail}, after too many resets"));
        }
        self.counters.lane_resets += 1;
        let is_renewal = lane.renews_keys_at().is_some();
        self.destroy_lane_qp(nic, id);
        self.end_overdue(id);
        self.keep_connections(id, false);
        if let Some(detail) = failure {
            self.events.push_back(Event::LaneReset { peer, lane: number, detail, is_renewal });
        }
    }

    /// Stops the queue pair and handles every message that arrived on it: the peer's device has confirmed them, so that
    /// the peer may have forgotten them.
    pub(super) fn handle_arrived<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(qpn) = self.lanes.get(id).and_then(|l| l.qp.qpn()) else { return };
        let _ = nic.modify_qp(qpn, &QpModify::Err);
        for _ in 0..DRAIN_POLLS {
            if !self.run_completions(nic) {
                break;
            }
        }
    }

    /// Takes the lane's connections out of all its queues, and notes what is to be reported of them.
    pub(super) fn keep_connections(&mut self, id: LaneId, rests: bool) {
        let parked = self.parked_routes(id);
        let mut unanswered = count(parked.len());
        let mut resync = Resync::new(parked);
        let mut unsent = Vec::new();
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.forget_queue_pair();
        for route in self.vqps.of(&lane.members) {
            let Some(vqp) = self.vqps.get_mut(route) else { break };
            vqp.place.leave_lists();
            vqp.forget_rendezvous();
            resync.add(route);
            match vqp.phase() {
                Phase::Opening(_) if vqp.is_open_sent() => resync.expect(route),
                Phase::Opening(_) => unsent.push(route),
                // Each end begins again on the next queue pair.
                Phase::Away(_) => vqp.part(self.now),
                Phase::Accepting | Phase::Open => {
                    unanswered += u32::from(vqp.phase() == Phase::Accepting);
                    resync.expect_by(vqp.peer_route(), route);
                }
            }
        }
        lane.keep_connections(resync, unsent, unanswered, rests);
        Mechanisms::on_lane_kept(self, id);
    }

    // ---- telling

    /// What arrived here of the old incarnation, in parts: call again when the peer confirmed the last one. `None`: all
    /// was reported and confirmed, or the lane does not go on.
    pub fn lane_routes(&mut self, at: impl Into<LaneAt>) -> Option<LaneRoutes> {
        let id = self.lanes.at(at)?;
        let lane = self.lanes.get_mut(id).filter(|l| l.qp.state() == LaneState::Accepted)?;
        if lane.resync_mut().confirm_told() {
            self.try_go_on(id);
            return None;
        }
        let mut routes = Vec::new();
        while routes.len() < ROUTES_PER_MESSAGE {
            let Some(next) = lane.resync_mut().next_to_tell() else { break };
            routes.extend(match next {
                ToTell::Connection(route) => self.vqps.get_mut(route).and_then(Vqp::report),
                ToTell::ParkedOpen(open) => {
                    Some(RouteState { route: open, own_route: 0, rx_tail: 0, rx_head: 0, flags: route_flag::PARKED })
                }
            });
        }
        let is_last = lane.resync_mut().is_last_told();
        let is_fresh = lane.resync_mut().is_fresh();
        let (number, incarnation, frames_received) = (lane.number(), lane.qp.incarnation(), lane.frames.received());
        Some(LaneRoutes { lane: number, incarnation, frames_received, is_fresh, routes, is_last })
    }

    /// Whether both ends have reported everything: LaneReady may be sent.
    pub fn lane_goes_on(&self, at: impl Into<LaneAt>) -> bool {
        let lane = self.lanes.at(at).and_then(|id| self.lanes.get(id));
        lane.is_some_and(|l| l.qp.state() == LaneState::Accepted && !l.holds_connections())
    }

    // ---- hearing

    /// What arrived at the peer of the old incarnation. An error means that it cannot be so, and says why for a person:
    /// the lane's connections have ended with [`Reason::LaneFailed`].
    pub fn lane_take_routes<P: Provider>(
        &mut self,
        now: Time,
        nic: &mut P,
        at: impl Into<LaneAt>,
        said: &LaneRoutes,
    ) -> Result<(), String> {
        self.see(now);
        let id = self.lanes.at(at);
        // Another reset, or the lane's end, is on its way to the daemon.
        let Some(id) = id.filter(|id| self.lanes.get(*id).is_some_and(|l| l.qp.state() == LaneState::Accepted)) else {
            return Ok(());
        };
        if let Err(violation) = self.hear(id, said) {
            self.counters.violations += 1;
            self.fail_lane_quietly(nic, id);
            return Err(violation.to_string());
        }
        self.try_go_on(id);
        Ok(())
    }

    fn hear(&mut self, id: LaneId, said: &LaneRoutes) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        let (expected, number) = (lane.qp.peer_incarnation(), lane.number());
        lane.resync_mut();
        if said.incarnation != expected || said.lane != number {
            return Err(Violation::Incarnation { found: said.incarnation, expected });
        }
        if said.routes.len() > ROUTES_PER_MESSAGE {
            return Err(Violation::TooManyRoutes(said.routes.len()));
        }
        lane.on_frames_arrived(said.frames_received)?;
        lane.resync_mut().on_heard(said.is_last);
        Mechanisms::on_heard(self, id, said.frames_received, said.is_fresh);
        for state in &said.routes {
            self.hear_route(id, state)?;
        }
        Ok(())
    }

    fn hear_route(&mut self, id: LaneId, state: &RouteState) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        let Some(resync) = lane.resync_if_kept() else { return Ok(()) };
        if state.flags & route_flag::OPENING != 0 {
            // An Open that did not arrive is not known here, and by that the peer sends it again.
            let Some(route) = resync.by_peer_route(state.own_route) else { return Ok(()) };
            let Some(vqp) = self.vqps.get_mut(route) else { return Ok(()) };
            resync.on_named(route);
            if vqp.answer_again()? {
                lane.on.connections.opening.owe_answer_again();
            }
            return Ok(());
        }
        let route = self.vqps.named(state.route);
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(()) };
        if vqp.place.lane() != Some(id) {
            return Err(Violation::RecordRoute(state.route));
        }
        resync.on_named(route);
        match vqp.phase() {
            // Its answer is on its way.
            Phase::Opening(_) if vqp.is_open_sent() => Ok(()),
            // The peer had this end's word, and not the answer; it begins again, too.
            Phase::Away(_) => Ok(()),
            Phase::Open if state.flags & route_flag::PARKED == 0 && vqp.peer_route() == state.own_route => {
                vqp.begin_again_unless(true);
                if vqp.resume(state)? {
                    let at = vqp.at();
                    self.notify(at);
                }
                Ok(())
            }
            _ => Err(Violation::RouteState(state.route)),
        }
    }

    // ---- going on

    /// Both ends know what arrived at the other: connections owe what did not, and may be freed again.
    fn try_go_on(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let Some(resync) = lane.take_resync_if_done() else { return };
        for route in resync.unnamed() {
            self.on_unnamed(id, route);
        }
        let (mut opens_sent, epoch) = (0, self.lanes.get(id).map_or(0, |l| l.qp.incarnation()));
        for &route in resync.routes().iter().rev() {
            let Some(vqp) = self.vqps.get(route) else { continue };
            match vqp.phase() {
                Phase::Opening(None) if !vqp.is_open_sent() => self.forget_opening(route),
                Phase::Opening(_) => opens_sent += u32::from(vqp.is_open_sent()),
                Phase::Accepting | Phase::Open | Phase::Away(_) => vqp.slot.publish_epoch(epoch),
            }
            self.update(route);
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on.connections.opening.on_gone_on(opens_sent);
        }
    }

    /// The peer has nothing of a connection: its Open did not arrive, or the peer freed its end.
    fn on_unnamed(&mut self, id: LaneId, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if let Phase::Opening(_) = vqp.phase() {
            vqp.on_open_lost();
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.on.connections.opening.push(route);
            }
            return;
        }
        if vqp.begin_again_unless(false) {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            self.vqps.unlink(&mut lane.members, route, self.now);
        }
        self.sever_vqp(route, Reason::LaneFailed);
    }
}
