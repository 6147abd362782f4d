//! What the daemon's driver does, in the order of the decisions.
//!
//! Owns the vocabulary. The driver carries each action out before it asks for the next: a word that is stamped before
//! memory is handed out must be there first, and an engine must hear that a lane is lost before it is asked for more.

use std::net::{IpAddr, SocketAddr};

use control::{CHALLENGE_BYTES, Kind, PeerMessage, Reason, RegionAccess, RegionGrant, Reply};
use verbs::Time;

use crate::{Brought, ClientId, Handed, KeptRegion, LaneCommand, LinkId, ProgramRights, Ways};

/// What the driver does. `F` is a descriptor that one program has for another, `S` a TCP connection for a stream.
#[derive(Debug)]
pub enum Action<F, S> {
    // ---- programs
    /// Send a message to a program, with descriptors of other programs.
    Reply {
        /// Whom to.
        client: ClientId,
        /// What.
        reply: Reply,
        /// In the message's order.
        fds: Vec<F>,
    },
    /// A connection of one host is there. The process that listens has its message before the other one is told, so that no
    /// death of the daemon leaves a writer to somebody who does not know of it.
    Started {
        /// Who listens.
        to: ClientId,
        /// What it gets first.
        incoming: Reply,
        /// Who connects.
        from: ClientId,
        /// What it gets then.
        connected: Reply,
    },
    /// Send a message with a region's memory. If there is no descriptor of it, [`Daemon::on_not_shared`] follows.
    ///
    /// [`Daemon::on_not_shared`]: crate::Daemon::on_not_shared
    Share {
        /// Whom to.
        client: ClientId,
        /// What.
        reply: Reply,
        /// Which memory.
        memory: Handed,
    },
    /// Send the TCP connection of a stream to the program that has the stream.
    Give {
        /// Whom to.
        client: ClientId,
        /// The stream.
        connection: u64,
        /// Its slot.
        slot: u32,
        /// The TCP connection.
        socket: S,
    },
    /// For the log.
    Warn {
        /// About which program.
        client: ClientId,
        /// What it did.
        words: String,
    },
    /// Have all engines take a program in. Each answers by [`Daemon::on_taken`], and, where the program brings a session
    /// along, by [`Daemon::on_taken_back`]; or [`Daemon::on_not_asked`] follows.
    ///
    /// [`Daemon::on_taken`]: crate::Daemon::on_taken
    /// [`Daemon::on_taken_back`]: crate::Daemon::on_taken_back
    /// [`Daemon::on_not_asked`]: crate::Daemon::on_not_asked
    Attach {
        /// Which.
        client: ClientId,
        /// What it may.
        rights: ProgramRights,
        /// For each engine, of the session that it brings along; none: it gets a new one.
        brought: Option<Vec<Brought>>,
    },
    /// Tell all engines that have taken a program in what it may now.
    Rights {
        /// Which.
        client: ClientId,
        /// What.
        rights: ProgramRights,
    },
    /// A program has its session. Nothing is said to it before.
    Welcome {
        /// Which.
        client: ClientId,
    },
    /// A program does not get one. It is gone when it was told, and [`Daemon::handle_gone`](crate::Daemon::handle_gone) follows.
    Refused {
        /// Which.
        client: ClientId,
        /// What it is told.
        reason: Reason,
        /// For the log.
        words: String,
    },

    // ---- engines
    /// Have an engine do something for a program, which it has taken in.
    Program {
        /// Which engine.
        engine: u32,
        /// The program.
        client: ClientId,
        /// What.
        command: ProgramCommand,
    },
    /// Have an engine do something for a lane. Answered, where [`LaneCommand`] says so, by [`Daemon::on_answer`].
    ///
    /// [`Daemon::on_answer`]: crate::Daemon::on_answer
    Lane {
        /// Which engine.
        engine: u32,
        /// The lane.
        lane: u32,
        /// What.
        command: LaneCommand,
    },
    /// Ask an engine which stream a peer means. Answered by [`Daemon::on_route`](crate::Daemon::on_route).
    AskRoute {
        /// The peer.
        peer: IpAddr,
        /// Number of its offer.
        number: u64,
        /// The lane, and the engine that is asked.
        lane: u32,
        /// The route.
        route: u32,
    },
    /// Have the engine of regions do something.
    Region(RegionCommand),
    /// Do something about a region's memory.
    Memory(MemoryCommand),
    /// Do something about a link to another daemon.
    Link(LinkCommand),
    /// Connect to the peer's daemon for a stream, and prove the token. Answered by
    /// [`Daemon::on_direct_dialed`](crate::Daemon::on_direct_dialed).
    DialDirect {
        /// The peer.
        peer: IpAddr,
        /// Number of its offer.
        number: u64,
        /// Its token.
        token: [u8; CHALLENGE_BYTES],
        /// The stream.
        connection: u64,
    },
}

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
    /// Close the engine's handle. Answered by [`Daemon::on_region_closed`](crate::Daemon::on_region_closed).
    CloseRegion {
        /// As the engine calls it.
        handle: u32,
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
        /// The peer.
        peer: IpAddr,
        /// The peer's handle.
        open: u64,
        /// The leased lane that the peer is to have for it.
        lane: Option<u32>,
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
    /// The owner took notifications that came from other hosts.
    NotificationsTaken {
        /// The region.
        region: u64,
        /// How many.
        count: u32,
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
