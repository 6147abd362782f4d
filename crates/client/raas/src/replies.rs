//! What the daemon says, made true: answers, chunks, pairs, connections.
//!
//! Owns the checks of the daemon's descriptions before memory is used by them. An error of these functions means that the
//! daemon cannot be followed any more; a connection that cannot be is only refused.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use control::{ChunkKind, Connection, NotTaken, Path, Reason, Received, Reply, Request};
use shm::{Pair, RingMemory, Segment, SegmentError, Sharing, WakeSocket};

use crate::SessionError;
use crate::conn::{Conn, Link};
use crate::driver::TOKEN_PAIRS;
use crate::inner::Inner;
use crate::lane::LaneEnd;
use crate::pair::{PairError, PairLink};
use crate::park::lock;
use crate::tables::{Answer, CHUNKS_MAX, Chunk, Failed, describe};

/// Ring sizes that a connection may have, in bytes; powers of two.
pub(crate) use shm::{RING_BYTES_MAX, RING_BYTES_MIN};

/// Slots of a pair segment at most.
const PAIR_SLOTS_MAX: u32 = 4096;
/// Bytes of a pair segment at most; its pages come into being when they are used.
const PAIR_BYTES_MAX: u64 = 4 << 30;
/// Bytes of a ring chunk at most.
const CHUNK_BYTES_MAX: u64 = 16 << 30;

impl Inner {
    /// Follows one message of the daemon.
    pub(crate) fn on_reply(self: &Arc<Self>, received: Received<Reply>) -> Result<(), SessionError> {
        let Received { message, fds, lacks_fds } = received;
        let one = |fds| one(fds, lacks_fds);
        match message {
            Reply::Listening { request, result } => {
                self.on_listening(request, result);
                Ok(())
            }
            Reply::Chunk { chunk, kind, bytes } => self.on_chunk(chunk, kind, bytes, one(fds)?),
            Reply::ChunkGone { chunk } => {
                // Connections that still use it hold the memory themselves.
                let _gone = lock(&self.tables).chunks().remove(&chunk);
                Ok(())
            }
            Reply::Connected { request, result } => {
                self.on_connected(request, result);
                Ok(())
            }
            Reply::DatagramPath { request, result } => {
                drop(lock(&self.tables).answer(request, Answer::Path(result)));
                Ok(())
            }
            Reply::Incoming { port, connection } => {
                self.on_incoming(port, &connection);
                Ok(())
            }
            Reply::PairOpened { pair, peer_pid } => self.on_pair(pair, peer_pid, one(fds)?),
            Reply::PairSegment { pair, index, slots, ring_bytes } => {
                self.on_peer_segment(pair, index, (slots, ring_bytes), one(fds)?)
            }
            Reply::PairSegmentWanted { pair, index, slots, ring_bytes } => {
                self.on_segment_wanted(pair, index, (slots, ring_bytes))
            }
            Reply::Detached { reason, .. } => Err(SessionError::Lost { reason }),
            other @ (Reply::Welcome { .. } | Reply::Refused { .. } | Reply::Inspected { .. }) => {
                Err(SessionError::Protocol(format!("unexpected {other:?}")))
            }
        }
    }

    fn on_listening(&self, request: u64, result: Result<std::net::SocketAddr, Reason>) {
        let mut tables = lock(&self.tables);
        // The port is open before the thread that asked for it runs: connections may follow this very message.
        if let Ok(addr) = result
            && tables.is_pending(request)
        {
            tables.open_port(addr.port());
        }
        let unclaimed = tables.answer(request, Answer::Listening(result));
        drop(tables);
        if let Some(Answer::Listening(Ok(addr))) = unclaimed {
            self.tell(&Request::Unlisten { port: addr.port() });
        }
    }

    fn on_connected(self: &Arc<Self>, request: u64, result: Result<Connection, Reason>) {
        let result = match result {
            Ok(connection) => self.open(&connection),
            Err(reason) => Err(Failed::Reason(reason)),
        };
        let unclaimed = lock(&self.tables).answer(request, Answer::Connected(result));
        // Nobody waits any more: dropping it closes it, and not under the lock.
        drop(unclaimed);
    }

    fn on_incoming(self: &Arc<Self>, port: u16, connection: &Connection) {
        // One that cannot be opened is dropped here; its peer sees it reset or die.
        if let Ok(conn) = self.open(connection) {
            let unclaimed = lock(&self.tables).arrive(port, conn);
            drop(unclaimed);
        }
    }

    // ---- memory

    /// Tells the daemon what this process, at its limit of open descriptors, has no room for: connections that need it
    /// are refused, all others go on.
    fn not_taken(&self, what: NotTaken) {
        self.tell(&Request::NotTaken { what, limit: control::descriptor_limit() });
    }

