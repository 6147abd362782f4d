//! Listeners of local applications, and connections that arrive for them.
//!
//! Owns ports and backlogs. It must never hold more for a listener than its backlog, nor let an Open go unanswered.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use control::{Kind, Reason};
use verbs::{Provider, Time};

use crate::AppId;
use crate::connect::NewVqp;
use crate::engine::Engine;
use crate::event::Event;
use crate::frame::Open;
use crate::immediate::check_route;
use crate::lane::{LaneId, Nak};
use crate::limits::{OPENS_PENDING_MAX, RING_BYTES_MAX};
use crate::pump::refusal;
use crate::recv::check_ring;
use crate::ringpool::{RingPair, Waiter};
use crate::table::key;
use crate::users::Far;
use crate::violation::Violation;
use crate::vqp::{Phase, RouteId};

key!(
    /// A peer's open that waits for rings.
    ParkedId
);

/// A port that an application listens on.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) app: AppId,
    backlog: u32,
    /// Ring size that it wants, 0 for that of the connecting side.
    ring_bytes: u32,
    kind: Kind,
    /// Connections that wait for `accept`, by number; those of this host have no route.
    waiting: BTreeMap<u64, Option<RouteId>>,
    /// Places of opens that wait for rings.
    parked: u32,
}

impl Listener {
    /// Takes a place in the backlog for a connection; false if there is none.
    pub(crate) fn take_place(&mut self, connection: u64, backlog_max: u32) -> bool {
        let free = self.has_place(backlog_max);
        if free {
            self.waiting.insert(connection, None);
        }
        free
    }

    /// Refuses a connection of another kind.
    pub(crate) fn check_kind(&self, code: u32) -> Result<(), Reason> {
        if code == self.kind.code() { Ok(()) } else { Err(Reason::WrongKind) }
    }

    fn has_place(&self, backlog_max: u32) -> bool {
        self.waiting.len() as u64 + u64::from(self.parked) < u64::from(self.backlog.min(backlog_max))
    }

    /// The ring size of a connection whose other side wants `asked`.
    pub(crate) fn ring_bytes_for(&self, asked: u32) -> u32 {
        if self.ring_bytes == 0 { asked } else { asked.min(self.ring_bytes) }
    }
}

/// A peer's open that waits for rings. Its backlog place is taken.
#[derive(Debug)]
pub(crate) struct ParkedOpen {
    lane: LaneId,
    from: IpAddr,
    open: Open,
    app: AppId,
    ring_bytes: u32,
}

impl Engine {
    /// Listens on a port, 0 for any free one. At most `backlog` connections wait (at least 1); `ring_bytes` 0 leaves the size
    /// to the connecting side.
    pub fn listen(&mut self, app: AppId, port: u16, backlog: u32, ring_bytes: u32) -> Result<SocketAddr, Reason> {
        self.listen_as(app, port, backlog, ring_bytes, Kind::Stream)
    }

