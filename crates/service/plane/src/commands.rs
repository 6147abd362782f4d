//! What drivers are asked for: by engines' names of things, of memory of regions, of links to other daemons.
//!
//! Owns the vocabulary of which each machine here speaks its part. [`crate::Action`] says which of it comes next.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use control::{
    Kind, LaneTicket, PeerMessage, Reason, RegionAccess, RegionGrant, RegionLine, RegionSpec, SocketTicket, Ticket,
};
use ipnet::IpNet;
use verbs::Time;

use crate::{LinkId, LinkPath};

/// What an engine does for a program that it has taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramCommand {
    /// End what waits at a port.
    Unlisten {
        /// Which.
        port: u16,
    },
    /// The program took a connection from its backlog.
    Accepted {
        /// The listener's port.
        port: u16,
        /// The connection.
        connection: u64,
    },
    /// Connect to a listener of another host.
    Connect {
        /// The program's name for it.
        request: u64,
        /// Number of the connection.
        connection: u64,
        /// The listener.
        to: SocketAddr,
        /// This end.
        local: SocketAddr,
        /// Bytes of each ring; 0 for the default.
        ring_bytes: u32,
        /// What the connection carries.
        kind: Kind,
    },
    /// Give a connect up.
    CancelConnect {
        /// The program's name for it.
        request: u64,
    },
    /// Open a datagram socket.
    Bind {
        /// The program's name for it.
        request: u64,
        /// Number of the socket.
        socket: u64,
        /// The port, 0 for any free one.
        port: u16,
        /// Bytes of each ring; 0 for the default.
        ring_bytes: u32,
    },
    /// Open an operation queue.
    OpenOperations {
        /// The program's name for it.
        request: u64,
        /// Number of the queue.
        queue: u64,
        /// Bytes of each ring; 0 for the default.
        ring_bytes: u32,
    },
    /// Have a lane made to a host. Answered by [`Daemon::on_path`](crate::Daemon::on_path), or by the program itself if it
    /// asked.
    Path {
        /// The name for the question.
        request: u64,
        /// The host.
        to: IpAddr,
    },
    /// The program had no descriptor for ring memory.
    ChunkNotTaken {
        /// Its number.
        chunk: u32,
    },
    /// Open a handle to a region of another host. Answered by
    /// [`Daemon::on_region_opened`](crate::Daemon::on_region_opened).
    OpenRegion {
        /// The owner's host.
        peer: IpAddr,
        /// The handle.
        open: u64,
        /// What the owner gave.
        grant: RegionGrant,
        /// Number of the leased lane that is to be made for it.
        lane: Option<u32>,
    },
    /// What writers tell the owner of a region, which the program is, goes into this operation queue of the program.
    NoticesInto {
        /// The region.
        region: u64,
        /// Number of the queue.
        queue: u64,
    },
    /// Open the handle by which a program has the owner of a region told that it has mapped. Answered by
    /// [`Daemon::on_region_opened`](crate::Daemon::on_region_opened).
    OpenNotifier {
        /// The program's handle.
        open: u64,
        /// The region.
        region: u64,
        /// Its length.
        bytes: u64,
    },
    /// Close the engine's handle. Answered by [`Daemon::on_region_closed`](crate::Daemon::on_region_closed).
    CloseRegion {
        /// As the engine calls it.
        handle: u32,
        /// The owner's daemon lets nothing of it through any more: what was not begun does not begin.
        is_fenced: bool,
    },
    /// Open the handle of the writer of a region of this host, whose operations the engine does. Answered by
    /// [`Daemon::on_region_opened`](crate::Daemon::on_region_opened).
    WriteRegion {
        /// The handle.
        open: u64,
        /// The region, and what the writer may do. It is at no device.
        grant: RegionGrant,
    },
    /// Register a region's memory as local memory of the program. Answered by
    /// [`Daemon::on_region_attached`](crate::Daemon::on_region_attached).
    AttachRegion {
        /// The region.
        region: u64,
        /// The memory that the region moves away from, instead of what was made last.
        older: bool,
        /// What the program names it by.
        number: u32,
        /// The program may write it.
        writable: bool,
    },
    /// The program does not use local memory any more.
    DetachRegion {
        /// The memory's number.
        number: u32,
    },
}