    fn on_chunk(&self, chunk: u32, kind: ChunkKind, bytes: u64, fd: Option<OwnedFd>) -> Result<(), SessionError> {
        if bytes > CHUNK_BYTES_MAX {
            return Err(SessionError::Protocol(format!(
                "chunk {chunk} of {bytes} bytes is longer than {CHUNK_BYTES_MAX}"
            )));
        }
        let segment = fd.map(|fd| Segment::accept(fd, bytes, Sharing::ReadWrite)).transpose();
        let region = match segment {
            Ok(segment) => segment.map(Segment::into_region),
            Err(e) => return Err(SessionError::Protocol(format!("chunk {chunk}: {e}"))),
        };
        if region.is_none() {
            self.not_taken(NotTaken::Chunk { chunk });
        }
        let mut tables = lock(&self.tables);
        let chunks = tables.chunks();
        if chunks.len() >= CHUNKS_MAX || chunks.contains_key(&chunk) {
            return Err(SessionError::Protocol(format!("chunk {chunk} is one too many, or there already")));
        }
        chunks.insert(chunk, Chunk { kind, region });
        Ok(())
    }

    fn on_pair(&self, id: u64, peer_pid: u32, fd: Option<OwnedFd>) -> Result<(), SessionError> {
        let token = id
            .checked_add(TOKEN_PAIRS)
            .ok_or_else(|| SessionError::Protocol(format!("pair number {id} is too large")))?;
        let Some(fd) = fd else {
            self.not_taken(NotTaken::Pair { pair: id });
            return Ok(());
        };
        let socket = WakeSocket::from_fd(fd).map_err(|e| SessionError::Protocol(format!("pair {id}: {e}")))?;
        let pair = Arc::new(PairLink::new(id, peer_pid, socket));
        if !lock(&self.tables).add_pair(Arc::clone(&pair)) {
            return Err(SessionError::Protocol(format!("pair {id} is one too many, or there already")));
        }
        self.watch_pair(&pair, token)
    }

    /// A segment from the other process. If it is not as it must be, connections on it are refused; the daemon only
    /// passed it on.
    fn on_peer_segment(&self, id: u64, index: u32, shape: (u32, u32), fd: Option<OwnedFd>) -> Result<(), SessionError> {
        let (slots, ring_bytes) = shape;
        let bytes = pair_bytes(slots, ring_bytes)?;
        let Some(pair) = lock(&self.tables).pair(id) else { return Ok(()) };
        let Some(fd) = fd else {
            pair.put_peer(index, slots, None);
            self.not_taken(NotTaken::PairSegment { pair: id, index });
            return Ok(());
        };
        if let Ok(segment) = Segment::accept(fd, bytes, Sharing::PeerReadOnly)
            && let Ok(segment) = Pair::open(segment.into_region(), slots, ring_bytes)
        {
            pair.put_peer(index, slots, Some(segment));
        }
        Ok(())
    }

    fn on_segment_wanted(&self, id: u64, index: u32, shape: (u32, u32)) -> Result<(), SessionError> {
        let (slots, ring_bytes) = shape;
        let bytes = pair_bytes(slots, ring_bytes)?;
        let Some(pair) = lock(&self.tables).pair(id) else { return Ok(()) };
        let made = |e: &dyn std::fmt::Display| SessionError::Protocol(format!("segment for pair {id}: {e}"));
        let segment = match Segment::create("raas-pair", bytes, Sharing::PeerReadOnly) {
            Ok(segment) => Some(segment),
            Err(SegmentError::Os { source, .. }) if is_want(&source) => None,
            Err(e) => return Err(made(&e)),
        };
        let format = |s: &Segment| Pair::format(s.region().clone(), slots, ring_bytes);
        let memory = segment.as_ref().map(format).transpose().map_err(|e| made(&e))?;
        if !pair.put_own(index, slots, memory) {
            return Err(made(&format!("{index} is in use, or not the next one")));
        }
        let Some(segment) = segment else {
            self.not_taken(NotTaken::PairSegment { pair: id, index });
            return Ok(());
        };
        let request = Request::PairSegment { pair: id, index, slots, ring_bytes };
        self.send(&request, &[segment.fd().as_fd()])
    }

    // ---- connections

    fn open(self: &Arc<Self>, connection: &Connection) -> Result<Arc<Conn>, Failed> {
        match connection.path {
            Path::Lane { .. } => self.open_lane(connection),
            Path::Shm { pair, slot, generation } => self.open_pair(connection, pair, slot, generation),
        }
    }

