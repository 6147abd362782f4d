//! What a daemon says to a client: answers, and what nobody asked for. Owns the types that only it says; `app` has the
//! other direction, and the order of both.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::app::ChunkKind;
use crate::words::foreign;
use crate::{Cursor, InspectAnswer, MeetStep, MeetingPlace, OpenedRegion, Reason, RegionKey, RegionRefusal};

/// How a connection reaches its peer, and with which memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Path {
    /// Through the daemon and the lane to another host.
    Lane {
        /// Slot in the session segment.
        slot: u32,
        /// Generation of the slot.
        generation: u32,
        /// Chunk of the transmit ring.
        tx_chunk: u32,
        /// Offset of the ring in it.
        tx_offset: u64,
        /// Chunk of the receive ring.
        rx_chunk: u32,
        /// Offset of the ring in it.
        rx_offset: u64,
        /// Bytes of each ring that are used at first.
        ring_bytes: u32,
        /// Bytes of each ring when it has grown: as many if it does not grow.
        grown_bytes: u32,
    },
    /// Rings shared with a process on this host. The pair, and the segments of both sides that hold the slot, were sent
    /// before. The listening side gets the connection no later than the connecting side.
    Shm {
        /// The pair of processes.
        pair: u64,
        /// Slot, counted over all segments of the pair.
        slot: u32,
        /// Generation of the slot.
        generation: u32,
    },
}

/// A connection, as an application gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Number on this host, as in `raas ss`.
    pub id: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// How.
    pub path: Path,
    /// Of a connection through a lane: what the application brings to the daemon that comes after this one, sealed. Empty:
    /// the connection ends with this daemon.
    pub ticket: Vec<u8>,
}

/// How a kernel ended that the daemon ran for a program of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelEnd {
    /// With this answer.
    Answered(Vec<u8>),
    /// Without one: why, as kernels say it.
    Failed(Vec<u8>),
}

