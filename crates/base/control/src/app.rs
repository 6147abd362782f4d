//! Messages between an application (or the `raas` command) and its daemon.
//!
//! The client opens a SEQPACKET connection and sends [`Request::Hello`]; the daemon answers [`crate::Reply::Welcome`]
//! with the descriptors of the session, or [`crate::Reply::Refused`]. Afterwards each request carries a number that its
//! answer repeats. Messages that nobody asked for ([`crate::Reply::Incoming`], [`crate::Reply::Chunk`], pairs) may come
//! in between. Descriptors travel in the same datagram as the message that names them, in the order given.
//!
//! Owns what the client says; `reply` has the other direction.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::words::foreign;
use crate::{Cursor, InspectQuery, MeetProof, RegionAccess, RegionKey, RegionLine, RegionSpec, Successor, TcpEnd};

/// What the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A program that makes connections: gets a session.
    Application,
    /// A tool that only asks questions: gets no shared memory.
    Inspector,
    /// An application that had a session with a daemon which ended, and brings it along ([`Request::Return`]).
    Returning,
}

/// What both ends of a connection agree on. For the daemons both kinds are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Kind {
    /// A stream of bytes.
    #[default]
    Stream,
    /// Messages with boundaries, framed by the library.
    Message,
    /// Messages that may be lost (docs/use/unreliable.md). On the lane they are looked at by the daemons.
    Unreliable,
}

impl Kind {
    /// Its number in an Open on the lane (docs/inside/wire.md).
    pub const fn code(self) -> u32 {
        match self {
            Self::Stream => 0,
            Self::Message => 1,
            Self::Unreliable => 2,
        }
    }
}

