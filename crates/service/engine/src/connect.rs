//! Connects of local applications, from the call to the answer.
//!
//! Owns the table of connects that have no answer yet. It must never answer one twice, nor leave one without a bound: each
//! has a deadline from the moment of the call.

use std::net::{IpAddr, SocketAddr};

use control::{Connection, Kind, Reason};
use shm::slot_state;
use verbs::{Provider, Time};

use crate::AppId;
use crate::engine::Engine;
use crate::event::Event;
use crate::frame::WireRing;
use crate::immediate::check_route;
use crate::lane::{LaneId, LaneState};
use crate::limits::CONNECT_DISPLACED_MAX;
use crate::recv::check_ring;
use crate::ringpool::{RingPair, Waiter};
use crate::table::key;
use crate::users::Far;
use crate::violation::Violation;
use crate::vqp::{Close, HeadReport, Phase, RouteId, Vqp};

key!(
    /// A connect without an answer.
    ConnectId
);

/// A connect without an answer.
#[derive(Debug)]
pub(crate) struct Connect {
    app: AppId,
    request: u64,
    to: SocketAddr,
    ring_bytes: u32,
    kind: Kind,
    lane: LaneId,
    /// The virtual QP, once it has rings.
    route: Option<RouteId>,
    /// How often its lane made room for another host's before there was an answer.
    displaced: u32,
}

/// What a new virtual QP is made of.
pub(crate) struct NewVqp {
    pub(crate) app: AppId,
    pub(crate) lane: LaneId,
    pub(crate) phase: Phase,
    pub(crate) rings: RingPair,
    pub(crate) ring_bytes: u32,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) kind: Kind,
}

impl Engine {
    /// Connects to a port of a host; the answer is [`Event::Connected`], or [`Event::LocalConnect`] for this host.
    /// `ring_bytes` 0 means the default; other values are rounded to what exists.
    pub fn connect<P: Provider>(
        &mut self,
        now: Time,
        nic: &mut P,
        app: AppId,
        request: u64,
        to: SocketAddr,
        ring_bytes: u32,
    ) {
        self.connect_as(now, nic, app, request, to, (ring_bytes, Kind::Stream));
    }

    /// As [`Engine::connect`], to a listener of `kind`.
    pub fn connect_as<P: Provider>(
        &mut self,
        now: Time,
        nic: &mut P,
        app: AppId,
        request: u64,
        to: SocketAddr,
        (ring_bytes, kind): (u32, Kind),
    ) {
        self.now = now;
        if let Err(reason) = self.try_connect(nic, app, request, to, (ring_bytes, kind)) {
            self.counters.connects_failed += 1;
            self.events.push_back(Event::Connected { app, request, result: Err(reason) });
        }
    }

