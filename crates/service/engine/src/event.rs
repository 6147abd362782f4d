//! What goes in and out of the engine in addition to calls: types without behaviour.

use std::net::{IpAddr, SocketAddr};

use control::{Connection, Kind, Reason};
use shm::Session;
use verbs::VerbsError;

use crate::RingSize;
use crate::ids::AppId;

/// A connect that an application asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dial {
    /// The listener, on this host or another.
    pub to: SocketAddr,
    /// Bytes of each ring that it asks for, rounded to what exists; 0 for the default.
    pub ring_bytes: u32,
    /// What the connection carries. The listener must be of the same kind.
    pub kind: Kind,
}

/// A listener that an application asks for.
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

/// What the daemon must do, or must report to an application.
#[derive(Debug)]
pub enum Event {
    /// A connect needs a lane to this host: dial it, then `lane_offer`, `lane_accept`, `lane_ready`, or `lane_lost` if
    /// it cannot be reached. Not repeated until one of them was called.
    PeerWanted {
        /// The host.
        peer: IpAddr,
    },
    /// Make `rings` rings of `size.grown` bytes for tx and as many for rx, announce them to the application, then `add_chunk`
    /// both (or `chunks_refused`).
    ChunksWanted {
        /// For whom.
        app: AppId,
        /// Of one ring. The pages of bytes beyond `first` are not to be allocated ahead.
        size: RingSize,
        /// Rings of each of the two chunks.
        rings: u32,
    },
    /// Answer to a connect, or to a bind of a datagram socket.
    Connected {
        /// To whom.
        app: AppId,
        /// Which connect.
        request: u64,
        /// The connection, or why not.
        result: Result<Connection, Reason>,
    },
    /// Answer to a question for the path of datagrams to a host.
    DatagramPath {
        /// To whom.
        app: AppId,
        /// Which question.
        request: u64,
        /// Longest datagram in bytes, or why none can be sent there.
        result: Result<u32, Reason>,
    },
    /// A connection from another host waits at a listener.
    Incoming {
        /// To whom.
        app: AppId,
        /// The listener's port.
        port: u16,
        /// The connection.
        connection: Connection,
    },
    /// A connect to a listener of this host: the daemon pairs the two processes. The backlog place is taken until
    /// `accepted` is called with `connection`.
    LocalConnect {
        /// The connecting application.
        from: AppId,
        /// Its connect, which the daemon answers.
        request: u64,
        /// The listening application.
        to: AppId,
        /// The listener's port.
        port: u16,
        /// Bytes of each ring.
        ring_bytes: u32,
        /// Number of the connection.
        connection: u64,
    },
    /// The application broke the rules, and the engine detached it. The daemon must send it the reason and close its
    /// socket.
    AppFault {
        /// Who.
        app: AppId,
        /// What it did, for a person.
        detail: String,
    },
    /// The lane's QP failed and is destroyed; its connections wait. Tell the peer daemon (LaneReset that resumes), make
    /// a new offer, exchange routes.
    LaneReset {
        /// The host.
        peer: IpAddr,
        /// What happened, for a person.
        detail: String,
    },
    /// The lane was not used for long: its QP is destroyed, and its connections keep everything. Tell the peer daemon
    /// (LaneReset that resumes and rests). [`Event::PeerWanted`] comes when something is to be sent.
    LaneRests {
        /// The host.
        peer: IpAddr,
    },
    /// The lane's QP failed and is destroyed; its connections were reset. Tell the peer daemon (LaneReset), make a new
    /// lane when wanted.
    LaneFailed {
        /// The host.
        peer: IpAddr,
        /// The reason that the connections got.
        reason: Reason,
        /// What happened, for a person.
        detail: String,
    },
    /// Packets for the lane's queue pair come from the peer's address but not from its port, and are dropped: of
    /// somebody else there, or changed on the way. Told once for each queue pair.
    StrangePort {
        /// The host.
        peer: IpAddr,
        /// Source port of the first such packet.
        found: u16,
        /// The peer's UDP port.
        expected: u16,
    },
    /// Nothing uses the memory of a detached application any more: session and chunks may be dropped.
    AppGone {
        /// Who.
        app: AppId,
    },
    /// A chunk is unused and deregistered.
    ChunkGone {
        /// Whose.
        app: AppId,
        /// The daemon's number of it.
        chunk: u32,
    },
}

/// Setting up the engine on a device failed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The device refused.
    #[error("device: {0}")]
    Verbs(#[from] VerbsError),
    /// No memory.
    #[error("no memory for receive buffers: {0}")]
    Memory(#[from] std::io::Error),
    /// A value of the configuration cannot be used.
    #[error("configuration: {0}")]
    Config(String),
}

/// A new application.
#[derive(Debug)]
pub struct Attach {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name, for `raas stat`.
    pub name: String,
    /// Its session segment.
    pub session: Session,
}

/// Totals for `raas stat`.
#[derive(Debug, Clone, Default)]
pub struct EngineTotals {
    /// RC queue pairs.
    pub rc_qps: u32,
    /// UD queue pairs.
    pub ud_qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Receives posted and free.
    pub srq_free: u64,
    /// Memory regions registered.
    pub mrs: u32,
    /// Their bytes.
    pub pinned_bytes: u64,
    /// Counters that the device does not report, by the same names.
    pub unknown: Vec<&'static str>,
    /// Counters by stable name, among them `rnr_naks` (a bug if not 0), `credit_stalls`, `stale_frames`, `app_faults`.
    pub counters: Vec<(&'static str, u64)>,
}