/// From client to daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message. Its encoding never changes in later versions.
    Hello {
        /// [`crate::APP_VERSION`] of the client.
        version: u32,
        /// Shared-memory layout version of the client.
        layout: u32,
        /// What it is.
        role: Role,
        /// Name for `raas stat`, at most 64 bytes are kept.
        #[serde(deserialize_with = "foreign")]
        name: String,
    },
    /// Accept connections on a port of this host.
    Listen {
        /// Repeated in the answer.
        request: u64,
        /// Port, 0 for any free one.
        port: u16,
        /// Connections that may wait for `accept`.
        backlog: u32,
        /// Ring size of accepted connections in bytes, 0 for the daemon's default.
        ring_bytes: u32,
        /// What travels; connections of another kind are refused.
        kind: Kind,
    },
    /// Stop listening; waiting connections are reset.
    Unlisten {
        /// The port.
        port: u16,
    },
    /// The application took a connection out of its backlog.
    Accepted {
        /// The port.
        port: u16,
        /// The connection.
        connection: u64,
    },
    /// Connect to a port of a host.
    Connect {
        /// Repeated in the answer.
        request: u64,
        /// Host and port.
        to: SocketAddr,
        /// Ring size in bytes, 0 for the daemon's default.
        ring_bytes: u32,
        /// What travels; a listener of another kind refuses.
        kind: Kind,
    },
    /// Stop a connect.
    CancelConnect {
        /// The request.
        request: u64,
    },
    /// A segment for the connections with another process of this host. One descriptor: the sealed memfd.
    PairSegment {
        /// The pair.
        pair: u64,
        /// Counts this side's segments from 0; slot numbers go on from one to the next.
        index: u32,
        /// Slots in it.
        slots: u32,
        /// Bytes of each ring.
        ring_bytes: u32,
    },
    /// A same-host connection was closed by both sides. Each side sends it once it has closed, has seen the peer closed
    /// and has set its own cursors back to 0; the slot may be used again, with another generation, when both have.
    PairClosed {
        /// The connection.
        connection: u64,
    },
    /// A question for a page of `raas ss` and the like. A client asks one question at a time; the daemon counts it as
    /// answered when the client's socket has taken the answer.
    Inspect {
        /// Repeated in the answer.
        request: u64,
        /// What to answer.
        query: InspectQuery,
        /// Where the page begins.
        from: Cursor,
    },
    /// Break the queue pair of the lane to a host, as a failure of the device would. Its connections see a pause. Only
    /// root and the daemon's own user may ask. Answered by [`crate::InspectAnswer::LaneReset`].
    ResetLane {
        /// Repeated in the answer.
        request: u64,
        /// The host.
        peer: IpAddr,
    },
    /// The application has a connection over kernel TCP, as it asked for: for `raas ss`. Not answered.
    TcpOpened {
        /// The application's number for it. No other open connection of the application has this number.
        number: u64,
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
    },
    /// It is closed. Not answered.
    TcpClosed {
        /// Its number.
        number: u64,
    },
    /// Bind a datagram socket to a port of this host; datagrams have ports of their own. Answered by
    /// [`crate::Reply::Connected`], with a connection on a lane that has no peer. Closing its slot closes the socket.
    BindDatagram {
        /// Repeated in the answer.
        request: u64,
        /// Port, 0 for any free one.
        port: u16,
        /// Ring size in bytes, 0 for the daemon's default.
        ring_bytes: u32,
    },
    /// Open an operation queue, for operations on regions of other hosts (docs/use/regions.md). Answered by
    /// [`crate::Reply::Connected`], with a connection on a lane that has no peer. Closing its slot closes the queue.
    OpenOperations {
        /// Repeated in the answer.
        request: u64,
        /// Ring size in bytes, 0 for the daemon's default.
        ring_bytes: u32,
    },
    /// The application is at its limit of open descriptors. Not answered.
    NotTaken {
        /// What it could not take.
        what: NotTaken,
        /// Descriptors that it may have open, for the daemon's log.
        limit: u64,
    },
    /// Asks how long a datagram to a host may be. The daemon makes a link to the host if there is none. Answered by
    /// [`crate::Reply::DatagramPath`].
    DatagramPath {
        /// Repeated in the answer.
        request: u64,
        /// The host.
        to: IpAddr,
    },
    /// Make a region. Answered by [`crate::Reply::RegionOpened`].
    RegionCreate {
        /// Repeated in the answer.
        request: u64,
        /// What it is to be.
        spec: RegionSpec,
    },
    /// Open a region of a host. Answered by [`crate::Reply::RegionOpened`].
    RegionOpen {
        /// Repeated in the answer.
        request: u64,
        /// Its host: this one or another.
        host: IpAddr,
        /// Its name there.
        name: String,
        /// Its key.
        key: RegionKey,
        /// What the handle is for.
        access: RegionAccess,
        /// Opened by a lease ([`crate::Reply::RegionLent`]) and its key. The name then does not count, and the access
        /// is [`RegionAccess::READ`].
        lease: Option<u64>,
        /// Of another host: its operations are to have a lane of their own (docs/inside/lanes.md).
        leased_lane: bool,
    },
    /// Become the owner of a region of this host that nobody owns, which outlived the program that made it. Answered by
    /// [`crate::Reply::RegionOpened`].
    RegionAdopt {
        /// Repeated in the answer.
        request: u64,
        /// How it was made; its key is the one that it has now.
        spec: RegionSpec,
    },
    /// Become the one writer of a region that has one at a time. Answered by [`crate::Reply::RegionOpened`] when
    /// nothing that the writer before began can reach the region any more.
    RegionTakeOver {
        /// Repeated in the answer.
        request: u64,
        /// Its host: this one or another.
        host: IpAddr,
        /// Its name there.
        name: String,
        /// Its key.
        key: RegionKey,
        /// Greater than that of every take-over before.
        term: u64,
    },
    /// A handle is not used any more. The owner's: the region ends, unless it outlives its owner. Not answered.
    RegionClose {
        /// The handle.
        open: u64,
        /// Of the owner's: the region ends, whether it would outlive its owner or not.
        delete: bool,
    },
    /// End all handles to a region of this host but its owner's. A region without an owner ends. Answered by
    /// [`crate::Reply::RegionRevoked`] when no access by an older handle can reach the region any more.
    RegionRevoke {
        /// Repeated in the answer.
        request: u64,
        /// Its name.
        name: String,
        /// Its key.
        key: RegionKey,
        /// The key from then on, if it changes.
        new_key: Option<RegionKey>,
    },
    /// The owner has followed [`crate::Reply::RegionMove`]: the bytes are in the new memory, and it uses no other.
    RegionMoved {
        /// The owner's handle.
        open: u64,
        /// The epoch of the new memory.
        epoch: u64,
    },
    /// The program will have the owner of a region told of what it writes, by operations of its queues. Answered by
    /// [`crate::Reply::RegionNotifier`].
    RegionNotifier {
        /// Repeated in the answer.
        request: u64,
        /// The program's handle, to a region of this host that it has mapped.
        open: u64,
    },
    /// The owner of a region installs a kernel at it. Answered by [`crate::Reply::RegionInstalled`].
    RegionInstall {
        /// Repeated in the answer.
        request: u64,
        /// The owner's handle.
        open: u64,
        /// The kernel's name.
        kernel: String,
        /// A WebAssembly module.
        module: Vec<u8>,
    },
    /// A region of this host that the application has open is to be local memory of its operations on regions of other
    /// hosts: the device reads and writes it itself. Answered by [`crate::Reply::RegionAttached`].
    RegionAttach {
        /// Repeated in the answer.
        request: u64,
        /// The handle.
        open: u64,
        /// The epoch of the memory that the application has mapped.
        epoch: u64,
    },
    /// That memory is not used any more. Not answered.
    RegionDetach {
        /// Its number.
        number: u32,
    },
    /// What writers tell the owner of a region goes into the receive ring of this operation queue from here on, as notices
    /// (docs/inside/shared-memory.md). Not answered.
    RegionNotices {
        /// The owner's handle.
        open: u64,
        /// Number of the queue, which the program opened for nothing else.
        queue: u64,
    },
    /// The program has one end of a kernel TCP connection, and would replace it by a stream if the other end would too
    /// (docs/use/run.md). One descriptor: the connected socket, which the daemon looks at and closes. Answered by
    /// [`crate::Reply::Met`] when the other end is found, or cannot be.
    Meet {
        /// Repeated in the answer.
        request: u64,
        /// Which end.
        end: TcpEnd,
    },
    /// Says what came of a [`crate::Reply::MeetStep`]. Not answered.
    MeetProof {
        /// The request of [`Request::Meet`].
        request: u64,
        /// What.
        proof: MeetProof,
    },
    /// The program does not want to replace it any more, or has closed it. Not answered.
    Unmeet {
        /// The request of [`Request::Meet`].
        request: u64,
    },
    /// Let the program at the other end of a connection read a region of this host, so that slices of it can be messages
    /// (docs/use/by-reference.md). Answered by [`crate::Reply::RegionLent`].
    RegionLend {
        /// Repeated in the answer.
        request: u64,
        /// The lender's handle, which allows reading.
        open: u64,
        /// The connection. If it is none with a program of this host, any program of `host` that has the key may open
        /// the lease.
        connection: u64,
        /// The host at the other end of the connection.
        host: IpAddr,
        /// What the other program must know.
        key: RegionKey,
    },
    /// Nothing more is opened by a lease. [`crate::Reply::RegionLeaseOver`] follows when nobody has anything open by
    /// it. Not answered.
    RegionUnlend {
        /// The lease.
        lease: u64,
    },
    /// Slices that were lent by a host are not looked at any more. Not answered.
    RegionLoansBack {
        /// The lender's host.
        host: IpAddr,
        /// The lease by which they were lent.
        lease: u64,
        /// Its key.
        key: RegionKey,
        /// The loans: bit n stands for loan n of the connection.
        loans: u64,
    },
    /// The lender has followed [`crate::Reply::RegionLoansBack`]. The daemon sends no other one of the lease before.
    /// Not answered.
    RegionLoansTaken {
        /// The lease.
        lease: u64,
    },
    /// The session of an application whose daemon ended, for the daemon that came after it (docs/operate/restart.md). The next
    /// message after the Hello of [`Role::Returning`]. One descriptor: the session segment.
    Return {
        /// Slots of the segment.
        slots: u32,
        /// Engines of the daemon that made it.
        engines: u32,
        /// Bytes of the segment's layout.
        session_bytes: u64,
        /// No chunk of the session had this number or a greater one.
        next_chunk: u32,
        /// Slots that the application uses: bit `i % 8` of byte `i / 8` stands for slot `i`. Bytes at the end that are 0
        /// may be left out.
        used: Vec<u8>,
    },
    /// A chunk of the session's rings. One descriptor. Only between [`Request::Return`] and [`Request::ReturnEnd`].
    ReturnChunk {
        /// Its number.
        chunk: u32,
        /// Direction.
        kind: ChunkKind,
        /// Its bytes.
        bytes: u64,
    },
    /// Connections through lanes: their tickets, at most [`RETURNED_MAX`]. Only between [`Request::Return`] and
    /// [`Request::ReturnEnd`].
    ReturnConnections {
        /// As [`crate::Connection::ticket`] was.
        tickets: Vec<Vec<u8>>,
    },
    /// Connections with processes of this host, which went on without the daemon: for `raas ss`. Only between
    /// [`Request::Return`] and [`Request::ReturnEnd`].
    ReturnPairs {
        /// At most [`RETURNED_MAX`].
        ends: Vec<ReturnedEnd>,
    },
    /// Nothing more comes of the session. Answered by [`crate::Reply::Welcome`], whose descriptors lack the session
    /// segment.
    ReturnEnd,
    /// The daemon is to run a kernel at regions of this host that the program has open, the first with the right to
    /// execute. Answered by [`crate::Reply::RegionRan`].
    RegionRun {
        /// Repeated in the answer.
        request: u64,
        /// The handle of the region that the run is about.
        open: u64,
        /// Handles of others that it may use, at most 16.
        others: Vec<u64>,
        /// Name and arguments, at most 896 bytes.
        bytes: Vec<u8>,
    },
    /// Another daemon is to take this one's place: end without a word to programs and peers, which then wait for it
    /// (docs/operate/restart.md). Only root and the daemon's own user may ask. Answered by
    /// [`crate::InspectAnswer::HandsOver`].
    HandOver {
        /// Repeated in the answer.
        request: u64,
        /// The other daemon.
        successor: Successor,
    },
    /// Which hosts of the cluster have or serve a name (docs/operate/clusters.md). Answered by
    /// [`crate::InspectAnswer::Found`].
    Lookup {
        /// Repeated in the answer.
        request: u64,
        /// The name. Upper and lower case are the same.
        name: String,
    },
    /// A region of this program that ended with the daemon before this one is to be made again (docs/operate/restart.md). Answered
    /// by [`crate::Reply::RegionOpened`]; nobody else gets the region before the owner says [`Request::RegionMoved`].
    RegionReturn {
        /// Repeated in the answer.
        request: u64,
        /// As it was.
        spec: RegionSpec,
        /// The epoch that it was in, at most [`REGION_EPOCH_MAX`](crate::REGION_EPOCH_MAX). The next one begins.
        epoch: u64,
        /// Which one it was. Of its user the daemon knows better.
        line: RegionLine,
    },
}

