//! What both ends of a lane tell each other after a reset, before its connections go on (docs/inside/wire.md).
//!
//! Owns which connections were reported by each end. It must never say that all is done before both ends have reported
//! everything.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::RouteId;

/// A part of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToTell {
    Connection(RouteId),
    /// An open of the peer, by its route id, that will be answered.
    ParkedOpen(u32),
}

/// What one end still has to send and to receive.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// Connections of the lane when it was reset.
    routes: Vec<RouteId>,
    /// Opens of the peer, by its route ids, that will be answered.
    parked: Vec<u32>,
    /// How many of `routes`, and then of `parked`, were reported.
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

impl Resync {
    /// Of a lane's connections, and of the peer's opens (by its route ids) that will be answered.
    pub(crate) fn new(parked: Vec<u32>) -> Self {
        Self { parked, ..Self::default() }
    }

    /// A connection of the lane.
    pub(crate) fn add(&mut self, route: RouteId) {
        self.routes.push(route);
    }

    /// The peer knows of a connection, if it did not end it.
    pub(crate) fn expect(&mut self, route: RouteId) {
        self.unnamed.insert(route);
    }

    /// The peer knows of a connection by its own route id.
    pub(crate) fn expect_by(&mut self, peer_route: u32, route: RouteId) {
        self.unnamed.insert(route);
        self.by_peer_route.insert(peer_route, route);
    }

    // ---- telling

    /// Whether the last message was made. Then everything that was reported is confirmed when this is asked.
    pub(crate) fn confirm_told(&mut self) -> bool {
        self.is_all_told |= self.is_last_told;
        self.is_last_told
    }

    /// The last message was made.
    pub(crate) fn is_last_told(&self) -> bool {
        self.is_last_told
    }

    /// What is to be reported next. `None`: nothing is left.
    pub(crate) fn next_to_tell(&mut self) -> Option<ToTell> {
        let next = match self.routes.get(self.told) {
            Some(&route) => Some(ToTell::Connection(route)),
            None => self.parked.get(self.told - self.routes.len()).map(|&open| ToTell::ParkedOpen(open)),
        };
        match next {
            Some(_) => self.told += 1,
            None => self.is_last_told = true,
        }
        next
    }

    // ---- hearing

    /// A message of the peer was taken.
    pub(crate) fn on_heard(&mut self, is_last: bool) {
        self.is_all_heard = is_last;
    }

    /// The peer named a connection.
    pub(crate) fn on_named(&mut self, route: RouteId) {
        self.unnamed.remove(&route);
    }

    /// The connection that the peer knows by this route id of its own.
    pub(crate) fn by_peer_route(&self, peer_route: u32) -> Option<RouteId> {
        self.by_peer_route.get(&peer_route).copied()
    }

    /// Whether this end kept nothing of the old incarnation.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    // ---- going on

    /// Whether both ends have reported everything.
    pub(crate) fn is_done(&self) -> bool {
        self.is_all_told && self.is_all_heard
    }

    /// Connections of the lane when it was reset.
    pub(crate) fn routes(&self) -> &[RouteId] {
        &self.routes
    }

    /// Connections that the peer did not name.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = RouteId> {
        self.unnamed.iter().copied()
    }

    /// Of an end that severed the lane's connections while the peer kept them.
    pub(crate) fn nothing_kept() -> Self {
        Self { is_fresh: true, ..Self::default() }
    }
}
