//! Which connection it is: its number on this host, its two ends, and the names by which the engines know them.

use std::net::SocketAddr;

use control::Kind;
use verbs::{RemoteAddr, Rkey};

use crate::event::Event;
use crate::ids::{AppId, RouteId};
use crate::stages::Whose;

/// What stays the same as long as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    /// Its number on this host.
    pub(super) id: u64,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) kind: Kind,
    /// Its application connected; else it accepted.
    pub(super) is_outgoing: bool,
    /// The number is another attempt's.
    pub(super) has_lost_number: bool,
}

impl Identity {
    /// What the daemon learns when nothing of it is in use, unless its number goes on.
    pub(super) fn over(&self, app: AppId) -> Option<Event> {
        let port = (!self.is_outgoing).then_some(self.local.port());
        let (connection, peer) = (self.id, self.peer.ip());
        (!self.has_lost_number).then_some(Event::ConnectionOver { app, connection, peer, port })
    }

    /// As what its messages are looked at.
    pub(super) fn whose(&self, route: RouteId, app: AppId) -> Whose {
        Whose { route, app, connection: self.id, peer: self.peer }
    }
}

/// By what each end names the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routes {
    /// Its route id, by which the peer names it.
    pub(super) own: u32,
    /// The peer's, and where its receive ring is.
    pub(super) peer: u32,
    peer_ring: RemoteAddr,
}

impl Routes {
    /// The peer is not known yet.
    pub(super) fn new(own: u32) -> Self {
        Self { own, peer: 0, peer_ring: RemoteAddr { addr: 0, rkey: Rkey(0) } }
    }

    /// The peer's end is known.
    pub(super) fn learn(&mut self, peer: u32, ring: RemoteAddr) {
        (self.peer, self.peer_ring) = (peer, ring);
    }

    /// The peer's ring is this one.
    pub(super) fn set_ring(&mut self, ring: RemoteAddr) {
        self.peer_ring = ring;
    }

    /// The place in the peer's ring of what is at `at` of either.
    #[inline]
    pub(super) fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.peer_ring.addr + at, rkey: self.peer_ring.rkey }
    }
}