/// Connections that one message brings back at most.
pub const RETURNED_MAX: usize = 256;

/// One end of a connection with a process of this host, that an application brings back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnedEnd {
    /// Number, as the daemon gave it that made the connection. [`Request::PairClosed`] names it when it is over.
    pub connection: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// Bytes written so far.
    pub tx_bytes: u64,
    /// Bytes read so far.
    pub rx_bytes: u64,
}

/// What an application could not take because it may open no more descriptors. Connections that need it are refused,
/// with a reason for both ends. All others go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotTaken {
    /// A [`crate::Reply::Chunk`]: connections in it end, and it is used for no other.
    Chunk {
        /// Its number.
        chunk: u32,
    },
    /// A [`crate::Reply::PairOpened`]: there is no pair.
    Pair {
        /// Its number.
        pair: u64,
    },
    /// A [`crate::Reply::Direct`]: the stream stays on the lane.
    Direct {
        /// The connection.
        connection: u64,
    },
    /// A [`crate::Reply::PairSegment`], or the segment of a [`crate::Reply::PairSegmentWanted`] could not be made. The
    /// number may be asked for once more.
    PairSegment {
        /// The pair.
        pair: u64,
        /// Its number.
        index: u32,
    },
}

/// Direction of a ring chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChunkKind {
    /// The application writes, the device reads.
    Tx,
    /// The device writes, the application reads. The only remote-writable memory.
    Rx,
}
