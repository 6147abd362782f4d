//! Ports that applications listen on, the places of the connections that wait at them, and ports that nobody chose.
//!
//! Owns backlogs, and the numbers that free ports get. It must never hold more for a listener than its backlog.

use std::collections::BTreeMap;

use control::{EPHEMERAL_PORT_FIRST, Kind, Reason};

use crate::ClientId;

/// By which way a connection that waits came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// From another host: this engine has it.
    ThroughLane(u32),
    /// From a process of this host.
    FromHere,
}

/// A port that an application listens on.
#[derive(Debug)]
pub(super) struct Listener {
    client: ClientId,
    backlog: u32,
    /// Ring size that it wants, 0 for that of the connecting side.
    ring_bytes: u32,
    kind: Kind,
    /// Connections that wait for `accept`, by number.
    waiting: BTreeMap<u64, Came>,
}

impl Listener {
    pub(super) fn new(client: ClientId, backlog: u32, ring_bytes: u32, kind: Kind) -> Self {
        Self { client, backlog, ring_bytes, kind, waiting: BTreeMap::new() }
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// A connection takes a place in the backlog.
    pub(super) fn take_place(&mut self, connection: u64, came: Came) {
        self.waiting.insert(connection, came);
    }

    /// A connection waits no more. By which way it came, if it waited.
    pub(super) fn give_up_place(&mut self, connection: u64) -> Option<Came> {
        self.waiting.remove(&connection)
    }

    /// Whether engines have connections that wait.
    pub(super) fn has_of_lanes(&self) -> bool {
        self.waiting.values().any(|came| matches!(came, Came::ThroughLane(_)))
    }

    /// Refuses a connection of another kind, and one for which the backlog has no place.
    pub(super) fn check(&self, kind: u32) -> Result<(), Reason> {
        if kind != self.kind.code() {
            return Err(Reason::WrongKind);
        }
        if self.waiting.len() as u64 >= u64::from(self.backlog) {
            return Err(Reason::BacklogFull);
        }
        Ok(())
    }

    /// The ring size of a connection whose other side wants `asked`.
    pub(super) fn ring_bytes_for(&self, asked: u32) -> u32 {
        if self.ring_bytes == 0 { asked } else { asked.min(self.ring_bytes) }
    }
}

/// The listeners by port.
#[derive(Debug, Default)]
pub(super) struct Listeners(BTreeMap<u16, Listener>);

impl Listeners {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_taken(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }

    pub(super) fn get_mut(&mut self, port: u16) -> Option<&mut Listener> {
        self.0.get_mut(&port)
    }

    /// The listener of an application at a port.
    pub(super) fn of(&mut self, client: ClientId, port: u16) -> Option<&mut Listener> {
        self.0.get_mut(&port).filter(|l| l.client == client)
    }

    /// Takes a port that is free.
    pub(super) fn insert(&mut self, port: u16, listener: Listener) {
        self.0.insert(port, listener);
    }

    /// Frees a port of an application.
    pub(super) fn remove_of(&mut self, client: ClientId, port: u16) -> Option<Listener> {
        if self.0.get(&port)?.client != client {
            return None;
        }
        self.0.remove(&port)
    }
}

/// Numbers for ports that nobody chose. They distinguish connections for people; route ids do for the engine.
#[derive(Debug)]
pub(super) struct Ephemeral {
    next: u16,
}

impl Ephemeral {
    /// Begins somewhere in the range, which any number names.
    pub(super) fn new(any: u16) -> Self {
        let ports = u16::MAX - EPHEMERAL_PORT_FIRST;
        Self { next: EPHEMERAL_PORT_FIRST + any % ports }
    }

    pub(super) fn next_port(&mut self) -> u16 {
        let port = self.next;
        self.next = if port == u16::MAX { EPHEMERAL_PORT_FIRST } else { port + 1 };
        port
    }

    /// One that is not taken, if there is any.
    pub(super) fn free_port(&mut self, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
        (EPHEMERAL_PORT_FIRST..=u16::MAX).find_map(|_| {
            let port = self.next_port();
            (!is_taken(port)).then_some(port)
        })
    }
}
