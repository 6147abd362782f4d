//! What a directory has its daemon do, in the order of its decisions.
//!
//! Owns nothing. The driver carries each action out before the next: a word that is stamped before memory is handed out
//! must be there first.

use std::net::IpAddr;

use control::{RegionMessage, Reply};

use crate::{ClientId, MemoryCommand, ProgramCommand, RegionCommand};

/// What the daemon does for its directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryAction {
    /// Do something about memory.
    Memory(MemoryCommand),
    /// Have the engine do something.
    Engine(RegionCommand),
    /// Have the engine do something for a program, about memory that is local memory of its operations.
    Program { client: ClientId, command: ProgramCommand },
    /// Say something to a peer's daemon.
    Tell { peer: IpAddr, message: RegionMessage },
    /// End the link to a peer, which does not stop using a region.
    DropPeer { peer: IpAddr },
    /// Send a message to a program of this host.
    Send { client: ClientId, reply: Reply, memory: Option<Handed> },
}

/// Memory that goes with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// Of which region: what was made last.
    pub region: u64,
    /// The program may write.
    pub writable: bool,
    /// The stamp page goes behind it.
    pub with_stamps: bool,
}
