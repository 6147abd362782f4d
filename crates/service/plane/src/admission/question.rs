//! What programs, other hosts and engines ask of [`crate::Admission`], and what it grants: types without behaviour.

use std::net::{IpAddr, SocketAddr};

use control::Kind;

use crate::ClientId;

/// A listener that a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// The port, 0 for any free one.
    pub port: u16,
    /// Connections that may wait for `accept`, at least 1.
    pub backlog: u32,
    /// Bytes of each ring at most; 0 leaves it to the connecting side.
    pub ring_bytes: u32,
    /// What its connections carry.
    pub kind: Kind,
}

/// A connect that a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// The listener, on this host or another.
    pub to: SocketAddr,
    /// Bytes of each ring that it asks for; 0 for the default.
    pub ring_bytes: u32,
    /// What the connection carries. The listener must be of the same kind.
    pub kind: Kind,
}

/// What becomes of a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connecting {
    /// To a listener of this host: the two processes are paired. The place in the backlog is taken until
    /// its program accepts it.
    Here {
        /// Whose listener.
        to: ClientId,
        /// Its port.
        port: u16,
        /// Bytes of each ring.
        ring_bytes: u32,
        /// Number of the connection.
        connection: u64,
    },
    /// To another host, by an engine.
    ThroughLane {
        /// Which engine.
        engine: u32,
        /// The listener.
        to: SocketAddr,
        /// This end.
        local: SocketAddr,
        /// Bytes of each ring that it asks for; 0 for the default.
        ring_bytes: u32,
        /// Number of the connection.
        connection: u64,
    },
}

/// A connection that another host asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The engine that asks: its lane brought the Open.
    pub engine: u32,
    /// The host.
    pub from: IpAddr,
    /// The listener's port.
    pub to_port: u16,
    /// What the connection carries, as the peer says it.
    pub kind: u32,
    /// Bytes of each ring that the peer asks for.
    pub ring_bytes: u32,
}

/// A connection of another host that found a listener, and has a place in its backlog until its program accepts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Whose listener.
    pub client: ClientId,
    /// Number of the connection.
    pub connection: u64,
    /// Bytes of each ring.
    pub ring_bytes: u32,
    /// What the connection carries.
    pub kind: Kind,
}

/// A connection of which nothing is in use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionOver {
    /// The engine that had it.
    pub engine: u32,
    /// Its number.
    pub connection: u64,
    /// The other host.
    pub peer: IpAddr,
    /// The port of the listener that it came to; none if this host's program connected.
    pub port: Option<u16>,
}
