//! Messages of the daemon with memory in the place of descriptors.
//!
//! Owns the checks of each descriptor before it is mapped. It must never map more than the named limits.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use control::{ChunkKind, Connection, KernelEnd, MeetStep, MeetingPlace, Reason, Received, RegionRefusal, Reply};
use shm::{Pair, Region, Segment, Sharing, WakeSocket};

use crate::regions::admit_region;
use crate::sizes::pair_bytes;
use crate::{NewRegion, RegionNews, SessionFault};

/// Bytes of a ring chunk at most.
const CHUNK_BYTES_MAX: u64 = 16 << 30;

/// Descriptors that a program must have left for one of a chunk to be kept.
const DESCRIPTORS_LEFT: u64 = 64;

/// The segment of another process.
#[derive(Debug)]
pub enum PeerSegment {
    /// As it must be.
    Mapped(Pair),
    /// Not as it must be: connections on it are refused. The daemon only passed it on.
    Refused,
    /// This process had no descriptor for it.
    NotTaken,
}

/// A message of the daemon whose descriptors were all checked; see [`Reply`].
#[derive(Debug)]
pub enum DaemonMessage {
    /// [`Reply::Listening`].
    Listening {
        /// The request.
        request: u64,
        /// The port, or why not.
        result: Result<SocketAddr, Reason>,
    },
    /// [`Reply::Connected`].
    Connected {
        /// The request.
        request: u64,
        /// The connection, or why not.
        result: Result<Connection, Reason>,
    },
    /// [`Reply::DatagramPath`].
    DatagramPath {
        /// The request.
        request: u64,
        /// Longest datagram in bytes, or why not.
        result: Result<u32, Reason>,
    },
    /// [`Reply::Incoming`].
    Incoming {
        /// The listener's port.
        port: u16,
        /// The connection.
        connection: Connection,
    },
    /// [`Reply::Chunk`].
    Chunk {
        /// Its number.
        chunk: u32,
        /// Direction.
        kind: ChunkKind,
        /// None: this process had no descriptor for it.
        region: Option<Region>,
        /// Its descriptor, for a daemon that comes after this one, if the process has room for it.
        kept: Option<OwnedFd>,
    },
    /// [`Reply::ChunkGone`].
    ChunkGone {
        /// Its number.
        chunk: u32,
    },
    /// [`Reply::PairOpened`].
    PairOpened {
        /// Its number.
        pair: u64,
        /// The other process.
        peer_pid: u32,
        /// None: this process had no descriptor for it.
        socket: Option<WakeSocket>,
    },
    /// [`Reply::PairSegment`].
    PairSegment {
        /// The pair.
        pair: u64,
        /// Its number among the peer's.
        index: u32,
        /// Slots in it.
        slots: u32,
        /// The memory.
        segment: PeerSegment,
    },
    /// [`Reply::PairSegmentWanted`].
    PairSegmentWanted {
        /// The pair.
        pair: u64,
        /// Its number among this side's.
        index: u32,
        /// Slots in it.
        slots: u32,
        /// Bytes of each ring.
        ring_bytes: u32,
    },
    /// [`Reply::RegionOpened`].
    RegionOpened {
        /// The request.
        request: u64,
        /// The handle, or why not.
        result: Result<Box<NewRegion>, RegionRefusal>,
    },
    /// [`Reply::RegionRevoked`].
    RegionRevoked {
        /// The request.
        request: u64,
        /// The new epoch, or why not.
        result: Result<u64, RegionRefusal>,
    },
    /// [`Reply::RegionInstalled`].
    RegionInstalled {
        /// The request.
        request: u64,
        /// Whether the kernel can be run.
        result: Result<(), RegionRefusal>,
    },
    /// [`Reply::RegionRan`].
    RegionRan {
        /// The request.
        request: u64,
        /// How the kernel ended, or why none began.
        result: Result<KernelEnd, RegionRefusal>,
    },
    /// [`Reply::RegionNotifier`].
    RegionNotifier {
        /// The request.
        request: u64,
        /// What submissions name, or why there is none.
        result: Result<u32, RegionRefusal>,
    },
    /// [`Reply::MeetStep`].
    MeetStep {
        /// The request.
        request: u64,
        /// What to do.
        step: MeetStep,
    },
    /// [`Reply::Met`].
    Met {
        /// The request.
        request: u64,
        /// Where the other end is, or why the connection stays on TCP.
        result: Result<MeetingPlace, Reason>,
    },
    /// [`Reply::RegionAttached`].
    RegionAttached {
        /// The request.
        request: u64,
        /// The memory's number, or why not.
        result: Result<u32, RegionRefusal>,
    },
    /// [`Reply::RegionLent`].
    RegionLent {
        /// The request.
        request: u64,
        /// The lease, or why not.
        result: Result<u64, RegionRefusal>,
    },
    /// [`Reply::RegionMove`] and all others that speak of a handle which the program has.
    RegionNews(RegionNews),
    /// [`Reply::Direct`].
    Direct {
        /// The connection.
        connection: u64,
        /// Its slot.
        slot: u32,
        /// A connected TCP socket. None: this process had no descriptor for it.
        socket: Option<OwnedFd>,
    },
    /// [`Reply::Detached`].
    Detached {
        /// Why.
        reason: Reason,
    },
}

