//! Lane reset: a lane gets a new queue pair, and its connections go on.
//!
//! Owns the way from a failed queue pair to the next incarnation (ARCHITECTURE.md, "Lane reset"; docs/wire.md, "Going on
//! after a reset"): what had arrived is handled, the queue pair is destroyed, both ends tell each other what of each
//! connection arrived, and all else is owed again. It must never report before the own old queue pair is destroyed, since
//! what lands later would not be in the report; never free a connection before both ends have told everything; and never
//! let a lane be reset without a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use control::{LaneRoutes, ROUTES_PER_MESSAGE, Reason, RouteState, route_flag};
use verbs::{Provider, QpModify, Time};

use crate::engine::Engine;
use crate::event::Event;
use crate::lane::{Lane, LaneId, LaneState};
use crate::limits::DRAIN_POLLS;
use crate::link::LANE_NUMBER;
use crate::violation::Violation;
use crate::vqp::{Phase, RouteId, Vqp};

/// What one end still has to tell and to hear.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// Connections of the lane when it was reset.
    routes: Vec<RouteId>,
    /// Opens of the peer, by its route ids, that will be answered.
    parked: Vec<u32>,
    /// Of `routes`, then of `parked`, so many were told.
    told: usize,
    /// The last message was made, and all were confirmed.
    is_last_told: bool,
    is_all_told: bool,
    is_all_heard: bool,
    /// Connections that the peer knows, if it did not end them, and has not named yet.
    unnamed: BTreeSet<RouteId>,
    /// Connections by the peer's route id.
    by_peer_route: BTreeMap<u32, RouteId>,
    /// This end kept nothing of the old incarnation.
    is_fresh: bool,
}

impl Engine {
    // ---- the old incarnation

