//! What a daemon that would take another one's place says of itself, and why the other one goes on instead
//! (docs/operate/restart.md).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A daemon that would serve the socket of another one, with what that one's programs and peers have from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// Slots of each program's session.
    pub slots: u32,
    /// Its engines.
    pub engines: u32,
    /// Where peers' daemons reach it.
    pub peer_address: SocketAddr,
}

/// Why a daemon does not hand over. Connections would not outlive it, or nobody could reach the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandOverRefusal {
    /// The sessions of its programs have another shape.
    Sessions {
        /// Their slots.
        slots: u32,
        /// Its engines.
        engines: u32,
    },
    /// Its peers look for it here.
    PeerAddress(SocketAddr),
    /// Its socket is the service manager's, which alone can give it to another daemon.
    ServiceManager,
}
