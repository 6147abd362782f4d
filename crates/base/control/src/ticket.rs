//! What a daemon must know of a connection through a lane to go on with it for the daemon that made it (docs/restart.md).
//!
//! The program holds it, sealed by its daemon. It must never have anything of which the program could make use.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Kind;

/// Where a ring lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketRing {
    /// Number of the chunk in the session.
    pub chunk: u32,
    /// Offset in it.
    pub offset: u64,
}

/// See the head of this file. Where the bytes of the connection are is not in it: that is in the session's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneTicket {
    /// Number of the connection on this host.
    pub id: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// What it carries.
    pub kind: Kind,
    /// The program connected; else it accepted.
    pub is_outgoing: bool,
    /// How the peer names this end.
    pub own_route: u32,
    /// How this host names the other end.
    pub peer_route: u32,
    /// Its slot in the session.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
    /// The transmit ring.
    pub tx: TicketRing,
    /// The receive ring.
    pub rx: TicketRing,
    /// Bytes of each ring that are used at first, and when it has grown.
    pub size: (u32, u32),
    /// The same, as the rings were allocated.
    pub allocated: (u32, u32),
}