    fn try_connect<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        request: u64,
        to: SocketAddr,
        (ring_bytes, kind): (u32, Kind),
    ) -> Result<(), Reason> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let Some(tenant) = self.apps.get(app).filter(|a| !a.leaving) else { return Err(Reason::AppFault) };
        if tenant.connects.contains_key(&request) {
            return Err(Reason::AppFault);
        }
        if to.port() == 0 || to.ip().is_unspecified() || to.ip().is_multicast() || is_broadcast(to.ip()) {
            return Err(Reason::BadAddress);
        }
        if self.is_own(to.ip()) {
            return self.connect_local(app, request, to.port(), (self.config.local_ring_bytes(ring_bytes), kind));
        }
        let (uid, ring_bytes) = (tenant.uid, self.config.ring_bytes(ring_bytes));
        if tenant.connections + tenant.waiting >= self.config.connections_per_app_max || self.is_full() {
            return Err(Reason::LocalLimit);
        }
        self.users.check_connection(uid)?;
        self.users.check_host(uid, to.ip())?;
        self.check_way(uid, to.ip())?;
        let lane = self.lane_to(nic, to.ip()).ok_or(Reason::LocalLimit)?;
        let connect = Connect { app, request, to, ring_bytes, kind, lane, route: None, displaced: 0 };
        let id = self.connects.insert(connect).ok_or(Reason::LocalLimit)?;
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.connects.insert(request, id);
        }
        self.start_waiting(app, Some(Far { host: to.ip(), is_outgoing: true }));
        self.timers.start_connect(self.now + self.config.connect_timeout, id, |id| self.connects.contains(id));
        self.place_connect(nic, id);
        Ok(())
    }

    /// Whether no further connection fits this host's daemon.
    pub(crate) fn is_full(&self) -> bool {
        self.vqps.len() + self.waiting >= self.config.connections_max
    }

    fn connect_local(
        &mut self,
        from: AppId,
        request: u64,
        port: u16,
        (ring_bytes, kind): (u32, Kind),
    ) -> Result<(), Reason> {
        let connection = self.last_connection + 1;
        let backlog_max = self.config.backlog_max;
        let listener = self.listeners.get_mut(&port).ok_or(Reason::NoListener)?;
        listener.check_kind(kind.code())?;
        if !listener.take_place(connection, backlog_max) {
            return Err(Reason::BacklogFull);
        }
        let (to, ring_bytes) = (listener.app, listener.ring_bytes_for(ring_bytes));
        self.last_connection = connection;
        self.counters.connects_local += 1;
        self.events.push_back(Event::LocalConnect { from, request, to, port, ring_bytes, connection });
        Ok(())
    }

    /// Lets a connect go on: to its rings if the lane is up, else it waits for the lane.
    pub(crate) fn place_connect<P: Provider>(&mut self, nic: &mut P, id: ConnectId) {
        let Some(connect) = self.connects.get_mut(id) else { return };
        let to = connect.to.ip();
        // The entry may have made room for another peer while the connect waited for rings.
        let Some(lane_id) = self.lane_to(nic, to) else { return self.finish_connect(id, Err(Reason::LocalLimit)) };
        if let Some(connect) = self.connects.get_mut(id) {
            connect.lane = lane_id;
        }
        let Some(lane) = self.lanes.get_mut(lane_id) else { return };
        if lane.state == LaneState::Up {
            return self.ring_connect(id);
        }
        lane.parked.push_back(id);
        if let Some(uid) = self.connects.get(id).and_then(|c| self.apps.get(c.app)).map(|a| a.uid) {
            self.want_link(lane_id, uid);
        }
    }

    /// The lane is up: rings, then Open.
    fn ring_connect(&mut self, id: ConnectId) {
        let Some(connect) = self.connects.get(id) else { return };
        let (app, ring_bytes) = (connect.app, connect.ring_bytes);
        let Some(tenant) = self.apps.get_mut(app) else { return };
        match tenant.pool.take(ring_bytes) {
            Some(rings) => self.open_connect(id, rings),
            None => {
                tenant.pool.wait(ring_bytes, Waiter::Connect(id));
                self.ask_for_rings(app, ring_bytes);
            }
        }
    }

    /// Rings are there for a connect that waited for them.
    pub(crate) fn serve_connect(&mut self, id: ConnectId) {
        let Some(connect) = self.connects.get(id) else { return };
        match self.lanes.get_mut(connect.lane) {
            Some(lane) if lane.state == LaneState::Up => self.ring_connect(id),
            // It is being reset. The rings stay free until the lane is up again.
            Some(lane) if lane.is_wanted => lane.parked.push_back(id),
            _ => self.displace_connect(id, Reason::LocalLimit),
        }
    }

    /// The lane of a connect is gone before there was an answer, because it was unused as far as the host knew that needed its
    /// place: the connect looks for a lane again in this round or the next. After too many times it fails with `limit`.
    pub(crate) fn displace_connect(&mut self, id: ConnectId, limit: Reason) {
        let Some(connect) = self.connects.get_mut(id) else { return };
        if connect.displaced >= CONNECT_DISPLACED_MAX {
            return self.finish_connect(id, Err(limit));
        }
        connect.displaced += 1;
        let (app, far) = (connect.app, Far { host: connect.to.ip(), is_outgoing: true });
        if connect.route.take().is_some() {
            self.start_waiting(app, Some(far));
        }
        self.counters.connects_displaced += 1;
        self.displaced.push(id);
    }

    /// Connects whose lanes went look for others. Says whether there were any.
    pub(crate) fn run_displaced<P: Provider>(&mut self, nic: &mut P) -> bool {
        let displaced = std::mem::take(&mut self.displaced);
        for &id in &displaced {
            let Some(connect) = self.connects.get(id) else { continue };
            let host = connect.to.ip();
            let Some(uid) = self.apps.get(connect.app).map(|a| a.uid) else { continue };
            match self.check_way(uid, host) {
                Ok(()) => self.place_connect(nic, id),
                Err(reason) => self.finish_connect(id, Err(reason)),
            }
        }
        !displaced.is_empty()
    }

    fn open_connect(&mut self, id: ConnectId, rings: RingPair) {
        let Some(connect) = self.connects.get(id) else { return };
        let (app, lane, to, ring_bytes) = (connect.app, connect.lane, connect.to, connect.ring_bytes);
        let kind = connect.kind;
        let local = SocketAddr::new(self.local_address(), self.next_ephemeral());
        let phase = Phase::Opening(Some(id));
        let new = NewVqp { app, lane, phase, rings, ring_bytes, local, peer: to, kind };
        match self.add_vqp(new) {
            Ok(route) => {
                if let Some(connect) = self.connects.get_mut(id) {
                    connect.route = Some(route);
                }
                self.stop_waiting(app, Some(Far { host: to.ip(), is_outgoing: true }));
                if let Some(lane) = self.lanes.get_mut(lane) {
                    lane.opens.push_back(route);
                }
                self.queue_lane(lane);
            }
            Err(reason) => self.finish_connect(id, Err(reason)),
        }
    }

    /// Makes a virtual QP in a slot of its application; on failure the rings go back.
    pub(crate) fn add_vqp(&mut self, new: NewVqp) -> Result<RouteId, Reason> {
        let NewVqp { app, lane, phase, rings, ring_bytes, local, peer, kind } = new;
        let is_outgoing = phase != Phase::Accepting;
        let epoch = self.lanes.get(lane).map_or(0, |l| l.incarnation);
        let id = self.last_connection + 1;
        let tenant = self.apps.get_mut(app).ok_or(Reason::PeerAppDied)?;
        if !tenant.has_slot() || self.vqps.is_full() {
            let back = tenant.pool.put_back(self.now, rings);
            self.note_put_back(app, back);
            return Err(Reason::LocalLimit);
        }
        let names = &self.route_names;
        let route = self.vqps.insert_with(|route| {
            let (slot, generation, words) = tenant.take_slot(route).expect("a slot is free, as asked above");
            Vqp {
                id,
                own_route: names.name(route),
                local,
                peer,
                kind,
                phase,
                is_open_sent: false,
                backlog_port: None,
                app,
                is_outgoing,
                slot,
                generation,
                words,
                lane: Some(lane),
                previous: None,
                next: None,
                peer_route: 0,
                peer_ring: verbs::RemoteAddr { addr: 0, rkey: verbs::Rkey(0) },
                tx_place: rings.tx,
                rx_place: rings.rx,
                ring_bytes,
                allocated_bytes: ring_bytes,
                tx_tail: 0,
                tx_sent: 0,
                tx_head: 0,
                rx_tail: 0,
                rx_head: 0,
                rx_reported: 0,
                tx_counted: 0,
                rx_counted: 0,
                close: Close::default(),
                head_report: HeadReport::None,
                in_control: false,
                in_lazy: false,
                in_ready: false,
                deficit: 0,
                last_wr: 0,
                used_at: self.now,
                in_rests: false,
                rest_at: 0,
                rest_tries: 0,
            }
        });
        let route = route.ok_or(Reason::LocalLimit)?;
        tenant.connections += 1;
        self.users.add_connection(tenant.uid, Some(Far { host: peer.ip(), is_outgoing }));
        self.last_connection = id;
        if let Some(vqp) = self.vqps.get(route) {
            let state = if phase == Phase::Accepting { slot_state::ESTABLISHED } else { slot_state::CONNECTING };
            vqp.publish_new(epoch, state);
        }
        self.link(lane, route);
        Ok(route)
    }

    // ---- the peer's answer

    pub(crate) fn on_open_ack(
        &mut self,
        lane: LaneId,
        route: u32,
        peer_route: u32,
        ring: &WireRing,
    ) -> Result<(), Violation> {
        let key = self.route_names.route(route);
        let connect = self.take_opening(lane, key).ok_or(Violation::Answer(route))?;
        let vqp = self.vqps.get_mut(key).ok_or(Violation::Answer(route))?;
        vqp.peer_ring = check_ring(ring, vqp.ring_bytes)?;
        check_route(peer_route)?;
        vqp.peer_route = peer_route;
        // Both directions have the acceptor's size; a larger ring made here is used in its first part.
        vqp.ring_bytes = ring.bytes;
        vqp.phase = Phase::Open;
        match connect {
            Some(connect) => {
                vqp.words.state.store(slot_state::ESTABLISHED, std::sync::atomic::Ordering::Release);
                let connection = vqp.connection();
                self.counters.connects += 1;
                self.finish_connect(connect, Ok(connection));
            }
            None => {
                vqp.close.on_app_released();
                vqp.close.on_abort(Reason::ResetByPeer);
            }
        }
        self.update(key);
        Ok(())
    }

    pub(crate) fn on_open_nak(&mut self, lane: LaneId, route: u32, reason: Reason) -> Result<(), Violation> {
        let key = self.route_names.route(route);
        let connect = self.take_opening(lane, key).ok_or(Violation::Answer(route))?;
        if let Some(connect) = connect {
            self.finish_connect(connect, Err(reason));
        }
        self.forget_opening(key);
        Ok(())
    }

    /// The connect behind an Open that is being answered, if it is there still; `None` if that route is not being opened.
    fn take_opening(&mut self, lane: LaneId, route: RouteId) -> Option<Option<ConnectId>> {
        let vqp = self.vqps.get_mut(route).filter(|v| v.lane == Some(lane) && v.is_open_sent);
        let Some(Phase::Opening(connect)) = vqp.map(|v| v.phase) else { return None };
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.opens_sent = lane.opens_sent.saturating_sub(1);
        }
        self.queue_lane(lane);
        Some(connect)
    }

    /// The peer holds nothing of this attempt: rings and slot are free at once.
    pub(crate) fn forget_opening(&mut self, route: RouteId) {
        if let Some(vqp) = self.vqps.get_mut(route) {
            vqp.close.on_app_released();
            vqp.close.on_severed();
        }
        self.try_release(route);
    }

    // ---- ends

    /// Answers a connect.
    pub(crate) fn finish_connect(&mut self, id: ConnectId, result: Result<Connection, Reason>) {
        let Some(connect) = self.remove_connect(id) else { return };
        if result.is_err() {
            self.counters.connects_failed += 1;
        }
        self.events.push_back(Event::Connected { app: connect.app, request: connect.request, result });
    }

    fn remove_connect(&mut self, id: ConnectId) -> Option<Connect> {
        let connect = self.connects.remove(id)?;
        if let Some(tenant) = self.apps.get_mut(connect.app) {
            tenant.connects.remove(&connect.request);
        }
        if connect.route.is_none() {
            self.stop_waiting(connect.app, Some(Far { host: connect.to.ip(), is_outgoing: true }));
        }
        Some(connect)
    }

    /// Gives up on a connect. There is no answer any more, unless it is already on its way as an event.
    pub fn cancel_connect<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, request: u64) {
        self.now = now;
        let Some(&id) = self.apps.get(app).and_then(|a| a.connects.get(&request)) else { return };
        self.abandon_connect(id);
    }

    /// Nobody waits for the connect any more. If Open was sent, the virtual QP stays until the peer answered.
    pub(crate) fn abandon_connect(&mut self, id: ConnectId) {
        let Some(route) = self.remove_connect(id).and_then(|c| c.route) else { return };
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        vqp.phase = Phase::Opening(None);
        vqp.close.on_app_released();
        if !vqp.is_open_sent {
            self.forget_opening(route);
        }
    }

    /// A connect took too long.
    pub(crate) fn on_connect_timeout(&mut self, id: ConnectId) {
        self.fail_opening(id, Reason::TimedOut);
    }

    /// Answers a connect that may be waiting for its peer's answer.
    pub(crate) fn fail_opening(&mut self, id: ConnectId, reason: Reason) {
        let Some(connect) = self.connects.get(id) else { return };
        let (app, request) = (connect.app, connect.request);
        self.abandon_connect(id);
        self.counters.connects_failed += 1;
        self.events.push_back(Event::Connected { app, request, result: Err(reason) });
    }
}

fn is_broadcast(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.is_broadcast())
}