    /// As [`Engine::listen`], for connections of `kind`.
    pub fn listen_as(
        &mut self,
        app: AppId,
        port: u16,
        backlog: u32,
        ring_bytes: u32,
        kind: Kind,
    ) -> Result<SocketAddr, Reason> {
        let uid = self.apps.get(app).filter(|a| !a.leaving).ok_or(Reason::AppFault)?.uid;
        if self.listeners.len() as u64 >= u64::from(self.config.listeners_max) {
            return Err(Reason::LocalLimit);
        }
        self.users.check_listener(uid)?;
        let port = if port == 0 { self.free_port().ok_or(Reason::LocalLimit)? } else { port };
        if self.listeners.contains_key(&port) {
            return Err(Reason::PortInUse);
        }
        let ring_bytes = if ring_bytes == 0 { 0 } else { self.config.ring_bytes(ring_bytes) };
        let backlog = backlog.clamp(1, self.config.backlog_max);
        self.listeners.insert(port, Listener { app, backlog, ring_bytes, kind, waiting: BTreeMap::new(), parked: 0 });
        self.users.add_listener(uid);
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.listeners.insert(port);
        }
        Ok(SocketAddr::new(self.local_address(), port))
    }

    /// Stops listening. Connections that wait are reset; the application gives their slots back like others.
    pub fn unlisten<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, port: u16) {
        self.now = now;
        self.close_listener(app, port);
    }

    pub(crate) fn close_listener(&mut self, app: AppId, port: u16) {
        if self.listeners.get(&port).is_none_or(|l| l.app != app) {
            return;
        }
        let Some(listener) = self.listeners.remove(&port) else { return };
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.listeners.remove(&port);
            self.users.drop_listener(tenant.uid);
        }
        for route in listener.waiting.into_values().flatten() {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            vqp.backlog_port = None;
            if vqp.close.is_app_released() {
                // How it ends was decided when the application gave it back.
                continue;
            }
            vqp.close.on_abort(Reason::ResetByPeer);
            vqp.publish_reset(Reason::Closed);
            let slot = vqp.slot;
            self.notify(app, slot);
            self.update(route);
        }
        let parked = self.parked_opens.iter().filter(|(_, p)| p.app == app && p.open.to_port == port);
        for id in parked.map(|(id, _)| id).collect::<Vec<_>>() {
            self.refuse_parked(id, Reason::NoListener);
        }
    }

    /// The application took a connection from its backlog.
    pub fn accepted(&mut self, app: AppId, port: u16, connection: u64) {
        let Some(listener) = self.listeners.get_mut(&port).filter(|l| l.app == app) else { return };
        let route = listener.waiting.remove(&connection).flatten();
        if let Some(vqp) = route.and_then(|r| self.vqps.get_mut(r)) {
            vqp.backlog_port = None;
        }
    }

    /// A connection is over or reset: its backlog place, if it has one, is free.
    pub(crate) fn free_backlog_place(&mut self, port: Option<u16>, connection: u64) {
        if let Some(listener) = port.and_then(|p| self.listeners.get_mut(&p)) {
            listener.waiting.remove(&connection);
        }
    }

    fn free_port(&mut self) -> Option<u16> {
        (0..=u16::MAX).find_map(|_| {
            let port = self.next_ephemeral();
            (!self.listeners.contains_key(&port)).then_some(port)
        })
    }

    // ---- a peer's open

    pub(crate) fn on_open<P: Provider>(&mut self, _nic: &mut P, id: LaneId, open: &Open) -> Result<(), Violation> {
        check_ring(&open.ring, RING_BYTES_MAX)?;
        check_route(open.route)?;
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        if lane.opens_received >= OPENS_PENDING_MAX {
            return Err(Violation::TooManyOpens(OPENS_PENDING_MAX));
        }
        lane.opens_received += 1;
        if let Err(reason) = self.admit(id, open) {
            self.refuse_open(id, open.route, reason);
        }
        Ok(())
    }

    /// Gives an open to its listener, or parks it for rings.
    fn admit(&mut self, lane: LaneId, open: &Open) -> Result<(), Reason> {
        let from = self.lanes.get(lane).map(|l| l.peer).ok_or(Reason::LaneFailed)?;
        let listener = self.listeners.get(&open.to_port).ok_or(Reason::NoListener)?;
        listener.check_kind(open.kind)?;
        if !listener.has_place(self.config.backlog_max) {
            return Err(Reason::BacklogFull);
        }
        let app = listener.app;
        let ring_bytes = listener.ring_bytes_for(open.ring.bytes).min(self.config.ring_bytes_max);
        let full = self.is_full();
        let tenant = self.apps.get_mut(app).ok_or(Reason::NoListener)?;
        if full || tenant.connections + tenant.waiting >= self.config.connections_per_app_max {
            return Err(Reason::LocalLimit);
        }
        self.users.check_connection(tenant.uid)?;
        if let Some(rings) = tenant.pool.take(ring_bytes) {
            return self.accept(lane, open, app, ring_bytes, rings);
        }
        let parked = ParkedOpen { lane, from, open: *open, app, ring_bytes };
        let id = self.parked_opens.insert(parked).ok_or(Reason::LocalLimit)?;
        tenant.pool.wait(ring_bytes, Waiter::Open(id));
        self.start_waiting(app, Some(Far { host: from, is_outgoing: false }));
        if let Some(listener) = self.listeners.get_mut(&open.to_port) {
            listener.parked += 1;
        }
        self.ask_for_rings(app, ring_bytes);
        Ok(())
    }

    fn accept(
        &mut self,
        lane: LaneId,
        open: &Open,
        app: AppId,
        ring_bytes: u32,
        rings: RingPair,
    ) -> Result<(), Reason> {
        let peer = self.lanes.get(lane).map(|l| l.peer).ok_or(Reason::LaneFailed)?;
        let to = open.to_address;
        let local = SocketAddr::new(if self.is_own(to) { to } else { self.local_address() }, open.to_port);
        let peer = SocketAddr::new(peer, open.from_port);
        let (phase, kind) = (Phase::Accepting, self.listeners.get(&open.to_port).map_or(Kind::Stream, |l| l.kind));
        let route = self.add_vqp(NewVqp { app, lane, phase, rings, ring_bytes, local, peer, kind })?;
        let vqp = self.vqps.get_mut(route).expect("made above");
        vqp.is_open_sent = true;
        vqp.peer_route = open.route;
        vqp.peer_ring = crate::pump::remote_ring(&open.ring);
        vqp.backlog_port = Some(open.to_port);
        let (connection, port) = (vqp.connection(), open.to_port);
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.waiting.insert(connection.id, Some(route));
        }
        self.counters.accepts += 1;
        self.events.push_back(Event::Incoming { app, port, connection });
        self.update(route);
        Ok(())
    }

    fn refuse_open(&mut self, id: LaneId, route: u32, reason: Reason) {
        self.counters.opens_refused += 1;
        if let Some(lane) = self.lanes.get_mut(id).filter(|l| l.can_answer()) {
            lane.naks.push_back(Nak { route, reason: refusal(reason) });
            self.queue_lane(id);
        }
    }

    /// Rings are there for an open that waited for them.
    pub(crate) fn serve_open(&mut self, id: ParkedId) {
        let Some(parked) = self.take_parked(id) else { return };
        let rings = self.apps.get_mut(parked.app).and_then(|a| a.pool.take(parked.ring_bytes));
        let result = match rings {
            Some(rings) => self.accept(parked.lane, &parked.open, parked.app, parked.ring_bytes, rings),
            None => Err(Reason::LocalLimit),
        };
        if let Err(reason) = result {
            self.refuse_open(parked.lane, parked.open.route, reason);
        }
    }

    /// There will be no rings for a parked open, or nobody to take it.
    pub(crate) fn refuse_parked(&mut self, id: ParkedId, reason: Reason) {
        if let Some(parked) = self.take_parked(id) {
            self.refuse_open(parked.lane, parked.open.route, reason);
        }
    }

    /// The peer's routes of a lane's opens that wait for rings.
    pub(crate) fn parked_routes(&self, lane: LaneId) -> Vec<u32> {
        self.parked_opens.iter().filter(|(_, p)| p.lane == lane).map(|(_, p)| p.open.route).collect()
    }

    /// The lane is gone: its opens need no answer.
    pub(crate) fn drop_parked_opens(&mut self, lane: LaneId) {
        let of_lane = self.parked_opens.iter().filter(|(_, p)| p.lane == lane).map(|(id, _)| id);
        for id in of_lane.collect::<Vec<_>>() {
            self.take_parked(id);
        }
    }

    fn take_parked(&mut self, id: ParkedId) -> Option<ParkedOpen> {
        let parked = self.parked_opens.remove(id)?;
        if let Some(listener) = self.listeners.get_mut(&parked.open.to_port).filter(|l| l.app == parked.app) {
            listener.parked = listener.parked.saturating_sub(1);
        }
        self.stop_waiting(parked.app, Some(Far { host: parked.from, is_outgoing: false }));
        Some(parked)
    }
}
