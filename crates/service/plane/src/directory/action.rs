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
pub enum DirectoryAction {
    /// Make memory for a region: its first, or the next that it moves to. Answered by [`Directory::on_made`](crate::Directory::on_made).
    Make {
        /// The region.
        region: u64,
        /// Its size.
        bytes: u64,
        /// Of huge pages.
        huge_pages: bool,
    },
    /// The memory that was made last is the region's; older memory is not handed out again.
    Use {
        /// The region.
        region: u64,
    },
    /// All memory of the region, and what was made for it, is not needed any more.
    Drop {
        /// The region.
        region: u64,
    },
    /// Nobody owns the region any more, and it stays as it is until it ends: what the next daemon needs to take it over.
    Keep {
        /// The region.
        region: u64,
        /// What it is.
        kept: KeptRegion,
    },
    /// Store to the stamp page.
    Stamp {
        /// Which word.
        word: u32,
        /// What.
        value: u64,
    },
    /// Have the engine let a peer reach a region, which it first registers if `register` says for what. Answered by
    /// [`Directory::on_granted`](crate::Directory::on_granted), and by
    /// [`Directory::on_not_registered`](crate::Directory::on_not_registered) before if it could not be registered.
    Grant {
        /// The region.
        region: u64,
        /// Its epoch.
        epoch: u64,
        /// It is not registered yet: what its owner allows others, and so all that the device may allow a peer.
        register: Option<RegionAccess>,
        /// The peer.
        peer: IpAddr,
        /// The peer's handle.
        open: u64,
        /// The leased lane that the peer is to have for it.
        lane: Option<u32>,
    },
    /// Have the engine end a leased lane, before anything that follows: then nothing that was posted on it can land.
    EndLane {
        /// The peer.
        peer: IpAddr,
        /// The lane.
        lane: u32,
        /// What its holder is told.
        reason: Reason,
    },
    /// Nothing of a peer uses a region any more.
    Ungrant {
        /// The region.
        region: u64,
        /// The peer.
        peer: IpAddr,
    },
    /// Have the engine give the registration up. Answered by [`Directory::on_deregistered`](crate::Directory::on_deregistered).
    Deregister {
        /// The region.
        region: u64,
        /// Its epoch.
        epoch: u64,
    },
    /// Have the engine register a region's memory for a program, as local memory of its operations. Answered by
    /// [`Directory::on_attached`](crate::Directory::on_attached).
    Attach {
        /// The program.
        client: ClientId,
        /// The region.
        region: u64,
        /// The memory that the region moves away from, instead of what was made last.
        older: bool,
        /// What the program names it by.
        number: u32,
        /// The program may write it.
        writable: bool,
    },
    /// A program does not use such memory any more.
    Detach {
        /// The program.
        client: ClientId,
        /// The memory's number.
        number: u32,
    },
    /// The owner took notifications that came from other hosts.
    NotificationsTaken {
        /// The region.
        region: u64,
        /// How many.
        count: u32,
    },
    /// Say something to a peer's daemon.
    Tell {
        /// Which.
        peer: IpAddr,
        /// What.
        message: RegionMessage,
    },
    /// End the link to a peer, which does not stop using a region.
    DropPeer {
        /// Which.
        peer: IpAddr,
    },
    /// Send a message to a program of this host.
    Send {
        /// Whom to.
        client: ClientId,
        /// What.
        reply: Reply,
        /// Descriptors that go with it.
        memory: Option<Handed>,
    },
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
