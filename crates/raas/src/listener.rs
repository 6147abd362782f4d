//! Listeners: taking connections that others make.
//!
//! Owns one port, at the daemon and, if asked for, at the kernel's TCP. It must never lose a connection between threads that
//! accept on one listener, nor let the callers of one of the two starve those of the other.

use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use control::Request;

use crate::conn::Side;
use crate::entrance::Entrance;
use crate::park::{Parker, lock};
use crate::poller::Poller;
use crate::{AcceptError, BindError, ListenOptions, Readiness, Session, SessionError, Stream, fallback};

/// A port of this host on which connections are accepted. Dropping it stops that; connections which nobody accepted are
/// reset.
pub struct Listener {
    /// None: there is no daemon, and `entrance` is all there is.
    session: Option<Session>,
    /// Kernel TCP, if asked for.
    pub(crate) entrance: Option<Entrance>,
    /// The next look is at kernel TCP first: the last connection came from the daemon.
    tcp_first: AtomicBool,
    pub(crate) local: SocketAddr,
    pub(crate) poller: Arc<Poller>,
    nonblocking: AtomicBool,
}

/// A connection that was taken, and who made it.
type Accepted = (Stream, SocketAddr);

impl Listener {
    pub(crate) fn new(session: Option<Session>, entrance: Option<Entrance>, local: SocketAddr) -> Self {
        let (tcp_first, nonblocking) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { session, entrance, tcp_first, local, poller: Arc::default(), nonblocking }
    }