/// Checks the descriptors of a message and maps its memory. An error means that the session cannot go on with this
/// daemon.
pub fn admit(received: Received<Reply>) -> Result<DaemonMessage, SessionFault> {
    let Received { message, fds, lacks_fds } = received;
    let message = match message {
        Reply::RegionOpened { request, result } => {
            let result = result.map(|opened| admit_region(opened, fds, lacks_fds).map(Box::new));
            return Ok(DaemonMessage::RegionOpened { request, result: swap(result)? });
        }
        other => other,
    };
    let one = |fds| one(fds, lacks_fds);
    Ok(match message {
        Reply::RegionRevoked { request, result } => DaemonMessage::RegionRevoked { request, result },
        Reply::RegionNotifier { request, result } => DaemonMessage::RegionNotifier { request, result },
        Reply::RegionInstalled { request, result } => DaemonMessage::RegionInstalled { request, result },
        Reply::RegionRan { request, result } => DaemonMessage::RegionRan { request, result },
        Reply::MeetStep { request, step } => DaemonMessage::MeetStep { request, step },
        Reply::Met { request, result } => DaemonMessage::Met { request, result },
        Reply::RegionAttached { request, result } => DaemonMessage::RegionAttached { request, result },
        Reply::RegionMove { open, epoch, stamp, key } => {
            DaemonMessage::RegionNews(RegionNews::Move { open, epoch, stamp, key, memory: one(fds)? })
        }
        Reply::RegionEnded { open, why } => DaemonMessage::RegionNews(RegionNews::Ended { open, why }),
        Reply::RegionLent { request, result } => DaemonMessage::RegionLent { request, result },
        Reply::RegionLoansBack { open, lease, loans } => {
            DaemonMessage::RegionNews(RegionNews::LoansBack { open, lease, loans })
        }
        Reply::RegionLeaseOver { open, lease } => DaemonMessage::RegionNews(RegionNews::LeaseOver { open, lease }),
        Reply::Listening { request, result } => DaemonMessage::Listening { request, result },
        Reply::Connected { request, result } => DaemonMessage::Connected { request, result },
        Reply::DatagramPath { request, result } => DaemonMessage::DatagramPath { request, result },
        Reply::Incoming { port, connection } => DaemonMessage::Incoming { port, connection },
        Reply::Chunk { chunk, kind, bytes } => {
            let (region, kept) = chunk_region(chunk, bytes, one(fds)?)?.unzip();
            DaemonMessage::Chunk { chunk, kind, region, kept: kept.flatten() }
        }
        Reply::ChunkGone { chunk } => DaemonMessage::ChunkGone { chunk },
        Reply::PairOpened { pair, peer_pid } => {
            let refused = |e| SessionFault::Protocol(format!("pair {pair}: {e}"));
            let socket = one(fds)?.map(WakeSocket::from_fd).transpose().map_err(refused)?;
            DaemonMessage::PairOpened { pair, peer_pid, socket }
        }
        Reply::PairSegment { pair, index, slots, ring_bytes } => {
            let segment = peer_segment(slots, ring_bytes, one(fds)?)?;
            DaemonMessage::PairSegment { pair, index, slots, segment }
        }
        Reply::PairSegmentWanted { pair, index, slots, ring_bytes } => {
            DaemonMessage::PairSegmentWanted { pair, index, slots, ring_bytes }
        }
        Reply::Direct { connection, slot } => DaemonMessage::Direct { connection, slot, socket: one(fds)? },
        Reply::Detached { reason, .. } => DaemonMessage::Detached { reason },
        other @ (Reply::Welcome { .. }
        | Reply::Refused { .. }
        | Reply::Inspected { .. }
        | Reply::RegionOpened { .. }) => {
            return Err(SessionFault::Protocol(format!("unexpected {other:?}")));
        }
    })
}

/// A fault ends the session; a refusal is an answer.
fn swap<T, R>(result: Result<Result<T, SessionFault>, R>) -> Result<Result<T, R>, SessionFault> {
    match result {
        Ok(Ok(value)) => Ok(Ok(value)),
        Ok(Err(fault)) => Err(fault),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// The descriptor of a message that has one. None: this process had no room for it.
fn one(fds: Vec<OwnedFd>, lacks_fds: bool) -> Result<Option<OwnedFd>, SessionFault> {
    let count = fds.len();
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next()) {
        (Some(fd), None) if !lacks_fds => Ok(Some(shm::raised(fd))),
        (None, _) if lacks_fds => Ok(None),
        _ => Err(SessionFault::Protocol(format!("a message with {count} descriptors instead of one"))),
    }
}

fn chunk_region(
    chunk: u32,
    bytes: u64,
    fd: Option<OwnedFd>,
) -> Result<Option<(Region, Option<OwnedFd>)>, SessionFault> {
    if bytes > CHUNK_BYTES_MAX {
        let words = format!("chunk {chunk} of {bytes} bytes is longer than {CHUNK_BYTES_MAX}");
        return Err(SessionFault::Protocol(words));
    }
    let segment = fd.map(|fd| Segment::accept(fd, bytes, Sharing::ReadWrite)).transpose();
    match segment {
        Ok(segment) => Ok(segment.map(|segment| {
            let (region, fd) = segment.into_parts();
            // A program that is near its limit needs its descriptors more.
            let number = u64::try_from(fd.as_raw_fd()).unwrap_or(u64::MAX);
            let has_room = number.saturating_add(DESCRIPTORS_LEFT) < control::descriptor_limit();
            (region, has_room.then_some(fd))
        })),
        Err(e) => Err(SessionFault::Protocol(format!("chunk {chunk}: {e}"))),
    }
}

fn peer_segment(slots: u32, ring_bytes: u32, fd: Option<OwnedFd>) -> Result<PeerSegment, SessionFault> {
    let bytes = pair_bytes(slots, ring_bytes)?;
    let Some(fd) = fd else { return Ok(PeerSegment::NotTaken) };
    let opened = Segment::accept(fd, bytes, Sharing::PeerReadOnly)
        .ok()
        .and_then(|segment| Pair::open(segment.into_region(), slots, ring_bytes).ok());
    Ok(opened.map_or(PeerSegment::Refused, PeerSegment::Mapped))
}
