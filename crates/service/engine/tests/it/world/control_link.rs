//! The daemons' part in small: control links, on which lanes are made, reset and lost.

use std::time::Duration;

use control::{LaneOffer, Reason};
use verbs::{Endpoint, RoceEndpoint, RocePort, VerbsError};

use super::{Arrival, Link, World, addr};

impl World {
    pub(super) fn dial(&mut self, i: usize, to: usize) {
        if self.draining.contains(&(i, to)) {
            self.woken.insert((i, to));
            return;
        }
        self.send_link(i, to, Link::Dial);
        self.offer(i, to);
    }

    fn offer(&mut self, i: usize, to: usize) {
        if self.offered.insert((i, to)) {
            let h = &mut self.hosts[i];
            match h.engine.lane_offer(&mut h.nic, addr(to)) {
                Ok(offer) => {
                    self.hosts[i].ud_qpn = datagram_port(&offer).map_or(0, |port| port.qpn.0);
                    self.send_link(i, to, Link::Offer(offer));
                }
                Err(VerbsError::Full { .. }) => {
                    self.forget_round(i, to);
                    self.send_link(i, to, Link::Reset { resumes: false, reason: Reason::LocalLimit });
                }
                Err(e) => panic!("host {i} makes no lane to {to}: {e}"),
            }
        }
    }

    pub(super) fn forget_round(&mut self, i: usize, to: usize) {
        self.offered.remove(&(i, to));
        self.draining.remove(&(i, to));
        self.resuming.remove(&(i, to));
        self.woken.remove(&(i, to));
    }

    pub(super) fn send_link(&mut self, from: usize, to: usize, message: Link) {
        if self.no_links {
            self.offered.remove(&(from, to));
            return;
        }
        let at = self.now + Duration::from_micros(100);
        self.fly(at, Arrival::Link { from, to, message });
    }

    /// The control link between two hosts breaks.
    pub(crate) fn break_link(&mut self, a: usize, b: usize, reason: Reason) {
        // What was on the link is lost with it.
        let on_link = |(f, t): (usize, usize)| (f, t) == (a, b) || (f, t) == (b, a);
        self.flying.retain(|_, x| !matches!(x, Arrival::Link { from, to, .. } if on_link((*from, *to))));
        for (i, peer) in [(a, b), (b, a)] {
            self.forget_round(i, peer);
            let h = &mut self.hosts[i];
            h.engine.lane_lost(self.now, &mut h.nic, addr(peer), reason);
        }
    }

    pub(super) fn on_link(&mut self, from: usize, i: usize, message: Link) {
        let now = self.now;
        self.hosts[i].wake();
        if self.draining.contains(&(i, from)) && !matches!(message, Link::Reset { .. } | Link::Rest) {
            return;
        }
        match message {
            Link::Dial => self.offer(i, from),
            Link::Offer(offer) => {
                self.offer(i, from);
                if !self.offered.contains(&(i, from)) {
                    return;
                }
                let h = &mut self.hosts[i];
                h.engine.lane_accept(&mut h.nic, addr(from), &offer).unwrap();
                if self.resuming.contains(&(i, from)) {
                    self.tell_routes(i, from);
                } else {
                    self.send_link(i, from, Link::Ready);
                }
            }
            Link::Routes(routes) => {
                let h = &mut self.hosts[i];
                match h.engine.lane_take_routes(now, &mut h.nic, addr(from), &routes) {
                    Ok(()) => self.send_link(i, from, Link::RoutesTaken),
                    Err(detail) => {
                        h.lane_failures.push(detail);
                        self.forget_round(i, from);
                        return self.send_link(i, from, Link::Reset { resumes: false, reason: Reason::LaneFailed });
                    }
                }
                self.try_ready(i, from);
            }
            Link::RoutesTaken => self.tell_routes(i, from),
            Link::Ready => {
                let h = &mut self.hosts[i];
                h.engine.lane_ready(now, &mut h.nic, addr(from));
                if h.gives_lanes_up {
                    h.engine.lane_lost(now, &mut h.nic, addr(from), Reason::Closed);
                    self.forget_round(i, from);
                    self.send_link(i, from, Link::Reset { resumes: false, reason: Reason::Closed });
                }
            }
            Link::Rest => {
                self.offered.remove(&(i, from));
                let h = &mut self.hosts[i];
                h.engine.lane_rest(now, &mut h.nic, addr(from));
                if !self.draining.remove(&(i, from)) {
                    self.send_link(i, from, Link::Rest);
                }
                self.resuming.insert((i, from));
                if self.woken.remove(&(i, from)) {
                    self.offer(i, from);
                }
            }
            Link::Reset { resumes: true, reason } => {
                self.offered.remove(&(i, from));
                if !self.draining.remove(&(i, from)) {
                    let h = &mut self.hosts[i];
                    h.engine.lane_reset(now, &mut h.nic, addr(from));
                    self.send_link(i, from, Link::Reset { resumes: true, reason });
                }
                self.resuming.insert((i, from));
                self.offer(i, from);
            }
            Link::Reset { resumes: false, reason } => {
                self.forget_round(i, from);
                let h = &mut self.hosts[i];
                // The peer's limit, seen from here.
                let reason = if reason == Reason::LocalLimit { Reason::PeerLimit } else { reason };
                h.engine.lane_lost(now, &mut h.nic, addr(from), reason);
            }
        }
    }

    fn tell_routes(&mut self, i: usize, to: usize) {
        match self.hosts[i].engine.lane_routes(addr(to)) {
            Some(mut routes) => {
                if i == 1
                    && let Some(twist) = self.twist.take()
                {
                    twist(&mut routes);
                }
                self.send_link(i, to, Link::Routes(routes));
            }
            None => self.try_ready(i, to),
        }
    }

    fn try_ready(&mut self, i: usize, to: usize) {
        if self.hosts[i].engine.lane_goes_on(addr(to)) && self.resuming.remove(&(i, to)) {
            self.send_link(i, to, Link::Ready);
        }
    }
}

/// Where an offer says that its host takes datagrams.
fn datagram_port(offer: &LaneOffer) -> Option<RocePort> {
    let datagrams = offer.datagrams.as_ref()?;
    Some(RocePort::parse(&Endpoint::new(datagrams.endpoint.clone()).unwrap()).unwrap())
}

/// The queue pair that an offer is of.
pub(crate) fn offered(offer: &LaneOffer) -> RoceEndpoint {
    RoceEndpoint::parse(&Endpoint::new(offer.endpoint.clone()).unwrap()).unwrap()
}