    /// Listens, in the process-wide session. The host must be an address of this host or unspecified (`0.0.0.0`); port 0
    /// is any free one, which [`Listener::local_addr`] tells.
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&Session::global()?, addr)
    }

    /// As [`Listener::bind`], in a session of the caller's. More settings: [`ListenOptions`].
    pub fn bind_with(session: &Session, addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        ListenOptions::new().bind(session, addr)
    }

    /// Waits for the next connection and takes it; also says who made it. Any number of threads may wait.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        if self.nonblocking.load(Ordering::Relaxed) {
            return self.accept_now()?.ok_or(AcceptError::WouldBlock);
        }
        self.accept_within(None)
    }

    /// [`Listener::accept`] fails with [`AcceptError::WouldBlock`] instead of waiting. The streams it gives block.
    pub fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// A descriptor that turns readable when a connection has come, or the session was lost, since the last
    /// [`Listener::readiness`], which makes it unreadable again; as [`Stream::ready_fd`].
    pub fn ready_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        let Some(session) = &self.session else {
            return self.entrance.as_ref().ok_or(ErrorKind::Unsupported)?.ready_fd();
        };
        session.inner.ensure_watched()?;
        let fd = self.poller.fd()?;
        // Connections may have come before the descriptor was there.
        fd.signal();
        Ok(fd.as_fd())
    }

    /// [`Readiness::READ`] if `accept` would return at once.
    pub fn readiness(&self) -> std::io::Result<Readiness> {
        let ready = match &self.session {
            Some(Session { inner }) => {
                inner.check_fork()?;
                self.poller.clear();
                inner.turn();
                let tables = lock(&inner.tables);
                tables.has_arrived(self.local.port()) || tables.lost().is_some()
            }
            None => {
                self.entrance.iter().for_each(Entrance::clear);
                false
            }
        };
        let ready = ready || self.entrance.as_ref().is_some_and(Entrance::is_ready);
        Ok(Readiness::when(Readiness::READ, ready))
    }

    /// As [`Listener::accept`], for tasks: of those that poll one listener the last is woken.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<(Stream, SocketAddr), AcceptError>> {
        let watched = match (&self.session, &self.entrance) {
            (Some(session), _) => session.inner.ensure_watched().map_err(AcceptError::from),
            (None, Some(entrance)) => entrance.tell(&self.poller).map_err(AcceptError::Tcp),
            (None, None) => Ok(()),
        };
        if let Err(e) = watched {
            return Poll::Ready(Err(e));
        }
        self.poller.set_waker(Side::Read, context.waker());
        match self.accept_now() {
            Ok(Some(accepted)) => Poll::Ready(Ok(accepted)),
            Ok(None) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    /// As [`Listener::accept`], giving up after `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<(Stream, SocketAddr), AcceptError> {
        self.accept_within(Some(timeout))
    }

    /// Connections as they come, without end; after an error that stays (the daemon is lost) it repeats.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Where it listens; if bound to an unspecified address, the host's first one.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept_within(&self, timeout: Option<Duration>) -> Result<Accepted, AcceptError> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let Some(Session { inner }) = &self.session else {
            return self.wait_for_accept(timeout, deadline, || {
                self.entrance.iter().for_each(|e| e.sleep(deadline));
                Ok(())
            });
        };
        let port = self.local.port();
        let ticket = inner.next_request();
        let parker = Arc::new(Parker::default());
        lock(&inner.tables).wait_at(port, ticket, Arc::clone(&parker));
        let taken = self.wait_for_accept(timeout, deadline, || {
            inner.block(&parker, deadline, &mut || {
                let tables = lock(&inner.tables);
                let ready = tables.has_arrived(port) || tables.lost().is_some();
                drop(tables);
                ready || self.entrance.as_ref().is_some_and(Entrance::is_ready)
            })
        });
        let passed_on = lock(&inner.tables).leave(port, ticket);
        if passed_on {
            inner.kick();
        }
        taken
    }

    /// Looks, and sleeps by `sleep` between the looks.
    fn wait_for_accept(
        &self,
        timeout: Option<Duration>,
        deadline: Option<Instant>,
        sleep: impl Fn() -> Result<(), SessionError>,
    ) -> Result<Accepted, AcceptError> {
        loop {
            if let Some(accepted) = self.take_waiting()? {
                return Ok(accepted);
            }
            if let Some(t) = timeout
                && deadline.is_some_and(|d| Instant::now() >= d)
            {
                return Err(AcceptError::TimedOut(t));
            }
            sleep()?;
        }
    }

    /// Takes a connection if one waits, once what the daemon said was heard.
    fn accept_now(&self) -> Result<Option<Accepted>, AcceptError> {
        if let Some(Session { inner }) = &self.session {
            inner.check_fork()?;
            inner.turn();
        }
        self.take_waiting()
    }

    /// Takes a connection if one waits: of the daemon's and of kernel TCP's in turn, so that neither's callers wait for the
    /// other's to end.
    fn take_waiting(&self) -> Result<Option<Accepted>, AcceptError> {
        if self.tcp_first.load(Ordering::Relaxed)
            && let Some(accepted) = self.take_of_tcp()?
        {
            self.tcp_first.store(false, Ordering::Relaxed);
            return Ok(Some(accepted));
        }
        match self.take_of_daemon()? {
            Some(accepted) => {
                self.tcp_first.store(self.entrance.is_some(), Ordering::Relaxed);
                Ok(Some(accepted))
            }
            None => self.take_of_tcp(),
        }
    }

    fn take_of_daemon(&self) -> Result<Option<Accepted>, AcceptError> {
        let Some(Session { inner }) = &self.session else { return Ok(None) };
        inner.check_fork()?;
        let (conn, lost) = {
            let mut tables = lock(&inner.tables);
            (tables.take_arrived(self.local.port()), tables.lost())
        };
        match (conn, lost) {
            (Some(conn), _) => {
                inner.tell(&Request::Accepted { port: self.local.port(), connection: conn.id });
                let peer = conn.peer;
                Ok(Some((Stream::from_conn(conn), peer)))
            }
            (None, Some(lost)) => Err(lost.into()),
            (None, None) => Ok(None),
        }
    }

    fn take_of_tcp(&self) -> Result<Option<Accepted>, AcceptError> {
        let Some(entrance) = &self.entrance else { return Ok(None) };
        let Some((socket, from)) = entrance.try_accept().map_err(AcceptError::Tcp)? else { return Ok(None) };
        let daemon = self.session.as_ref().map(|s| &s.inner);
        let stream = fallback::accept(socket, from, daemon).map_err(AcceptError::Tcp)?;
        Ok(Some((stream, from)))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local).finish()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(Session { inner }) = &self.session else { return };
        // In a forked child the port is the parent's.
        if inner.check_fork().is_err() {
            return;
        }
        self.entrance.iter().for_each(|e| inner.unwatch_entrance(e));
        let waiting = lock(&inner.tables).close_port(self.local.port());
        drop(waiting);
        inner.tell(&Request::Unlisten { port: self.local.port() });
    }
}

/// Connections as they come; made by [`Listener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = Result<Stream, AcceptError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}