/// What the engine of regions does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionCommand {
    /// Let a peer reach a region, which it first registers if `register` says for what.
    /// Answered by [`Daemon::on_granted`](crate::Daemon::on_granted).
    Grant {
        /// The region.
        region: u64,
        /// Its epoch.
        epoch: u64,
        /// It is not registered yet: what its owner allows others.
        register: Option<RegionAccess>,
        /// The peer becomes its writer: what it may do, by a registration of its own.
        writer: Option<RegionAccess>,
        /// The peer.
        peer: IpAddr,
        /// The peer's handle.
        open: u64,
        /// The leased lane that the peer is to have for it.
        lane: Option<u32>,
    },
    /// The writer of a region is over, before anything that follows: its registration, or its handle on this host, goes.
    /// [`RegionCommand::EndLane`] for its leased lane comes before.
    Fence {
        /// The region.
        region: u64,
    },
    /// End a leased lane, before anything that follows: then nothing that was posted on it can land.
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
    /// Give the registration up. Answered by [`Daemon::on_deregistered`](crate::Daemon::on_deregistered).
    Deregister {
        /// The region.
        region: u64,
        /// Its epoch.
        epoch: u64,
    },
    /// A region ended: its kernels go, and those that run there end.
    Forget {
        /// The region.
        region: u64,
    },
    /// A peer is about to lose a region: its kernels there end.
    Halt {
        /// The region.
        region: u64,
        /// The peer.
        peer: IpAddr,
    },
    /// Stop all handles to a region of another host. Answered by
    /// [`Daemon::on_region_stopped`](crate::Daemon::on_region_stopped).
    Stop {
        /// The owner's host.
        peer: IpAddr,
        /// The region there.
        region: u64,
        /// Its epoch.
        epoch: u64,
    },
}

/// What is done about memory of regions, and about what others see of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryCommand {
    /// [`Daemon::on_made`](crate::Daemon::on_made).
    Make {
        /// Of which region.
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
    /// All memory of a region, and what was kept of it, is not needed any more.
    Drop {
        /// The region.
        region: u64,
    },
    /// Keep for the next daemon what it needs to take the region over.
    Keep {
        /// The region.
        region: u64,
        /// What it is.
        kept: KeptRegion,
    },
    /// A region has an owner again, who brings it to the next daemon: what was kept for that one is not needed.
    ForgetKept {
        /// The region.
        region: u64,
    },
    /// Store to the stamp page.
    Stamp {
        /// Which word.
        word: u32,
        /// What.
        value: u64,
    },
}

/// What is done about links to other daemons.
#[derive(Debug, PartialEq)]
pub enum LinkCommand {
    /// Dial a peer's daemon. Answered by [`Daemon::handle_up`](crate::Daemon::handle_up) or
    /// [`Daemon::handle_dial_failed`](crate::Daemon::handle_dial_failed), unless it is cancelled.
    Dial {
        /// Number of the link.
        link: LinkId,
        /// The peer.
        peer: IpAddr,
        /// No attempt goes on longer.
        deadline: Time,
        /// How.
        ways: Ways,
    },
    /// Give a dial up, or the link that it became, without words.
    CancelDial {
        /// Which.
        link: LinkId,
    },
    /// Send a message on a link that is up.
    Send {
        /// Which.
        link: LinkId,
        /// What.
        message: PeerMessage,
    },
    /// Say why, and close.
    Close {
        /// Which.
        link: LinkId,
        /// Why.
        reason: Reason,
        /// In words.
        detail: String,
    },
}

/// How a peer is dialed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ways {
    /// Over which paths, in this order. Empty: the peer has one address.
    pub paths: Vec<LinkPath>,
    /// The link whose place the new one takes; 0: none.
    pub replaces: u64,
    /// The link that there is works: nobody waits for this dial.
    pub is_probe: bool,
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

/// What a program brings along for one engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brought {
    /// Numbers of the chunks in which its connections lie. The first engine has those without any, which it drops.
    pub chunks: Vec<u32>,
    /// Connections through lanes, each of which is counted.
    pub connections: Vec<LaneTicket>,
    /// Datagram sockets, in the same way.
    pub sockets: Vec<SocketTicket>,
    /// What is not admitted. It ends with the rest of what the program leaves.
    pub refused: Vec<Ticket>,
}

/// What engines know of a program's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramRights {
    /// Networks to whose hosts it may connect; none: all that the configuration allows.
    pub networks: Option<Arc<[IpNet]>>,
    /// Place of its tenant in the policy.
    pub tenant: usize,
}
