//! What a daemon must know of a connection through a lane, or of a datagram socket, to go on with it for the daemon
//! that made it (docs/operate/restart.md).
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

/// The same of a datagram socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketTicket {
    /// Number of the socket on this host.
    pub id: u64,
    /// Where it is bound.
    pub local: SocketAddr,
    /// Its slot in the session.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
    /// The transmit ring.
    pub tx: TicketRing,
    /// The receive ring.
    pub rx: TicketRing,
    /// Bytes of each ring.
    pub ring_bytes: u32,
}

/// What a program brings to the next daemon for each slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ticket {
    /// A connection through a lane.
    Lane(LaneTicket),
    /// A datagram socket.
    Socket(SocketTicket),
}

impl Ticket {
    /// Its slot in the session.
    pub const fn slot(&self) -> u32 {
        match self {
            Self::Lane(ticket) => ticket.slot,
            Self::Socket(ticket) => ticket.slot,
        }
    }

    /// Where its transmit and its receive ring lie.
    pub const fn rings(&self) -> [TicketRing; 2] {
        match self {
            Self::Lane(ticket) => [ticket.tx, ticket.rx],
            Self::Socket(ticket) => [ticket.tx, ticket.rx],
        }
    }

    /// Bytes of each ring, at first and when it has grown, as they were allocated.
    pub const fn allocated(&self) -> (u32, u32) {
        match self {
            Self::Lane(ticket) => ticket.allocated,
            Self::Socket(ticket) => (ticket.ring_bytes, ticket.ring_bytes),
        }
    }

    /// Whether a ring of its lies in this chunk.
    pub fn is_in(&self, chunk: u32) -> bool {
        self.rings().iter().any(|ring| ring.chunk == chunk)
    }
}