    fn open_lane(self: &Arc<Self>, connection: &Connection) -> Result<Arc<Conn>, Failed> {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes } = connection.path
        else {
            return Err(Failed::Protocol("not a lane".into()));
        };
        let wrong = |what: &str| Failed::Protocol(format!("{}: {what}", describe(connection)));
        if slot >= self.memory.slots() {
            return Err(wrong(&format!("slot {slot} of {}", self.memory.slots())));
        }
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) {
            return Err(wrong(&format!("ring of {ring_bytes} bytes")));
        }
        // One still in use would be two connections on one slot.
        if lock(&self.lane_slots).at(slot).is_some_and(|conn| conn.strong_count() > 0) {
            return Err(wrong(&format!("slot {slot} is in use")));
        }
        let refuse = |failed| {
            LaneEnd::refuse(&self.memory, slot, generation);
            failed
        };
        let ring = |number: u32, kind: ChunkKind, offset: u64| {
            let mut tables = lock(&self.tables);
            match tables.chunks().get(&number) {
                Some(Chunk { kind: found, region: Some(region) }) if *found == kind => {
                    Ok(RingMemory { region: region.clone(), offset, bytes: ring_bytes.into() })
                }
                // The daemon was told, and ends the connection.
                Some(Chunk { region: None, .. }) => Err(Failed::Reason(Reason::AppDescriptors)),
                _ => Err(refuse(wrong(&format!("no {kind:?} chunk {number}")))),
            }
        };
        let tx = ring(tx_chunk, ChunkKind::Tx, tx_offset)?;
        let rx = ring(rx_chunk, ChunkKind::Rx, rx_offset)?;
        let place = (slot, generation, self.pid());
        let (mut end, reader, writer) = LaneEnd::open(&self.memory, self.engine_sleep.clone(), place, tx, rx)
            .map_err(|e| refuse(wrong(&e.to_string())))?;
        end.is_datagram = connection.peer.port() == 0;
        let who = (connection.id, connection.local, connection.peer);
        let conn = Arc::new(Conn::new(Arc::clone(self), who, Link::Lane(end), (reader, ring_bytes.into()), writer));
        lock(&self.lane_slots).set(slot, Arc::downgrade(&conn));
        Ok(conn)
    }

    fn open_pair(
        self: &Arc<Self>,
        connection: &Connection,
        pair: u64,
        slot: u32,
        generation: u32,
    ) -> Result<Arc<Conn>, Failed> {
        // A pair that is gone, or whose segments were no good: the other process is to blame, or dead.
        let Some(link) = lock(&self.tables).pair(pair) else {
            self.tell(&Request::PairClosed { connection: connection.id });
            return Err(Failed::Reason(Reason::PeerAppDied));
        };
        let (end, reader, writer) = match link.open(slot, generation, self.pid()) {
            Ok(opened) => opened,
            Err(e) => {
                let lacks_segment = matches!(e, PairError::NotTaken(..));
                let reason = if lacks_segment { Reason::PeerAppDescriptors } else { Reason::PeerLimit };
                link.refuse(slot, generation, reason);
                self.tell(&Request::PairClosed { connection: connection.id });
                return Err(match lacks_segment {
                    true => Failed::Reason(Reason::AppDescriptors),
                    false => Failed::Protocol(format!("{}: {e}", describe(connection))),
                });
            }
        };
        let who = (connection.id, connection.local, connection.peer);
        let conn = Arc::new(Conn::new(Arc::clone(self), who, Link::Pair(end), reader, writer));
        link.set(slot, Arc::downgrade(&conn));
        Ok(conn)
    }
}

/// The descriptor of a message that has one. None: this process had no room for it.
fn one(fds: Vec<OwnedFd>, lacks_fds: bool) -> Result<Option<OwnedFd>, SessionError> {
    let count = fds.len();
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next()) {
        (Some(fd), None) if !lacks_fds => Ok(Some(fd)),
        (None, _) if lacks_fds => Ok(None),
        _ => Err(SessionError::Protocol(format!("a message with {count} descriptors instead of one"))),
    }
}

/// Whether the system has no descriptor to give: this process's limit, or the machine's.
fn is_want(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

fn pair_bytes(slots: u32, ring_bytes: u32) -> Result<u64, SessionError> {
    let rings = ring_bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
    if !rings || !(1..=PAIR_SLOTS_MAX).contains(&slots) || !slots.is_power_of_two() {
        return Err(SessionError::Protocol(format!("pair segment with {slots} rings of {ring_bytes} bytes")));
    }
    let bytes = Pair::bytes(slots, ring_bytes);
    if bytes > PAIR_BYTES_MAX {
        return Err(SessionError::Protocol(format!("pair segment of {bytes} bytes is longer than {PAIR_BYTES_MAX}")));
    }
    Ok(bytes)
}
