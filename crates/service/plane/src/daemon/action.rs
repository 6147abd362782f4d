//! What the daemon's driver does, in the order of the decisions.
//!
//! Owns the vocabulary. The driver carries each action out before it asks for the next: a word that is stamped before
//! memory is handed out must be there first, and an engine must hear that a lane is lost before it is asked for more.

use std::net::IpAddr;

use control::{CHALLENGE_BYTES, Reason, Reply};

use crate::{
    Brought, ClientId, Handed, LaneCommand, LinkCommand, MemoryCommand, ProgramCommand, ProgramRights, RegionCommand,
};

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

    /// End a program's session, or its questions: it asked for what it may not have.
    Detach {
        /// Which.
        client: ClientId,
        /// What it is told.
        reason: Reason,
        /// The same, in words.
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
    /// Have an engine break the queue pair of its lane to a host. Answered by
    /// [`Daemon::on_lane_was_reset`](crate::Daemon::on_lane_was_reset).
    ResetLane {
        /// Which engine.
        engine: u32,
        /// Who asked.
        client: ClientId,
        /// The program's name for it.
        request: u64,
        /// The lane's peer.
        peer: IpAddr,
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
