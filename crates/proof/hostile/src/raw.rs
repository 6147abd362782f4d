//! The control socket and the shared memory of a daemon as an application without manners sees them.
//!
//! Owns the exchange of messages and what the daemon handed out, and lets everyone write anywhere. It must never check
//! what it sends: that is the daemon's part.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use control::{
    APP_VERSION, ChannelError, ChunkKind, Connection, Reason, RegionSpec, Reply, Request, Role, recv_message,
    send_message,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shm::{EnginePage, LAYOUT_VERSION, Region, Segment, Session, SessionShape, Sharing, SlotWords, WakeSocket};

/// Longest wait for an answer of the daemon: hangs end, nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Messages that nobody asked for and that are kept; a tenant that floods itself keeps the first.
const KEPT_MAX: usize = 65_536;

/// Why an exchange with the daemon went no further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The daemon said that the session is over.
    #[error("detached: {reason}: {detail}")]
    Detached {
        /// Why.
        reason: Reason,
        /// More words.
        detail: String,
    },
    /// The daemon did not take us in.
    #[error("refused: {0}")]
    Refused(Reason),
    /// The request was answered by a reason.
    #[error("no: {0}")]
    No(Reason),
    /// The socket is closed.
    #[error("the daemon closed the control socket")]
    Closed,
    /// No answer within [`PATIENCE`].
    #[error("the daemon says nothing")]
    Silent,
    /// The daemon said what it should not.
    #[error("unexpected: {0}")]
    Unexpected(String),
    /// The socket.
    #[error(transparent)]
    Channel(ChannelError),
    /// A system call.
    #[error(transparent)]
    Os(#[from] std::io::Error),
    /// Memory that the daemon handed out cannot be mapped.
    #[error(transparent)]
    Segment(#[from] shm::SegmentError),
    /// Its header is wrong.
    #[error(transparent)]
    Layout(#[from] shm::LayoutError),
}

impl RawError {
    /// Whether the daemon ended the session, or had done so before.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Detached { .. } | Self::Closed | Self::Refused(_))
    }
}

impl From<rustix::io::Errno> for RawError {
    fn from(e: rustix::io::Errno) -> Self {
        Self::Os(e.into())
    }
}

impl From<ChannelError> for RawError {
    fn from(e: ChannelError) -> Self {
        match e {
            ChannelError::Closed => Self::Closed,
            other => Self::Channel(other),
        }
    }
}

/// Opens the control socket and says nothing.
pub fn dial(path: &Path) -> Result<OwnedFd, RawError> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The usual first message.
pub fn hello(name: &str) -> Request {
    Request::Hello { version: APP_VERSION, layout: LAYOUT_VERSION, role: Role::Application, name: name.into() }
}

/// An attached application that may write and say what it likes.
#[derive(Debug)]
pub struct RawApp {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// The shared session, and its raw bytes by [`Session::region`].
    pub session: Session,
    /// Whether the engine sleeps.
    pub engine: EnginePage,
    /// The wake sockets by engine.
    pub wakes: Vec<WakeSocket>,
    /// Addresses of the host.
    pub addresses: Vec<IpAddr>,
    chunks: BTreeMap<u32, Region>,
    kept: VecDeque<(Reply, Vec<OwnedFd>)>,
    next_request: u64,
}

/// A connection over a lane, with its words and rings.
#[derive(Debug, Clone)]
pub struct RawConnection {
    /// Its number.
    pub id: u64,
    /// Its own address.
    pub local: SocketAddr,
    /// Slot in the session.
    pub slot: u32,
    /// Its shared words.
    pub words: SlotWords,
    /// Chunk with the transmit ring, and where the ring begins.
    pub tx: (Region, u64),
    /// Chunk with the receive ring, and where the ring begins.
    pub rx: (Region, u64),
    /// Size of each ring.
    pub ring_bytes: u64,
}

impl RawApp {
    /// Attaches under a name.
    pub fn attach(path: &Path, name: &str) -> Result<Self, RawError> {
        let socket = dial(path)?;
        send_message(socket.as_fd(), &hello(name), &[])?;
        Self::welcomed(socket)
    }

    /// Waits for the Welcome on a socket on which Hello was said.
    pub fn welcomed(socket: OwnedFd) -> Result<Self, RawError> {
        let mut buffer = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let (reply, fds) = receive(&socket, &mut buffer, deadline)?;
        let (shape, session_bytes, page_bytes, addresses) = match reply {
            Reply::Welcome { slots, engines, session_bytes, engine_page_bytes, addresses, .. } => {
                (SessionShape { slots, engines }, session_bytes, engine_page_bytes, addresses)
            }
            Reply::Refused { reason, .. } => return Err(RawError::Refused(reason)),
            Reply::Detached { reason, detail } => return Err(RawError::Detached { reason, detail }),
            other => return Err(RawError::Unexpected(format!("{other:?}"))),
        };
        let found = fds.len();
        let mut fds = fds.into_iter();
        let (Some(session), Some(page), true) = (fds.next(), fds.next(), found == 2 + shape.engines as usize) else {
            return Err(RawError::Unexpected(format!("{found} descriptors")));
        };
        let session = Segment::accept(session, session_bytes, Sharing::ReadWrite)?.into_region();
        let page = Segment::accept(page, page_bytes, Sharing::PeerReadOnly)?.into_region();
        Ok(Self {
            socket,
            buffer,
            session: Session::open(session, shape)?,
            engine: EnginePage::open(page)?,
            wakes: fds.map(WakeSocket::from_fd).collect::<Result<_, _>>()?,
            addresses,
            chunks: BTreeMap::new(),
            kept: VecDeque::new(),
            next_request: 1,
        })
    }

    /// The control socket, for bytes that are no message.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Says something.
    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), RawError> {
        Ok(send_message(self.socket.as_fd(), request, fds)?)
    }

    /// The next message that `wanted` takes; others are kept for later calls.
    pub fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Reply) -> Option<T>) -> Result<T, RawError> {
        if let Some(at) = self.kept.iter().position(|(r, _)| wanted(r).is_some())
            && let Some((reply, _)) = self.kept.remove(at)
            && let Some(found) = wanted(&reply)
        {
            return Ok(found);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (reply, fds) = receive(&self.socket, &mut self.buffer, deadline)?;
            if let Some(found) = self.take(reply, fds, &mut wanted)? {
                return Ok(found);
            }
        }
    }

    /// The TCP connection that the daemon made for a connection, if it has come by now.
    pub fn given_direct(&mut self, connection: u64) -> Option<OwnedFd> {
        let is_it = |reply: &Reply| matches!(reply, Reply::Direct { connection: c, .. } if *c == connection);
        let at = self.kept.iter().position(|(reply, _)| is_it(reply))?;
        self.kept.remove(at)?.1.into_iter().next()
    }

    /// Takes what has come, without waiting; an end of the session is an error.
    pub fn drain(&mut self) -> Result<(), RawError> {
        loop {
            match recv_message::<Reply>(self.socket.as_fd(), &mut self.buffer) {
                Ok((reply, fds)) => {
                    self.take(reply, fds, &mut |_| None::<()>)?;
                }
                Err(ChannelError::WouldBlock) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until the daemon ends the session, and says with which words (none if it only closed).
    pub fn wait_for_end(&mut self) -> Result<String, RawError> {
        match self.wait_for(|_| None::<()>) {
            Err(RawError::Detached { detail, .. }) => Ok(detail),
            Err(RawError::Closed) => Ok(String::new()),
            Err(e) => Err(e),
            Ok(()) => Ok(String::new()),
        }
    }

    fn take<T>(
        &mut self,
        reply: Reply,
        fds: Vec<OwnedFd>,
        wanted: &mut impl FnMut(&Reply) -> Option<T>,
    ) -> Result<Option<T>, RawError> {
        match &reply {
            Reply::Detached { reason, detail } => {
                return Err(RawError::Detached { reason: *reason, detail: detail.clone() });
            }
            Reply::Chunk { chunk, bytes, kind: ChunkKind::Tx | ChunkKind::Rx } => {
                let fd = fds.into_iter().next().ok_or_else(|| RawError::Unexpected("a chunk without memory".into()))?;
                self.chunks.insert(*chunk, Segment::accept(fd, *bytes, Sharing::ReadWrite)?.into_region());
                return Ok(None);
            }
            Reply::ChunkGone { chunk } => {
                self.chunks.remove(chunk);
                return Ok(None);
            }
            _ => {}
        }
        if let Some(found) = wanted(&reply) {
            return Ok(Some(found));
        }
        if self.kept.len() < KEPT_MAX {
            self.kept.push_back((reply, fds));
        }
        Ok(None)
    }

    /// A number for the next request.
    pub fn number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Listens on any port.
    pub fn listen(&mut self, backlog: u32) -> Result<SocketAddr, RawError> {
        let request = self.number();
        self.send(&Request::Listen { request, port: 0, backlog, ring_bytes: 0, kind: control::Kind::Stream }, &[])?;
        let result = self.wait_for(|reply| match reply {
            Reply::Listening { request: r, result } if *r == request => Some(*result),
            _ => None,
        })?;
        result.map_err(RawError::No)
    }

    /// Asks for a connection; the number of the request.
    pub fn ask(&mut self, to: SocketAddr, ring_bytes: u32) -> Result<u64, RawError> {
        let request = self.number();
        self.send(&Request::Connect { request, to, ring_bytes, kind: control::Kind::Stream }, &[])?;
        Ok(request)
    }

    /// Connects to another host.
    pub fn connect(&mut self, to: SocketAddr, ring_bytes: u32) -> Result<RawConnection, RawError> {
        let request = self.ask(to, ring_bytes)?;
        self.connected(request)
    }

    /// Waits for the answer to [`Self::ask`].
    pub fn connected(&mut self, request: u64) -> Result<RawConnection, RawError> {
        let result = self.wait_for(|reply| match reply {
            Reply::Connected { request: r, result } if *r == request => Some(result.clone()),
            _ => None,
        })?;
        let connection = result.map_err(RawError::No)?;
        self.open(&connection)
    }

    /// Binds a datagram socket, to any free port if 0.
    pub fn bind(&mut self, port: u16, ring_bytes: u32) -> Result<RawConnection, RawError> {
        let request = self.number();
        self.send(&Request::BindDatagram { request, port, ring_bytes }, &[])?;
        self.connected(request)
    }

    /// Opens an operation queue.
    pub fn open_operations(&mut self, ring_bytes: u32) -> Result<RawConnection, RawError> {
        let request = self.number();
        self.send(&Request::OpenOperations { request, ring_bytes }, &[])?;
        self.connected(request)
    }

    /// Makes a region; its handle, and its memory.
    pub fn create_region(&mut self, spec: RegionSpec) -> Result<(u64, OwnedFd), RawError> {
        let request = self.number();
        self.send(&Request::RegionCreate { request, spec }, &[])?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (reply, fds) = receive(&self.socket, &mut self.buffer, deadline)?;
            match reply {
                Reply::RegionOpened { request: r, result } if r == request => {
                    let opened = result.map_err(|why| RawError::Unexpected(why.to_string()))?;
                    let memory = fds.into_iter().next();
                    return Ok((opened.open, memory.ok_or_else(|| RawError::Unexpected("no memory".into()))?));
                }
                other => _ = self.take(other, fds, &mut |_| None::<()>)?,
            }
        }
    }

    /// Waits for a connection at a listener and accepts it.
    pub fn accept(&mut self) -> Result<RawConnection, RawError> {
        let (port, connection) = self.wait_for(|reply| match reply {
            Reply::Incoming { port, connection } => Some((*port, connection.clone())),
            _ => None,
        })?;
        self.send(&Request::Accepted { port, connection: connection.id }, &[])?;
        self.open(&connection)
    }

    /// Words and rings of a connection that was announced.
    pub fn open(&self, connection: &Connection) -> Result<RawConnection, RawError> {
        let control::Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, .. } =
            connection.path
        else {
            return Err(RawError::Unexpected("a same-host connection where one over a lane was asked for".into()));
        };
        let chunk = |number: u32| {
            self.chunks.get(&number).cloned().ok_or_else(|| RawError::Unexpected(format!("no chunk {number}")))
        };
        if slot >= self.session.slots() {
            return Err(RawError::Unexpected(format!("slot {slot}")));
        }
        let words = self.session.slot(slot);
        words.rx_head.store(0, std::sync::atomic::Ordering::Relaxed);
        words.tx_tail.store(0, std::sync::atomic::Ordering::Relaxed);
        words.app_flags.store(0, std::sync::atomic::Ordering::Relaxed);
        words.app_generation.store(generation, std::sync::atomic::Ordering::Release);
        Ok(RawConnection {
            id: connection.id,
            local: connection.local,
            slot,
            words,
            tx: (chunk(tx_chunk)?, tx_offset),
            rx: (chunk(rx_chunk)?, rx_offset),
            ring_bytes: ring_bytes.into(),
        })
    }

    /// Rings for a slot as a polite application does.
    pub fn ring(&self, slot: u32) {
        let Some(place) = self.session.place_of(slot) else { return };
        place.ring();
        if place.a2e.must_wake(&self.engine.engine_sleep(place.engine))
            && let Some(wake) = self.wakes.get(place.engine as usize)
        {
            // A full buffer has wakes enough; a lost daemon shows at the control socket.
            let _ = wake.wake();
        }
    }
}

/// Marks a slot for its engine, and wakes nobody.
pub fn mark(session: &Session, slot: u32) {
    if let Some(place) = session.place_of(slot) {
        place.ring();
    }
}

/// One message, within a time.
pub fn receive(socket: &OwnedFd, buffer: &mut Vec<u8>, deadline: Instant) -> Result<(Reply, Vec<OwnedFd>), RawError> {
    loop {
        match recv_message::<Reply>(socket.as_fd(), buffer) {
            Ok(message) => return Ok(message),
            Err(ChannelError::WouldBlock) => {}
            // A side that closes with requests unread makes an error that is reported before what it had still said.
            Err(ChannelError::Closed) => return Ok(recv_message::<Reply>(socket.as_fd(), buffer)?),
            Err(e) => return Err(e.into()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(RawError::Silent);
        }
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
