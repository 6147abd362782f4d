//! The kernel TCP side of a listener that was asked to take such connections too.
//!
//! Owns the listening socket, which never blocks. It must never lose the error of an accept that leaves a connection
//! waiting.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};

use crate::descriptor::timespec;
use crate::edge::Edge;
use crate::poller::Poller;
use crate::reactor::sleep_bound;
use crate::socket_watch::Awaited;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct KernelListener {
    socket: TcpListener,
    edge: OnceLock<Edge>,
    awaited: Awaited,
}

impl KernelListener {
    pub(crate) fn bind(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        let socket = TcpListener::bind(addr)?;
        // A second listen sets the backlog, for which the standard library has a value of its own.
        rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, edge: OnceLock::new(), awaited: Awaited::default() })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// A connection, if one waits.
    pub(crate) fn try_accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        use io::ErrorKind as K;
        match self.socket.accept() {
            Ok(accepted) => Ok(Some(accepted)),
            // One that gave up before it was taken is as one that never came.
            Err(e) if matches!(e.kind(), K::WouldBlock | K::Interrupted | K::ConnectionAborted) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.wait_for(Duration::ZERO)
    }

    /// Sleeps until a connection waits, or `deadline`, or a while; the caller looks again.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) {
        self.wait_for(sleep_bound(deadline));
    }

    /// Sleeps until a connection waits, at most `bound`; says whether one does.
    pub(crate) fn wait_for(&self, bound: Duration) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&timespec(bound))), Ok(ready) if ready > 0)
    }

    /// The socket itself, to be watched.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A descriptor that turns readable when a connection came.
    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(edge) = self.edge.get() {
            return Ok(edge.fd());
        }
        let made = Edge::new(self.fd(), epoll::EventFlags::IN)?;
        Ok(self.edge.get_or_init(|| made).fd())
    }

    /// Tells `poller` of connections that come, where no session does.
    pub(crate) fn tell(&self, poller: &Arc<Poller>) -> io::Result<()> {
        self.awaited.ensure(self.fd(), epoll::EventFlags::IN, poller)
    }

    /// The descriptor turns unreadable until the next connection.
    pub(crate) fn clear(&self) {
        if let Some(edge) = self.edge.get() {
            edge.clear();
        }
    }
}