/// From daemon to client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The client is attached. Descriptors: session segment, engine page, and a wake socket for each engine (none for an
    /// inspector). An engine listens at its own; news for the client come over the first.
    Welcome {
        /// [`crate::APP_VERSION`] of the daemon.
        version: u32,
        /// The daemon's release.
        #[serde(deserialize_with = "foreign")]
        release: String,
        /// The session's number.
        session: u64,
        /// Slots of the session segment.
        slots: u32,
        /// Engines of the daemon, which have ranges of these slots.
        engines: u32,
        /// Bytes of the session segment.
        session_bytes: u64,
        /// Bytes of the engine page.
        engine_page_bytes: u64,
        /// Addresses that name this host.
        addresses: Vec<IpAddr>,
        /// Whether `encrypt` is "required" for some other host.
        requires_encryption: bool,
    },
    /// The client is not attached; the daemon closes. Its encoding never changes in later versions.
    Refused {
        /// [`crate::APP_VERSION`] of the daemon.
        version: u32,
        /// Layout version of the daemon.
        layout: u32,
        /// The daemon's release.
        #[serde(deserialize_with = "foreign")]
        release: String,
        /// Why.
        reason: Reason,
        /// Details for a person.
        #[serde(deserialize_with = "foreign")]
        detail: String,
    },
    /// Answer to [`crate::Request::Listen`].
    Listening {
        /// The request.
        request: u64,
        /// The port, or why not.
        result: Result<SocketAddr, Reason>,
    },
    /// A ring chunk of this session. One descriptor. Comes before the first connection that uses it.
    Chunk {
        /// Its number in this session.
        chunk: u32,
        /// Direction.
        kind: ChunkKind,
        /// Its size.
        bytes: u64,
    },
    /// A chunk is not used any more. The application unmaps it.
    ChunkGone {
        /// Its number.
        chunk: u32,
    },
    /// Answer to [`crate::Request::Connect`], [`crate::Request::BindDatagram`] or [`crate::Request::OpenOperations`].
    Connected {
        /// The request.
        request: u64,
        /// The connection, or why not.
        result: Result<Connection, Reason>,
    },
    /// A connection waits at a listener.
    Incoming {
        /// The listener's port.
        port: u16,
        /// The connection.
        connection: Connection,
    },
    /// Another process of this host is now a pair with this one. One descriptor: this side's end of the wake socket.
    PairOpened {
        /// The pair, as this session knows it: a session that connects to itself holds both ends, under two numbers.
        pair: u64,
        /// The other process.
        peer_pid: u32,
    },
    /// A segment of the other process of a pair. One descriptor.
    PairSegment {
        /// The pair.
        pair: u64,
        /// Counts the peer's segments from 0.
        index: u32,
        /// Slots in it.
        slots: u32,
        /// Bytes of each ring.
        ring_bytes: u32,
    },
    /// This side must make a segment for the pair and send it. It is the next one, or one that one side or the daemon
    /// could not take ([`crate::NotTaken::PairSegment`]); then the new one replaces it at both sides.
    PairSegmentWanted {
        /// The pair.
        pair: u64,
        /// Its number.
        index: u32,
        /// Slots in it.
        slots: u32,
        /// Bytes of each ring.
        ring_bytes: u32,
    },
    /// Answer to [`crate::Request::Inspect`].
    Inspected {
        /// The request.
        request: u64,
        /// A page of the answer.
        answer: InspectAnswer,
        /// Where the next page begins, if there is more to ask for.
        next: Option<Cursor>,
    },
    /// The session is over: the application broke the rules, or the daemon stops.
    Detached {
        /// Why.
        reason: Reason,
        /// Details for a person.
        #[serde(deserialize_with = "foreign")]
        detail: String,
    },
    /// Answer to [`crate::Request::DatagramPath`].
    DatagramPath {
        /// The request.
        request: u64,
        /// Longest datagram in bytes, or why none can be sent there.
        result: Result<u32, Reason>,
    },
    /// Answer to [`crate::Request::RegionCreate`] or [`crate::Request::RegionOpen`]. For a region of this host with two
    /// descriptors: its memory, and the stamp page.
    RegionOpened {
        /// The request.
        request: u64,
        /// The handle, or why there is none.
        result: Result<OpenedRegion, RegionRefusal>,
    },
    /// Answer to [`crate::Request::RegionRevoke`].
    RegionRevoked {
        /// The request.
        request: u64,
        /// The new epoch, or why nothing was revoked.
        result: Result<u64, RegionRefusal>,
    },
    /// To the owner: the region moves to new memory, which comes as a descriptor. The owner copies the bytes, uses the
    /// new memory alone, and answers with [`crate::Request::RegionMoved`].
    RegionMove {
        /// The owner's handle.
        open: u64,
        /// The epoch of the new memory.
        epoch: u64,
        /// The handle holds while the region's word of the stamp page has this value.
        stamp: u64,
        /// The key that opens the region from now on: the owner brings the region to the next daemon with it.
        key: RegionKey,
    },
    /// A handle is over.
    RegionEnded {
        /// The handle.
        open: u64,
        /// Why.
        why: RegionRefusal,
    },
    /// Answer to [`crate::Request::RegionNotifier`].
    RegionNotifier {
        /// The request.
        request: u64,
        /// What submissions name, by which the owner is told, as long as the program's handle is open. Its epoch is 0.
        result: Result<u32, RegionRefusal>,
    },
    /// Answer to [`crate::Request::RegionInstall`].
    RegionInstalled {
        /// The request.
        request: u64,
        /// Whether it can be run.
        result: Result<(), RegionRefusal>,
    },
    /// The other end may be in another network namespace: what this one does to show that it is the other one of that.
    MeetStep {
        /// The request of [`crate::Request::Meet`].
        request: u64,
        /// What.
        step: MeetStep,
    },
    /// Answer to [`crate::Request::Meet`]. At the end that accepted it says where the other end was sent to.
    Met {
        /// The request.
        request: u64,
        /// Where to connect to, or why the connection stays on TCP.
        result: Result<MeetingPlace, Reason>,
    },
    /// Answer to [`crate::Request::RegionAttach`].
    RegionAttached {
        /// The request.
        request: u64,
        /// The number by which submissions name the memory, or why there is none.
        result: Result<u32, RegionRefusal>,
    },
    /// Answer to [`crate::Request::RegionLend`].
    RegionLent {
        /// The request.
        request: u64,
        /// The number of the lease, or why there is none.
        result: Result<u64, RegionRefusal>,
    },
    /// To the lender: loans that a program of another host gave back.
    RegionLoansBack {
        /// The lender's handle.
        open: u64,
        /// The lease.
        lease: u64,
        /// The loans: bit n stands for loan n of the connection.
        loans: u64,
    },
    /// To the lender: nobody reaches the region by this lease any more.
    RegionLeaseOver {
        /// The lender's handle.
        open: u64,
        /// The lease.
        lease: u64,
    },
    /// A TCP connection to the application at the other end of a stream of bulk (docs/inside/kernel-tcp.md). One descriptor.
    /// The application may drop it: then the stream stays on the lane.
    Direct {
        /// The connection.
        connection: u64,
        /// Its slot in the session segment.
        slot: u32,
    },
    /// Answer to [`crate::Request::RegionRun`].
    RegionRan {
        /// The request.
        request: u64,
        /// How the kernel ended, or why none began.
        result: Result<KernelEnd, RegionRefusal>,
    },
}
