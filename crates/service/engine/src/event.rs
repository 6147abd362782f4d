//! What goes in and out of the engine in addition to calls: types without behaviour.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use control::{Connection, Kind, Reason, RegionAccess, StageRow};
use ipnet::IpNet;
use shm::{Region, Session};
use verbs::VerbsError;

use crate::RingSize;
use crate::ids::{AppId, OpenId};
use crate::tenants::TenantPlace;

/// A connect of an application to another host, as the control plane admitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dial {
    /// Number of the connection.
    pub connection: u64,
    /// The listener.
    pub to: SocketAddr,
    /// This end.
    pub local: SocketAddr,
    /// Bytes of each ring that it asks for, rounded to what exists; 0 for the default.
    pub ring_bytes: u32,
    /// What the connection carries. The listener must be of the same kind.
    pub kind: Kind,
}

/// A bind of a datagram socket, as the control plane admitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramBind {
    /// Number of the socket.
    pub socket: u64,
    /// The port, 0 for any free one.
    pub port: u16,
    /// Bytes of each ring that it asks for, rounded to what exists; 0 for the default.
    pub ring_bytes: u32,
}

/// A connection that another host asks for, as the control plane admitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Whose listener.
    pub app: AppId,
    /// Number of the connection.
    pub connection: u64,
    /// Bytes of each ring that the listener allows: a power of two, no more than the peer asked for.
    pub ring_bytes: u32,
    /// What the connection carries.
    pub kind: Kind,
    /// The other host, as in [`Event::ConnectRequest`].
    pub from: IpAddr,
    /// The listener's port, as in [`Event::ConnectRequest`].
    pub port: u16,
}

/// An opening of an operation queue, as the control plane admitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationsOpen {
    /// Number of the queue.
    pub queue: u64,
    /// Bytes of each ring that it asks for, rounded to what exists; 0 for the default.
    pub ring_bytes: u32,
}

/// A stream, for the daemon to give it a TCP connection of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkStream {
    /// Whose.
    pub app: AppId,
    /// Its number.
    pub connection: u64,
    /// Its slot in the session segment.
    pub slot: u32,
    /// The other host.
    pub peer: IpAddr,
    /// How the other host names it: its route id.
    pub peer_route: u32,
}

/// A region of this host, for a kernel of a program of this host.
#[derive(Debug)]
pub struct LocalPlace {
    /// Its number.
    pub region: u64,
    /// What the program may do with it.
    pub access: RegionAccess,
    /// Its bytes.
    pub memory: Region,
}

/// What the daemon must do, or must report to an application.
#[derive(Debug)]
pub enum Event {
    /// A connect needs a lane to this host: dial it, then `lane_offer`, `lane_accept`, `lane_ready`, or `lane_lost` if
    /// it cannot be reached. Not repeated until one of them was called.
    PeerWanted {
        /// The host.
        peer: IpAddr,
        /// Number of the lane: the engine's, or a leased one's.
        lane: u32,
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
    /// A peer asks for a connection: `admit` it, or refuse it with a reason.
    ConnectRequest {
        /// Which, for the answer.
        open: OpenId,
        /// The peer.
        from: IpAddr,
        /// The listener's port.
        to_port: u16,
        /// What the connection carries, as the peer says it.
        kind: u32,
        /// Bytes of each ring that the peer asks for.
        ring_bytes: u32,
    },
    /// Much came on a stream without a pause, or it is a conversation. Comes once for a connection at most, and only if
    /// [`crate::EngineConfig::tells_bulk`] is set.
    StreamIsBulk(BulkStream),
    /// Nothing of a connection is in use any more, or it did not come about. Comes exactly once for each number that
    /// `connect` or `admit` got, and may come after [`Event::AppGone`].
    ConnectionOver {
        /// Whose.
        app: AppId,
        /// Its number.
        connection: u64,
        /// The other host.
        peer: IpAddr,
        /// The port of the listener that it came to; none if the application connected.
        port: Option<u16>,
    },
    /// Nothing of a datagram socket or operation queue is in use any more, or it did not come about. Comes exactly once
    /// for each number that `bind_datagram` or `open_operations` got.
    SocketOver {
        /// Whose.
        app: AppId,
        /// Its number.
        socket: u64,
    },
    /// Nothing that an application began in a region of another host is in flight, after it gave its handle back or left.
    /// Comes exactly once for each handle, and may come after [`Event::AppGone`].
    RegionClosed {
        /// Whose.
        app: AppId,
        /// The owner's host.
        peer: IpAddr,
        /// The region's number there.
        region: u64,
        /// The handle.
        handle: u32,
    },
    /// Nothing that this host began in a region of this epoch, or of one before, is in flight, and nothing begins any
    /// more. Comes once for each `stop_region`.
    RegionStopped {
        /// The owner's host.
        peer: IpAddr,
        /// The region's number there.
        region: u64,
        /// The epoch.
        epoch: u64,
    },
    /// The application broke the rules, and the engine detached it. The daemon must send it the reason and close its
    /// socket.
    AppFault {
        /// Who.
        app: AppId,
        /// What it did, for a person.
        detail: String,
    },
    /// The lane's QP failed, or has worn keys, and is destroyed; its connections wait. Tell the peer daemon (LaneReset that
    /// resumes), make a new offer, exchange routes.
    LaneReset {
        /// The host.
        peer: IpAddr,
        /// Number of the lane: the engine's, or a leased one's.
        lane: u32,
        /// What happened, for a person.
        detail: String,
        /// Its keys are worn, so that this was to come.
        is_renewal: bool,
    },
    /// The lane was not used for long: its QP is destroyed, and its connections keep everything. Tell the peer daemon
    /// (LaneReset that resumes and rests). [`Event::PeerWanted`] comes when something is to be sent.
    LaneRests {
        /// The host.
        peer: IpAddr,
        /// Number of the lane: the engine's, or a leased one's.
        lane: u32,
    },
    /// The lane's QP failed and is destroyed; its connections were reset. Tell the peer daemon (LaneReset), make a new
    /// lane when wanted.
    LaneFailed {
        /// The host.
        peer: IpAddr,
        /// Number of the lane: the engine's, or a leased one's.
        lane: u32,
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
    /// A kernel ended that a program of this host asked for.
    KernelRan {
        /// Who.
        app: AppId,
        /// Which request.
        request: u64,
        /// Its answer, or why it has none, as kernels say it.
        result: Result<Vec<u8>, Vec<u8>>,
    },
    /// What an application brought along with its session is taken back, or has ended.
    TakenBack {
        /// Who.
        app: AppId,
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
    /// Networks to whose hosts it may send, of those that the configuration allows; none: to all of these.
    pub connect_to: Option<Arc<[IpNet]>>,
    /// Its tenant.
    pub tenant: TenantPlace,
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
    /// How long messages spent in each stage.
    pub stages: Vec<StageRow>,
    /// Counters that the device does not report, by the same names.
    pub unknown: Vec<&'static str>,
    /// Counters by stable name, among them `rnr_naks` (a bug if not 0), `credit_stalls`, `stale_frames`, `app_faults`.
    pub counters: Vec<(&'static str, u64)>,
}
