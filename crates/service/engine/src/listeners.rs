//! Ports that applications listen on, and the connections that wait at them.
//!
//! Owns backlogs, and the numbers that free ports get. It must never hold more for a listener than its backlog.

use std::collections::BTreeMap;

use control::{Kind, Reason};

use crate::ids::{AppId, RouteId};
use crate::limits::EPHEMERAL_FIRST;

/// A port that an application listens on.
#[derive(Debug)]
pub(crate) struct Listener {
    app: AppId,
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
    pub(crate) fn new(app: AppId, backlog: u32, ring_bytes: u32, kind: Kind) -> Self {
        Self { app, backlog, ring_bytes, kind, waiting: BTreeMap::new(), parked: 0 }
    }

    pub(crate) fn app(&self) -> AppId {
        self.app
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// A connection waits for `accept`.
    pub(crate) fn add(&mut self, connection: u64, route: RouteId) {
        self.waiting.insert(connection, Some(route));
    }

    /// A connection waits no more. Its route, if it goes through a lane.
    pub(crate) fn remove(&mut self, connection: u64) -> Option<RouteId> {
        self.waiting.remove(&connection).flatten()
    }

    /// Connections of lanes that wait.
    pub(crate) fn into_routes(self) -> impl Iterator<Item = RouteId> {
        self.waiting.into_values().flatten()
    }

    /// An open waits for rings, in a place of the backlog.
    pub(crate) fn add_parked(&mut self) {
        self.parked += 1;
    }

    pub(crate) fn drop_parked(&mut self) {
        self.parked = self.parked.saturating_sub(1);
    }

    /// A connection of this host takes a place in the backlog.
    pub(crate) fn take_place(&mut self, connection: u64) {
        self.waiting.insert(connection, None);
    }

    /// Refuses a connection of another kind.
    pub(crate) fn check_kind(&self, code: u32) -> Result<(), Reason> {
        if code == self.kind.code() { Ok(()) } else { Err(Reason::WrongKind) }
    }

    /// Whether there is a place in the backlog.
    pub(crate) fn has_place(&self, backlog_max: u32) -> bool {
        self.waiting.len() as u64 + u64::from(self.parked) < u64::from(self.backlog.min(backlog_max))
    }

    /// The ring size of a connection whose other side wants `asked`.
    pub(crate) fn ring_bytes_for(&self, asked: u32) -> u32 {
        if self.ring_bytes == 0 { asked } else { asked.min(self.ring_bytes) }
    }
}

/// The listeners by port.
#[derive(Debug, Default)]
pub(crate) struct Listeners(BTreeMap<u16, Listener>);

impl Listeners {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_taken(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }

    pub(crate) fn get(&self, port: u16) -> Option<&Listener> {
        self.0.get(&port)
    }

    pub(crate) fn get_mut(&mut self, port: u16) -> Option<&mut Listener> {
        self.0.get_mut(&port)
    }

    /// The listener of an application at a port.
    pub(crate) fn of(&mut self, app: AppId, port: u16) -> Option<&mut Listener> {
        self.0.get_mut(&port).filter(|l| l.app == app)
    }

    /// Takes a port that is free.
    pub(crate) fn insert(&mut self, port: u16, listener: Listener) {
        self.0.insert(port, listener);
    }

    /// Frees a port of an application.
    pub(crate) fn remove_of(&mut self, app: AppId, port: u16) -> Option<Listener> {
        if self.0.get(&port)?.app != app {
            return None;
        }
        self.0.remove(&port)
    }
}

/// Numbers for ports that nobody chose. They distinguish connections for people; route ids do for the engine.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    next: u16,
}

impl Ephemeral {
    /// Begins at `first`, which is from [`EPHEMERAL_FIRST`] on.
    pub(crate) fn new(first: u16) -> Self {
        Self { next: first }
    }

    pub(crate) fn next_port(&mut self) -> u16 {
        let port = self.next;
        self.next = if port == u16::MAX { EPHEMERAL_FIRST } else { port + 1 };
        port
    }

    /// One that is not taken, if there is any.
    pub(crate) fn free_port(&mut self, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
        (0..=u16::MAX).find_map(|_| {
            let port = self.next_port();
            (!is_taken(port)).then_some(port)
        })
    }
}
