//! Connections that other hosts ask for: from the Open to the listener's application.
//!
//! The control plane has the listeners and decides; this asks it ([`Event::ConnectRequest`]) and carries the answer out. It must
//! answer every Open, and must reset what waits at a listener that is closed.

use std::net::SocketAddr;

use control::{Kind, Reason};
use verbs::{Provider, Time};

use super::Engine;
use super::endings::Why;
use crate::attempts::{Admitted, ParkedOpen};
use crate::event::{Admission, Event};
use crate::frame::{Open, check_ring, check_route};
use crate::ids::{AppId, LaneId, OpenId};
use crate::limits::RING_BYTES_MAX;
use crate::ring_size::RingSize;
use crate::ringpool::{RingPair, Waiter};
use crate::violation::Violation;
use crate::vqp::{NewVqp, Phase};

impl Engine {
    // ---- a listener's backlog

    /// A listener is closed: connections that wait at it are reset. The application gives their slots back like others.
    pub fn unlisten<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, port: u16) {
        self.see(now);
        let Some(tenant) = self.apps.get_mut(app) else { return };
        let routes = tenant.take_backlog(port);
        self.end_all(app, Why::Unlistened, routes);
        let waits = |p: &ParkedOpen| p.open.to_port == port && p.admitted.is_some_and(|a| a.admission.app == app);
        let parked = self.parked_opens.iter().filter(|(_, p)| waits(p));
        for id in parked.map(|(id, _)| id).collect::<Vec<_>>() {
            self.refuse_parked(id, Reason::NoListener);
        }
    }

    /// The application took a connection from its backlog.
    pub fn accepted(&mut self, app: AppId, port: u16, connection: u64) {
        let route = self.apps.get_mut(app).and_then(|tenant| tenant.leave_backlog(port, connection));
        if let Some(vqp) = route.and_then(|r| self.vqps.get_mut(r)) {
            vqp.leave_backlog();
        }
    }

    // ---- a peer's open

    /// The control plane is asked.
    pub(super) fn on_open<P: Provider>(&mut self, nic: &mut P, id: LaneId, open: &Open) -> Result<(), Violation> {
        check_ring(&open.ring, RingSize::fixed(RING_BYTES_MAX))?;
        check_route(open.route)?;
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        lane.on_open_received()?;
        let from = lane.peer();
        if open.kind == Kind::Unreliable.code()
            && let Err(reason) = self.start_unreliable(nic, id)
        {
            self.refuse_open(id, open.route, reason);
            return Ok(());
        }
        match self.parked_opens.insert(ParkedOpen { lane: id, open: *open, admitted: None }) {
            Some(asked) => {
                let &Open { to_port, kind, ring, .. } = open;
                self.events.push_back(Event::ConnectRequest {
                    open: asked,
                    from,
                    to_port,
                    kind,
                    ring_bytes: ring.size.first,
                });
            }
            None => self.refuse_open(id, open.route, Reason::LocalLimit),
        }
        Ok(())
    }

    /// The control plane's answer to [`Event::ConnectRequest`]. What it admitted comes to an end here if the lane is gone
    /// meanwhile, or the application.
    pub fn admit<P: Provider>(&mut self, now: Time, _nic: &mut P, open: OpenId, answer: Result<Admission, Reason>) {
        self.see(now);
        let admission = match answer {
            Ok(admission) => admission,
            Err(reason) => return self.refuse_parked(open, reason),
        };
        let Some(parked) = self.parked_opens.get_mut(open) else { return self.note_not_admitted(&admission) };
        let Some(tenant) = self.apps.get_here_mut(admission.app) else {
            self.note_not_admitted(&admission);
            return self.refuse_parked(open, Reason::NoListener);
        };
        let first = admission.ring_bytes.min(self.config.ring_bytes_max);
        let (allocated, size) = self.config.accepted_rings(first, parked.open.ring.size);
        parked.admitted = Some(Admitted { admission, allocated, size });
        tenant.pool.wait(allocated, Waiter::Open(open));
        self.start_waiting(admission.app);
        self.serve_rings(admission.app, allocated);
    }

    /// Nothing comes of a connection that the control plane admitted.
    fn note_not_admitted(&mut self, admission: &Admission) {
        let &Admission { app, connection, from, port, .. } = admission;
        self.events.push_back(Event::ConnectionOver { app, connection, peer: from, port: Some(port) });
    }

    /// There are rings for an open that waited for them.
    pub(super) fn serve_open(&mut self, id: OpenId) {
        let Some((parked, admitted)) = self.take_parked(id).and_then(|p| Some((p, p.admitted?))) else { return };
        let app = admitted.admission.app;
        let rings = self.apps.get_mut(app).and_then(|a| a.pool.take(admitted.allocated));
        let result = match rings {
            Some(rings) => self.accept(parked.lane, &parked.open, &admitted, rings),
            None => Err(Reason::LocalLimit),
        };
        if let Err(reason) = result {
            self.note_not_admitted(&admitted.admission);
            self.refuse_open(parked.lane, parked.open.route, reason);
        }
    }

    fn accept(&mut self, lane: LaneId, open: &Open, admitted: &Admitted, rings: RingPair) -> Result<(), Reason> {
        let &Admitted { admission, allocated, size } = admitted;
        let Admission { app, connection, kind, from, port, .. } = admission;
        let to = open.to_address;
        let local = SocketAddr::new(if self.is_own(to) { to } else { self.local_address() }, port);
        let peer = SocketAddr::new(from, open.from_port);
        let (id, phase) = (connection, Phase::Accepting);
        let route = self.add_vqp(NewVqp { id, app, lane, phase, rings, size, allocated, local, peer, kind })?;
        let vqp = self.vqps.get_mut(route).expect("made above");
        vqp.on_open(open);
        let connection = vqp.connection();
        self.hold_if_far(route);
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.enter_backlog(port, id, route);
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

    /// The control plane does not admit an open, or there will be no rings for it.
    pub(super) fn refuse_parked(&mut self, id: OpenId, reason: Reason) {
        let Some(parked) = self.take_parked(id) else { return };
        if let Some(admitted) = &parked.admitted {
            self.note_not_admitted(&admitted.admission);
        }
        self.refuse_open(parked.lane, parked.open.route, reason);
    }

    /// The peer's routes of a lane's opens that have no answer.
    pub(super) fn parked_routes(&self, lane: LaneId) -> Vec<u32> {
        self.parked_opens.iter().filter(|(_, p)| p.lane == lane).map(|(_, p)| p.open.route).collect()
    }

    /// The lane is gone: its opens need no answer.
    pub(super) fn drop_parked_opens(&mut self, lane: LaneId) {
        let of_lane = self.parked_opens.iter().filter(|(_, p)| p.lane == lane).map(|(id, _)| id);
        for id in of_lane.collect::<Vec<_>>() {
            if let Some(admitted) = self.take_parked(id).and_then(|p| p.admitted) {
                self.note_not_admitted(&admitted.admission);
            }
        }
    }

    fn take_parked(&mut self, id: OpenId) -> Option<ParkedOpen> {
        let parked = self.parked_opens.remove(id)?;
        if let Some(admitted) = &parked.admitted {
            self.stop_waiting(admitted.admission.app);
        }
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
