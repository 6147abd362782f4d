//! Listeners of local applications, and connections that arrive for them.
//!
//! Owns ports and backlogs. It must never hold more for a listener than its backlog, and must answer every Open.

use std::net::SocketAddr;

use control::{Kind, Reason};
use verbs::{Provider, Time};

use super::Engine;
use crate::attempts::ParkedOpen;
use crate::event::{Event, Listen};
use crate::frame::{Open, check_ring, check_route};
use crate::ids::{AppId, LaneId, ParkedId};
use crate::lane::Lane;
use crate::limits::RING_BYTES_MAX;
use crate::listeners::Listener;
use crate::ring_size::RingSize;
use crate::ringpool::{RingPair, Waiter};
use crate::users::Far;
use crate::violation::Violation;
use crate::vqp::{NewVqp, Phase};

impl Engine {
    /// Listens on a port, 0 for any free one. At most `backlog` connections wait (at least 1).
    pub fn listen(&mut self, app: AppId, listen: Listen) -> Result<SocketAddr, Reason> {
        let Listen { port, backlog, ring_bytes, kind } = listen;
        let uid = self.apps.get_here(app).ok_or(Reason::AppFault)?.uid();
        if self.listeners.len() as u64 >= u64::from(self.config.listeners_max) {
            return Err(Reason::LocalLimit);
        }
        self.users.check_listener(uid)?;
        let port = match port {
            0 => self.ports.free_port(|port| self.listeners.is_taken(port)).ok_or(Reason::LocalLimit)?,
            port => port,
        };
        if self.listeners.is_taken(port) {
            return Err(Reason::PortInUse);
        }
        let ring_bytes = if ring_bytes == 0 { 0 } else { self.config.ring_bytes(ring_bytes) };
        let backlog = backlog.clamp(1, self.config.backlog_max);
        self.listeners.insert(port, Listener::new(app, backlog, ring_bytes, kind));
        self.users.add_listener(uid);
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.add_listener(port);
        }
        Ok(SocketAddr::new(self.local_address(), port))
    }

    /// Stops listening. Connections that wait are reset; the application gives their slots back like others.
    pub fn unlisten<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, port: u16) {
        self.see(now);
        self.close_listener(app, port);
    }

    pub(super) fn close_listener(&mut self, app: AppId, port: u16) {
        let Some(listener) = self.listeners.remove_of(app, port) else { return };
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.drop_listener(port);
            self.users.drop_listener(tenant.uid());
        }
        for route in listener.into_routes() {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            vqp.leave_backlog();
            if vqp.is_app_released() {
                // How it ends was decided when the application gave it back.
                continue;
            }
            vqp.abort(Reason::ResetByPeer);
            vqp.publish_reset(Reason::Closed);
            let at = vqp.at();
            self.notify(at);
            self.update(route);
        }
        let parked = self.parked_opens.iter().filter(|(_, p)| p.app == app && p.open.to_port == port);
        for id in parked.map(|(id, _)| id).collect::<Vec<_>>() {
            self.refuse_parked(id, Reason::NoListener);
        }
    }

    /// The application took a connection from its backlog.
    pub fn accepted(&mut self, app: AppId, port: u16, connection: u64) {
        let route = self.listeners.of(app, port).and_then(|listener| listener.remove(connection));
        if let Some(vqp) = route.and_then(|r| self.vqps.get_mut(r)) {
            vqp.leave_backlog();
        }
    }

    // ---- a peer's open

    pub(super) fn on_open<P: Provider>(&mut self, _nic: &mut P, id: LaneId, open: &Open) -> Result<(), Violation> {
        check_ring(&open.ring, RingSize::fixed(RING_BYTES_MAX))?;
        check_route(open.route)?;
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        lane.on_open_received()?;
        if let Err(reason) = self.admit(id, open) {
            self.refuse_open(id, open.route, reason);
        }
        Ok(())
    }

    /// Gives an open to its listener, or parks it for rings.
    fn admit(&mut self, lane: LaneId, open: &Open) -> Result<(), Reason> {
        let from = self.lanes.get(lane).map(Lane::peer).ok_or(Reason::LaneFailed)?;
        let listener = self.listeners.get(open.to_port).ok_or(Reason::NoListener)?;
        listener.check_kind(open.kind)?;
        if !listener.has_place(self.config.backlog_max) {
            return Err(Reason::BacklogFull);
        }
        let app = listener.app();
        let first = listener.ring_bytes_for(open.ring.size.first).min(self.config.ring_bytes_max);
        let (allocated, size) = self.config.accepted_rings(first, open.ring.size);
        let full = self.is_full();
        let tenant = self.apps.get_mut(app).ok_or(Reason::NoListener)?;
        if full || tenant.held() >= self.config.connections_per_app_max {
            return Err(Reason::LocalLimit);
        }
        self.users.check_connection(tenant.uid())?;
        if let Some(rings) = tenant.pool.take(allocated) {
            return self.accept(&ParkedOpen { lane, from, open: *open, app, allocated, size }, rings);
        }
        let parked = ParkedOpen { lane, from, open: *open, app, allocated, size };
        let id = self.parked_opens.insert(parked).ok_or(Reason::LocalLimit)?;
        tenant.pool.wait(allocated, Waiter::Open(id));
        self.start_waiting(app, Some(Far { host: from, is_outgoing: false }));
        if let Some(listener) = self.listeners.get_mut(open.to_port) {
            listener.add_parked();
        }
        self.ask_for_rings(app, allocated);
        Ok(())
    }

    fn accept(&mut self, parked: &ParkedOpen, rings: RingPair) -> Result<(), Reason> {
        let ParkedOpen { lane, app, allocated, size, ref open, .. } = *parked;
        let peer = self.lanes.get(lane).map(Lane::peer).ok_or(Reason::LaneFailed)?;
        let to = open.to_address;
        let local = SocketAddr::new(if self.is_own(to) { to } else { self.local_address() }, open.to_port);
        let peer = SocketAddr::new(peer, open.from_port);
        let (phase, kind) = (Phase::Accepting, self.listeners.get(open.to_port).map_or(Kind::Stream, Listener::kind));
        let route = self.add_vqp(NewVqp { app, lane, phase, rings, size, allocated, local, peer, kind })?;
        let vqp = self.vqps.get_mut(route).expect("made above");
        vqp.on_open(open);
        let (connection, port) = (vqp.connection(), open.to_port);
        if let Some(listener) = self.listeners.get_mut(port) {
            listener.add(connection.id, route);
        }
        self.counters.accepts += 1;
        self.events.push_back(Event::Incoming { app, port, connection });
        self.update(route);
        Ok(())
    }

    fn refuse_open(&mut self, id: LaneId, route: u32, reason: Reason) {
        self.counters.opens_refused += 1;
        if self.lanes.get_mut(id).is_some_and(|lane| lane.refuse_open(route, refusal(reason))) {
            self.lanes.queue(id);
        }
    }

    /// Rings are there for an open that waited for them.
    pub(super) fn serve_open(&mut self, id: ParkedId) {
        let Some(parked) = self.take_parked(id) else { return };
        let rings = self.apps.get_mut(parked.app).and_then(|a| a.pool.take(parked.allocated));
        let result = match rings {
            Some(rings) => self.accept(&parked, rings),
            None => Err(Reason::LocalLimit),
        };
        if let Err(reason) = result {
            self.refuse_open(parked.lane, parked.open.route, reason);
        }
    }

    /// There will be no rings for a parked open, or nobody to take it.
    pub(super) fn refuse_parked(&mut self, id: ParkedId, reason: Reason) {
        if let Some(parked) = self.take_parked(id) {
            self.refuse_open(parked.lane, parked.open.route, reason);
        }
    }

    /// The peer's routes of a lane's opens that wait for rings.
    pub(super) fn parked_routes(&self, lane: LaneId) -> Vec<u32> {
        self.parked_opens.iter().filter(|(_, p)| p.lane == lane).map(|(_, p)| p.open.route).collect()
    }

    /// The lane is gone: its opens need no answer.
    pub(super) fn drop_parked_opens(&mut self, lane: LaneId) {
        let of_lane = self.parked_opens.iter().filter(|(_, p)| p.lane == lane).map(|(id, _)| id);
        for id in of_lane.collect::<Vec<_>>() {
            self.take_parked(id);
        }
    }

    fn take_parked(&mut self, id: ParkedId) -> Option<ParkedOpen> {
        let parked = self.parked_opens.remove(id)?;
        if let Some(listener) = self.listeners.of(parked.app, parked.open.to_port) {
            listener.drop_parked();
        }
        self.stop_waiting(parked.app, Some(Far { host: parked.from, is_outgoing: false }));
        Some(parked)
    }
}

/// The reason that the peer gets for a refusal of this host: a limit here is the peer's limit there.
fn refusal(reason: Reason) -> u32 {
    match reason {
        Reason::LocalLimit => Reason::PeerLimit.code(),
        other => other.code(),
    }
}