    /// The queue pair failed. What has arrived is still handled; at the end of the round the lane is reset.
    pub(crate) fn break_lane(&mut self, id: LaneId, detail: String) {
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.has_qp()) else { return };
        if lane.failing.is_none() {
            lane.failing = Some(detail);
            self.failing.push(id);
        }
    }

    /// Resets the lanes that failed in this round. Says whether there were any.
    pub(crate) fn run_resets<P: Provider>(&mut self, nic: &mut P) -> bool {
        let failing = std::mem::take(&mut self.failing);
        for &id in &failing {
            let Some(detail) = self.lanes.get_mut(id).and_then(|l| l.failing.take()) else { continue };
            self.reset_lane(nic, id, Some(detail));
        }
        !failing.is_empty()
    }

    /// The peer gave the lane's queue pair up and keeps its connections; so does this end. The daemon makes a new offer
    /// next. If the lane was reset too often its connections end, with [`Event::LaneFailed`].
    pub fn lane_reset<P: Provider>(&mut self, now: Time, nic: &mut P, peer: IpAddr) {
        self.now = self.now.max(now);
        if let Some(&id) = self.peers.get(&peer.to_canonical()) {
            self.reset_lane(nic, id, None);
        }
    }

    /// Puts the queue pair of the lane to a peer into error, as a failure of the device would: the lane is reset. False: there
    /// is no lane to that peer.
    pub fn force_lane_error<P: Provider>(&mut self, nic: &mut P, peer: IpAddr) -> bool {
        let Some(&id) = self.peers.get(&peer.to_canonical()) else { return false };
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.has_qp()) else { return false };
        lane.forget_path();
        let _ = nic.modify_qp(lane.qpn, &QpModify::Err);
        self.break_lane(id, "an operator asked for it".into());
        true
    }

    /// `failure`: what happened here, if it did not happen at the peer.
    fn reset_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId, failure: Option<String>) {
        self.handle_arrived(nic, id);
        // What had arrived may have ended the lane for good.
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.has_qp()) else { return };
        let peer = lane.peer;
        if !lane.may_reset(now) {
            let detail = failure.unwrap_or_else(|| "the peer reset it".into());
            return self.fail_lane(nic, id, format!("{detail}, after too many resets"));
        }
        self.counters.lane_resets += 1;
        self.destroy_lane_qp(nic, id);
        self.keep_connections(id);
        if let Some(detail) = failure {
            self.events.push_back(Event::LaneReset { peer, detail });
        }
    }

    /// Stops the queue pair and handles every message that arrived on it: the peer's device has confirmed them, so that the
    /// peer may have forgotten them.
    pub(crate) fn handle_arrived<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(lane) = self.lanes.get(id).filter(|l| l.has_qp()) else { return };
        let _ = nic.modify_qp(lane.qpn, &QpModify::Err);
        for _ in 0..DRAIN_POLLS {
            if !self.run_completions(nic) {
                break;
            }
        }
    }

    /// Takes the lane's connections out of all its queues, and notes what is to be told of them.
    fn keep_connections(&mut self, id: LaneId) {
        let mut resync = Resync { parked: self.parked_routes(id), ..Resync::default() };
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.forget_queue_pair();
        // The daemons make the next incarnation by themselves.
        lane.is_wanted = true;
        lane.opens_received = resync.parked.len() as u32;
        let mut next = lane.first;
        while let Some(route) = next {
            let Some(vqp) = self.vqps.get_mut(route) else { break };
            next = vqp.next;
            (vqp.in_control, vqp.in_ready, vqp.in_lazy, vqp.deficit) = (false, false, false, 0);
            resync.routes.push(route);
            match vqp.phase {
                Phase::Opening(_) if vqp.is_open_sent => _ = resync.unnamed.insert(route),
                Phase::Opening(_) => lane.opens.push_front(route),
                Phase::Accepting | Phase::Open => {
                    lane.opens_received += u32::from(vqp.phase == Phase::Accepting);
                    resync.unnamed.insert(route);
                    resync.by_peer_route.insert(vqp.peer_route, route);
                }
            }
        }
        lane.resync = Some(resync);
    }

    // ---- telling

    /// What arrived here of the old incarnation, in parts: call again when the peer confirmed the last one. `None`: all
    /// was told and confirmed, or the lane is not one that goes on.
    pub fn lane_routes(&mut self, peer: IpAddr) -> Option<LaneRoutes> {
        let id = *self.peers.get(&peer.to_canonical())?;
        let lane = self.lanes.get_mut(id).filter(|l| l.state == LaneState::Accepted)?;
        let resync = lane.resync.get_or_insert_with(Resync::nothing_kept);
        if resync.is_last_told {
            resync.is_all_told = true;
            self.try_go_on(id);
            return None;
        }
        let mut routes = Vec::new();
        while routes.len() < ROUTES_PER_MESSAGE {
            let state = if let Some(&route) = resync.routes.get(resync.told) {
                self.vqps.get_mut(route).and_then(Vqp::report)
            } else if let Some(&open) = resync.parked.get(resync.told - resync.routes.len()) {
                Some(RouteState { route: open, own_route: 0, rx_tail: 0, rx_head: 0, flags: route_flag::PARKED })
            } else {
                resync.is_last_told = true;
                break;
            };
            resync.told += 1;
            routes.extend(state);
        }
        let (incarnation, frames_received, is_last) = (lane.incarnation, lane.frame_received, resync.is_last_told);
        Some(LaneRoutes { lane: LANE_NUMBER, incarnation, frames_received, routes, is_last })
    }

    /// Whether both ends told and heard everything: LaneReady may be sent.
    pub fn lane_goes_on(&self, peer: IpAddr) -> bool {
        let lane = self.peers.get(&peer.to_canonical()).and_then(|id| self.lanes.get(*id));
        lane.is_some_and(|l| l.state == LaneState::Accepted && l.resync.is_none())
    }

    // ---- hearing

    /// What arrived at the peer of the old incarnation. An error means that it cannot be so, and says why for a person: the
    /// lane's connections have ended with [`Reason::LaneFailed`].
    pub fn lane_take_routes<P: Provider>(
        &mut self,
        now: Time,
        nic: &mut P,
        peer: IpAddr,
        said: &LaneRoutes,
    ) -> Result<(), String> {
        self.now = self.now.max(now);
        let id = self.peers.get(&peer.to_canonical()).copied();
        // Another reset, or the lane's end, is on its way to the daemon.
        let Some(id) = id.filter(|id| self.lanes.get(*id).is_some_and(|l| l.state == LaneState::Accepted)) else {
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
        let resync = lane.resync.get_or_insert_with(Resync::nothing_kept);
        if said.incarnation != lane.peer_incarnation || said.lane != LANE_NUMBER {
            return Err(Violation::Incarnation { found: said.incarnation, expected: lane.peer_incarnation });
        }
        if said.routes.len() > ROUTES_PER_MESSAGE {
            return Err(Violation::TooManyRoutes(said.routes.len()));
        }
        if said.frames_received > lane.frame_sent && !resync.is_fresh {
            return Err(Violation::FramesArrived { found: said.frames_received, sent: lane.frame_sent });
        }
        lane.frame_sent = said.frames_received;
        resync.is_all_heard = said.is_last;
        for state in &said.routes {
            self.hear_route(id, state)?;
        }
        Ok(())
    }

    fn hear_route(&mut self, id: LaneId, state: &RouteState) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        let Some(resync) = &mut lane.resync else { return Ok(()) };
        if state.flags & route_flag::OPENING != 0 {
            // An Open that did not arrive is not known here, and by that the peer sends it again.
            let Some(&route) = resync.by_peer_route.get(&state.own_route) else { return Ok(()) };
            let Some(vqp) = self.vqps.get_mut(route) else { return Ok(()) };
            resync.unnamed.remove(&route);
            lane.opens_received += u32::from(vqp.answer_again()?);
            return Ok(());
        }
        let route = self.route_names.route(state.route);
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(()) };
        if vqp.lane != Some(id) {
            return Err(Violation::RecordRoute(state.route));
        }
        resync.unnamed.remove(&route);
        match vqp.phase {
            // Its answer is on its way.
            Phase::Opening(_) if vqp.is_open_sent => Ok(()),
            Phase::Open if state.flags & route_flag::PARKED == 0 && vqp.peer_route == state.own_route => {
                if vqp.resume(state)? {
                    let (app, slot) = (vqp.app, vqp.slot);
                    self.notify(app, slot);
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
        let Some(resync) = lane.resync.take_if(|r| r.is_all_told && r.is_all_heard) else { return };
        for &route in &resync.unnamed {
            self.on_unnamed(id, route);
        }
        let (mut opens_sent, epoch) = (0, self.lanes.get(id).map_or(0, |l| l.incarnation));
        for &route in resync.routes.iter().rev() {
            let Some(vqp) = self.vqps.get(route) else { continue };
            match vqp.phase {
                Phase::Opening(None) if !vqp.is_open_sent => self.forget_opening(route),
                Phase::Opening(_) => opens_sent += u32::from(vqp.is_open_sent),
                Phase::Accepting | Phase::Open => vqp.words.epoch.store(epoch.into(), Ordering::Relaxed),
            }
            self.update(route);
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.opens_sent = opens_sent;
        }
    }

    /// The peer has nothing of a connection: its Open did not arrive, or the peer freed its end.
    fn on_unnamed(&mut self, id: LaneId, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if let Phase::Opening(_) = vqp.phase {
            vqp.is_open_sent = false;
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.opens.push_back(route);
            }
            return;
        }
        let (previous, next) = (vqp.previous, vqp.next);
        self.unlink(id, previous, next);
        self.sever_vqp(route, Reason::LaneFailed);
    }
}

impl Resync {
    /// Of an end that severed the lane's connections while the peer kept them.
    fn nothing_kept() -> Self {
        Self { is_fresh: true, ..Self::default() }
    }
}

impl Lane {
    /// Whether connections wait for the next incarnation, so that none may be freed.
    pub(crate) fn holds_connections(&self) -> bool {
        self.resync.is_some()
    }
}
