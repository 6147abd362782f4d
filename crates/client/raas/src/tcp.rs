//! A connection over kernel TCP that behaves as one over rings does, as far as TCP can.
//!
//! Owns the socket and the translation of its errors. It must never give a reset as an orderly end: an error that was
//! seen stays.

#[cfg(feature = "tokio")]
mod polling;

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::Reason;
use raas_core::{Readiness, Side};
use rustix::event::{PollFd, PollFlags, epoll, poll};

use crate::descriptor::timespec;
use crate::edge::Edge;
use crate::error::StreamError;
use crate::fallback::FallbackCause;
use crate::flags::Flags;
use crate::peer_timeout::peer_timeout_ms;
use crate::tcp_row::TcpRow;

/// One end of a connection over kernel TCP. Dropping it closes.
#[derive(Debug)]
pub(crate) struct TcpConn {
    socket: TcpStream,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) cause: FallbackCause,
    nonblocking: AtomicBool,
    /// This side reads no more: bytes that the kernel still holds are not given out.
    read_shut: AtomicBool,
    /// The first error that ended it.
    failure: OnceLock<Reason>,
    edge: OnceLock<Edge>,
    #[cfg(feature = "tokio")]
    tasks: polling::Tasks,
    /// Stands while the connection does.
    _row: Option<TcpRow>,
}

impl TcpConn {
    pub(crate) fn new(socket: TcpStream, cause: FallbackCause, row: Option<TcpRow>) -> io::Result<Self> {
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        // As on the other paths a write is on its way when it returns.
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            local,
            peer,
            cause,
            nonblocking: AtomicBool::new(false),
            read_shut: AtomicBool::new(false),
            failure: OnceLock::new(),
            edge: OnceLock::new(),
            #[cfg(feature = "tokio")]
            tasks: polling::Tasks::default(),
            _row: row,
        })
    }

    // ---- bytes

    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(buf.is_empty(), || (&self.socket).read(buf))
    }

    pub(crate) fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(buf.is_empty(), || self.socket.peek(buf))
    }

    pub(crate) fn unread_bytes(&self) -> io::Result<u64> {
        if self.is_read_shut() {
            return Ok(0);
        }
        Ok(rustix::io::ioctl_fionread(&self.socket)?)
    }

    fn receive(&self, wants_none: bool, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        if wants_none || self.is_read_shut() {
            return Ok(0);
        }
        self.end_of(self.retried(&mut call)?)
    }

    fn is_read_shut(&self) -> bool {
        self.read_shut.load(Ordering::Relaxed)
    }

    /// What a read of `count` bytes means: the kernel reports an error once, and an end afterwards.
    fn end_of(&self, count: usize) -> io::Result<usize> {
        match (count, self.failure.get()) {
            (0, Some(&reason)) => Err(StreamError::reset(reason)),
            (count, _) => Ok(count),
        }
    }

    pub(crate) fn write(&self, buf: &[u8]) -> io::Result<usize> {
        self.retried(&mut || (&self.socket).write(buf))
    }

    pub(crate) fn write_slices(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.retried(&mut || (&self.socket).write_vectored(bufs))
    }

    /// Repeats what a signal interrupted, and says an error in the words of the other paths.
    fn retried(&self, call: &mut dyn FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.on_error(e)),
                Ok(count) => return Ok(count),
            }
        }
    }

    fn on_error(&self, e: io::Error) -> io::Error {
        use io::ErrorKind as K;
        let reason = match e.kind() {
            K::WouldBlock if !self.nonblocking.load(Ordering::Relaxed) => return K::TimedOut.into(),
            K::BrokenPipe if self.failure.get().is_none() => return StreamError::broken_pipe(),
            K::BrokenPipe | K::ConnectionReset => Reason::ResetByPeer,
            K::TimedOut | K::HostUnreachable | K::NetworkUnreachable => Reason::PeerLost,
            _ => return e,
        };
        StreamError::reset(*self.failure.get_or_init(|| reason))
    }

    // ---- settings

    pub(crate) fn timeout(&self, side: Side) -> Option<Duration> {
        let told = match side {
            Side::Read => self.socket.read_timeout(),
            Side::Write => self.socket.write_timeout(),
        };
        told.ok().flatten()
    }

    pub(crate) fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        match side {
            Side::Read => self.socket.set_read_timeout(timeout),
            Side::Write => self.socket.set_write_timeout(timeout),
        }
    }

    /// What comes nearest: how long bytes may stay unacknowledged.
    pub(crate) fn set_peer_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_tcp_user_timeout(&self.socket, peer_timeout_ms(timeout)?)?)
    }

    /// Kernel TCP has no verbs.
    pub(crate) fn set_verb(&self, _flags: Flags) -> io::Result<()> {
        Ok(())
    }

    /// Kernel TCP has no verbs.
    pub(crate) fn use_verb(&self, _flags: Flags) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn peer_timeout(&self) -> Option<Duration> {
        let ms = rustix::net::sockopt::tcp_user_timeout(&self.socket).ok().filter(|ms| *ms != 0)?;
        Some(Duration::from_millis(ms.into()))
    }

    pub(crate) fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.socket.set_nonblocking(on)?;
        self.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    // ---- readiness

    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(edge) = self.edge.get() {
            return Ok(edge.fd());
        }
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
        let made = Edge::new(self.socket.as_fd(), flags)?;
        // Of two threads one's is kept; both descriptors would do.
        Ok(self.edge.get_or_init(|| made).fd())
    }

    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.ready_fd()
    }

    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        if let Some(edge) = self.edge.get() {
            edge.clear();
        }
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
        poll(&mut fds, Some(&timespec(Duration::ZERO)))?;
        let [now] = fds.map(|fd| fd.revents());
        let broken = now.contains(PollFlags::ERR) || self.failure.get().is_some();
        let ended = now.intersects(PollFlags::RDHUP | PollFlags::HUP) || self.read_shut.load(Ordering::Relaxed);
        let bytes = now.contains(PollFlags::IN);
        let room = now.contains(PollFlags::OUT);
        Ok(Readiness::when(Readiness::READ, bytes || ended || broken)
            | Readiness::when(Readiness::WRITE, room || broken)
            | Readiness::when(Readiness::HUP, ended || broken)
            | Readiness::when(Readiness::ERR, broken))
    }

    // ---- ending

    pub(crate) fn shut(&self, side: Side) -> io::Result<()> {
        let how = match side {
            Side::Read => {
                self.read_shut.store(true, Ordering::Relaxed);
                Shutdown::Read
            }
            Side::Write => Shutdown::Write,
        };
        match self.socket.shutdown(how) {
            // The peer has ended it already.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }

    /// Why the connection is broken, as far as a read or write has met it.
    pub(crate) fn failure(&self) -> Option<Reason> {
        self.failure.get().copied()
    }
}
