//! What a directory has its daemon do, in the order of its decisions.
//!
//! Owns nothing. The driver carries each action out before the next: a word that is stamped before memory is handed out
//! must be there first.

use std::net::IpAddr;
use std::sync::Arc;

use control::{Reason, RegionAccess, RegionLine, RegionMessage, RegionSpec, Reply};

use crate::ClientId;

/// What the daemon does for its directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryAction {
    /// Make memory for a region: its first, or the next that it moves to. Answered by [`Directory::on_made`](crate::Directory::on_made).
    Make { region: u64, bytes: u64, huge_pages: bool },
    /// The memory that was made last is the region's; older memory is not handed out again.
    Use { region: u64 },
    /// All memory of the region, and what was made for it, is not needed any more.
    Drop { region: u64 },
    /// Nobody owns the region any more, and it stays as it is until it ends: what the next daemon needs to take it over.
    Keep { region: u64, kept: KeptRegion },
    /// Store to the stamp page.
    Stamp { word: u32, value: u64 },
    /// Have the engine let a peer reach a region, which it first registers if `register` says for what. Answered by
    /// [`Directory::on_granted`](crate::Directory::on_granted), and by
    /// [`Directory::on_not_registered`](crate::Directory::on_not_registered) before if it could not be registered.
    Grant { region: u64, epoch: u64, register: Option<RegionAccess>, peer: IpAddr, open: u64, lane: Option<u32> },
    /// Have the engine end a leased lane, before anything that follows: then nothing that was posted on it can land.
    EndLane { peer: IpAddr, lane: u32, reason: Reason },
    /// Nothing of a peer uses a region any more.
    Ungrant { region: u64, peer: IpAddr },
    /// Have the engine give the registration up. Answered by [`Directory::on_deregistered`](crate::Directory::on_deregistered).
    Deregister { region: u64, epoch: u64 },
    /// Have the engine register a region's memory for a program, as local memory of its operations. Answered by
    /// [`Directory::on_attached`](crate::Directory::on_attached).
    Attach { client: ClientId, region: u64, older: bool, number: u32, writable: bool },
    /// A program does not use such memory any more.
    Detach { client: ClientId, number: u32 },
    /// The owner took notifications that came from other hosts.
    NotificationsTaken { region: u64, count: u32 },
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

/// A region without an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRegion {
    /// How it was made; its key is the one that it has now.
    pub spec: RegionSpec,
    /// The user whose it is.
    pub uid: u32,
    /// The tenant whose program made it.
    pub tenant: Arc<str>,
    /// The epoch in which it is.
    pub epoch: u64,
    /// Which one it is; none if the daemon that kept it did not know. Its user is [`KeptRegion::uid`].
    pub line: Option<RegionLine>,
}
