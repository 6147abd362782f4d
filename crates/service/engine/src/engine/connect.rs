//! Connects of local applications, from the call to the answer.
//!
//! Owns the table of connects that have no answer yet. It must never answer a connect twice, and never leave one
//! without a time limit: each has a deadline from the moment of the call.

use std::net::IpAddr;

use control::{Connection, Kind, Reason};
use verbs::{Provider, Time};

use super::Engine;
use crate::attempts::Connect;
use crate::event::{Dial, Event};
use crate::frame::WireRing;
use crate::ids::{AppId, ConnectId, LaneId, RouteId};
use crate::limits::CONNECT_DISPLACED_MAX;
use crate::ring_size::RingSize;
use crate::ringpool::{RingPair, Waiter};
use crate::violation::Violation;
use crate::vqp::{NewVqp, Phase};

impl Engine {
    /// Connects to a port of another host; the answer is [`Event::Connected`].
    pub fn connect<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, request: u64, dial: Dial) {
        self.see(now);
        if let Err(reason) = self.try_connect(nic, app, request, dial) {
            self.counters.connects_failed += 1;
            self.events.push_back(Event::Connected { app, request, result: Err(reason) });
            self.note_not_connected(app, dial.connection, dial.to.ip());
        }
    }

    fn try_connect<P: Provider>(&mut self, nic: &mut P, app: AppId, request: u64, dial: Dial) -> Result<(), Reason> {
        let Dial { connection, to, local, ring_bytes, kind } = dial;
        let Some(tenant) = self.apps.get_here(app) else { return Err(Reason::AppFault) };
        if tenant.connect_of(request).is_some() {
            return Err(Reason::AppFault);
        }
        self.check_way(app, to.ip())?;
        let size = match (self.config.ring_size(ring_bytes), kind) {
            // What does not fit is dropped and not waited for: a larger ring later would help nobody.
            (size, Kind::Unreliable) => RingSize::fixed(size.first),
            (size, _) => size,
        };
        let lane = self.lane_to(nic, to.ip()).ok_or(Reason::LocalLimit)?;
        let connect = Connect { app, request, connection, local, to, size, kind, lane, route: None, displaced: 0 };
        let id = self.connects.insert(connect).ok_or(Reason::LocalLimit)?;
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.add_connect(request, id);
        }
        self.start_waiting(app);
        self.timers.start_connect(self.now + self.config.connect_timeout, id, |id| self.connects.contains(id));
        self.place_connect(nic, id);
        Ok(())
    }

    /// Nothing comes of a connect that the control plane admitted.
    fn note_not_connected(&mut self, app: AppId, connection: u64, peer: IpAddr) {
        self.events.push_back(Event::ConnectionOver { app, connection, peer, port: None });
    }

    /// Lets a connect go on: to its rings if the lane is up, else it waits for the lane.
    pub(super) fn place_connect<P: Provider>(&mut self, nic: &mut P, id: ConnectId) {
        let Some(connect) = self.connects.get_mut(id) else { return };
        let (to, kind) = (connect.to.ip(), connect.kind);
        // The entry may have made room for another peer while the connect waited for rings.
        let Some(lane_id) = self.lane_to(nic, to) else { return self.finish_connect(id, Err(Reason::LocalLimit)) };
        if let Some(connect) = self.connects.get_mut(id) {
            connect.lane = lane_id;
        }
        let Some(lane) = self.lanes.get_mut(lane_id) else { return };
        if lane.qp.is_up() {
            // Before the peer is asked for anything.
            if kind == Kind::Unreliable
                && let Err(reason) = self.start_unreliable(nic, lane_id)
            {
                return self.finish_connect(id, Err(reason));
            }
            return self.ring_connect(id);
        }
        lane.dialing.park(id);
        if let Some(app) = self.connects.get(id).and_then(|c| self.apps.get(c.app)) {
            self.want_link(lane_id, app.uid());
        }
    }

    /// The lane is up: rings, then Open.
    fn ring_connect(&mut self, id: ConnectId) {
        let Some(connect) = self.connects.get(id) else { return };
        let (app, size) = (connect.app, connect.size);
        let Some(tenant) = self.apps.get_mut(app) else { return };
        match tenant.pool.take(size) {
            Some(rings) => self.open_connect(id, rings),
            None => {
                tenant.pool.wait(size, Waiter::Connect(id));
                self.ask_for_rings(app, size);
            }
        }
    }

    /// Rings are there for a connect that waited for them.
    pub(super) fn serve_connect(&mut self, id: ConnectId) {
        let Some(connect) = self.connects.get(id) else { return };
        match self.lanes.get_mut(connect.lane) {
            Some(lane) if lane.qp.is_up() => self.ring_connect(id),
            // It is being reset. The rings stay free until the lane is up again.
            Some(lane) if lane.dialing.is_wanted() => lane.dialing.park(id),
            _ => self.displace_connect(id, Reason::LocalLimit),
        }
    }

    /// The lane of a connect is gone before there was an answer, because it was unused as far as the host knew that
    /// needed its place: the connect looks for a lane again in this round or the next. After too many times it fails
    /// with `limit`.
    pub(super) fn displace_connect(&mut self, id: ConnectId, limit: Reason) {
        let Some(connect) = self.connects.get_mut(id) else { return };
        if connect.displaced >= CONNECT_DISPLACED_MAX {
            return self.finish_connect(id, Err(limit));
        }
        connect.displaced += 1;
        let app = connect.app;
        if let Some(route) = connect.route.take() {
            // The number goes on with the connect.
            if let Some(vqp) = self.vqps.get_mut(route) {
                vqp.give_up_number();
            }
            self.start_waiting(app);
        }
        self.counters.connects_displaced += 1;
        self.displaced.push(id);
    }

    /// Connects whose lanes went look for others. Says whether there were any.
    pub(super) fn run_displaced<P: Provider>(&mut self, nic: &mut P) -> bool {
        let displaced = std::mem::take(&mut self.displaced);
        for &id in &displaced {
            let Some(connect) = self.connects.get(id) else { continue };
            let (app, host) = (connect.app, connect.to.ip());
            match self.check_way(app, host) {
                Ok(()) => self.place_connect(nic, id),
                Err(reason) => self.finish_connect(id, Err(reason)),
            }
        }
        !displaced.is_empty()
    }

    fn open_connect(&mut self, id: ConnectId, rings: RingPair) {
        let Some(connect) = self.connects.get(id) else { return };
        let &Connect { connection, app, lane, to, local, size, kind, .. } = connect;
        let phase = Phase::Opening(Some(id));
        let new = NewVqp { id: connection, app, lane, phase, rings, size, allocated: size, local, peer: to, kind };
        match self.add_vqp(new) {
            Ok(route) => {
                if let Some(connect) = self.connects.get_mut(id) {
                    connect.route = Some(route);
                }
                self.stop_waiting(app);
                if let Some(lane) = self.lanes.get_mut(lane) {
                    lane.on.connections.opening.push(route);
                }
                self.lanes.queue(lane);
            }
            Err(reason) => self.finish_connect(id, Err(reason)),
        }
    }

    /// Makes a virtual QP in a slot of its application; on failure the rings go back.
    pub(super) fn add_vqp(&mut self, new: NewVqp) -> Result<RouteId, Reason> {
        let (app, lane, rings) = (new.app, new.lane, new.rings);
        let epoch = self.lanes.get(lane).map_or(0, |l| l.qp.incarnation());
        let tenant = self.apps.get_mut(app).ok_or(Reason::PeerAppDied)?;
        let route = match self.vqps.make(new, tenant, epoch, self.now) {
            Ok(route) => route,
            Err(reason) => {
                self.put_back_rings(app, rings);
                return Err(reason);
            }
        };
        if let Some(lane) = self.lanes.get_mut(lane) {
            self.vqps.link(&mut lane.members, route);
        }
        Ok(route)
    }

    // ---- the peer's answer

    pub(super) fn on_open_ack(
        &mut self,
        lane: LaneId,
        route: u32,
        peer_route: u32,
        ring: &WireRing,
    ) -> Result<(), Violation> {
        let key = self.vqps.named(route);
        let connect = self.take_opening(lane, key).ok_or(Violation::Answer(route))?;
        let vqp = self.vqps.get_mut(key).ok_or(Violation::Answer(route))?;
        vqp.on_open_ack(peer_route, ring)?;
        match connect {
            Some(connect) => {
                vqp.slot.publish_established();
                let connection = vqp.connection();
                self.counters.connects += 1;
                self.finish_connect(connect, Ok(connection));
            }
            None => {
                vqp.release();
                vqp.abort(Reason::ResetByPeer);
            }
        }
        self.hold_if_far(key);
        self.update(key);
        Ok(())
    }

    pub(super) fn on_open_nak(&mut self, lane: LaneId, route: u32, reason: Reason) -> Result<(), Violation> {
        let key = self.vqps.named(route);
        let connect = self.take_opening(lane, key).ok_or(Violation::Answer(route))?;
        if let Some(connect) = connect {
            self.finish_connect(connect, Err(reason));
        }
        self.forget_opening(key);
        Ok(())
    }

    /// The connect behind an Open that is being answered, if it is there still; `None` if that route is not being
    /// opened.
    fn take_opening(&mut self, lane: LaneId, route: RouteId) -> Option<Option<ConnectId>> {
        let vqp = self.vqps.on_lane(lane, route).filter(|v| v.is_open_sent());
        let Some(Phase::Opening(connect)) = vqp.map(|v| v.phase()) else { return None };
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.on.connections.opening.on_answered();
        }
        self.lanes.queue(lane);
        Some(connect)
    }

    /// The peer holds nothing of this attempt: rings and slot are free at once.
    pub(super) fn forget_opening(&mut self, route: RouteId) {
        if let Some(vqp) = self.vqps.get_mut(route) {
            vqp.release();
            vqp.end_unlinked();
        }
        self.try_release(route);
    }

    // ---- ends

    /// Answers a connect.
    pub(super) fn finish_connect(&mut self, id: ConnectId, result: Result<Connection, Reason>) {
        let Some(connect) = self.remove_connect(id) else { return };
        if result.is_err() {
            self.counters.connects_failed += 1;
        }
        self.events.push_back(Event::Connected { app: connect.app, request: connect.request, result });
    }

    fn remove_connect(&mut self, id: ConnectId) -> Option<Connect> {
        let connect = self.connects.remove(id)?;
        if let Some(tenant) = self.apps.get_mut(connect.app) {
            tenant.drop_connect(connect.request);
        }
        if connect.route.is_none() {
            self.note_not_connected(connect.app, connect.connection, connect.to.ip());
            self.stop_waiting(connect.app);
        }
        Some(connect)
    }

    /// Stops a connect. Afterwards there is no answer, unless it is already on its way as an event.
    pub fn cancel_connect<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, request: u64) {
        self.see(now);
        let Some(id) = self.apps.get(app).and_then(|a| a.connect_of(request)) else { return };
        self.abandon_connect(id);
    }

    /// The application does not wait for the connect any more. If Open was sent, the virtual QP stays until the peer
    /// answered.
    pub(super) fn abandon_connect(&mut self, id: ConnectId) {
        let Some(route) = self.remove_connect(id).and_then(|c| c.route) else { return };
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        vqp.abandon();
        if !vqp.is_open_sent() {
            self.forget_opening(route);
        }
    }

    /// A connect took too long.
    pub(super) fn on_connect_timeout(&mut self, id: ConnectId) {
        self.fail_opening(id, Reason::TimedOut);
    }

    /// Answers a connect that may be waiting for its peer's answer.
    pub(super) fn fail_opening(&mut self, id: ConnectId, reason: Reason) {
        let Some(connect) = self.connects.get(id) else { return };
        let (app, request) = (connect.app, connect.request);
        self.abandon_connect(id);
        self.counters.connects_failed += 1;
        self.events.push_back(Event::Connected { app, request, result: Err(reason) });
    }
}
