//! Listeners: taking connections that others make.
//!
//! Owns one port, at the daemon and, if asked for, at the kernel's TCP. It must never lose a connection between threads that accept on one listener.

use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use control::{Kind, Request};

use crate::conn::Side;
use crate::entrance::Entrance;
use crate::inner::Inner;
use crate::park::{Parker, lock};
use crate::poller::{Poller, Waiter};
use crate::stream::check_ring_bytes;
use crate::tables::Answer;
use crate::{
    AcceptError, BindError, Fallback, FallbackCause, NotOverTcp, Readiness, Session, SessionError, Stream, fallback,
};

/// Connections that may wait for `accept` unless [`ListenOptions::backlog`] says otherwise.
const BACKLOG_DEFAULT: u32 = 128;
/// Free ports of the daemon that are tried until one is free for kernel TCP too.
const FREE_PORT_TRIES: u32 = 16;

/// A port of this host on which connections are accepted. Dropping it stops that; connections which nobody accepted are
/// reset.
pub struct Listener {
    /// None: there is no daemon, and `entrance` is all there is.
    session: Option<Session>,
    /// Kernel TCP, if asked for.
    entrance: Option<Entrance>,
    local: SocketAddr,
    poller: Arc<Poller>,
    nonblocking: AtomicBool,
}

/// Settings of a listener.
#[derive(Debug, Clone, Copy)]
pub struct ListenOptions {
    ring_bytes: u32,
    backlog: u32,
    kind: Kind,
    fallback: Fallback,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { ring_bytes: 0, backlog: BACKLOG_DEFAULT, kind: Kind::Stream, fallback: Fallback::Never }
    }
}

impl ListenOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Size of each direction's ring of accepted connections: a power of two from 4 KiB to 8 MiB, 0 for the daemon's
    /// default.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Connections that may wait for `accept`; further ones are refused. Default: 128.
    #[must_use]
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// With [`Fallback::Tcp`] connections over kernel TCP are accepted too, on the same address and port. Default:
    /// [`Fallback::Never`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// What travels on its connections: bytes or messages.
    pub(crate) fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Listens on the first of the addresses that can be.
    pub fn bind(&self, session: &Session, addr: impl ToSocketAddrs) -> Result<Listener, BindError> {
        self.check()?;
        let mut failed = Vec::new();
        for addr in addr.to_socket_addrs().map_err(BindError::Resolve)? {
            match self.bind_everywhere(session, addr) {
                Ok(listener) => return Ok(listener),
                Err(e @ BindError::Session(_)) => return Err(e),
                Err(e) => failed.push(e),
            }
        }
        Err(BindError::of_all(failed))
    }

    /// As [`ListenOptions::bind`], for programs that go on without a daemon: `session` is what making it gave, and if it gave
    /// that there is no daemon, and [`Fallback::Tcp`] was asked for, only connections over kernel TCP are accepted.
    pub fn listen(
        &self,
        session: Result<Session, SessionError>,
        addr: impl ToSocketAddrs,
    ) -> Result<Listener, BindError> {
        let error = match session {
            Ok(session) => return self.bind(&session, addr),
            Err(error) => error,
        };
        self.check()?;
        let (Fallback::Tcp, Some(cause)) = (self.fallback, FallbackCause::of_session(&error)) else {
            return Err(error.into());
        };
        let mut failed = Vec::new();
        for addr in addr.to_socket_addrs().map_err(BindError::Resolve)? {
            let bound = Entrance::bind(addr, self.backlog).and_then(|e| Ok((e.local_addr()?, e)));
            match bound {
                Ok((local, entrance)) => {
                    tracing::warn!(%local, %cause, "listening on kernel TCP alone, as asked for");
                    let (poller, nonblocking) = (Arc::default(), AtomicBool::new(false));
                    return Ok(Listener { session: None, entrance: Some(entrance), local, poller, nonblocking });
                }
                Err(error) => failed.push(BindError::Tcp { addr, error }),
            }
        }
        Err(BindError::of_all(failed))
    }

    fn check(&self) -> Result<(), BindError> {
        check_ring_bytes(self.ring_bytes).map_err(BindError::RingBytes)?;
        if self.fallback != Fallback::Never && self.kind == Kind::Message {
            return Err(NotOverTcp::Messages.into());
        }
        Ok(())
    }

    /// At the daemon, and on the same port of kernel TCP if asked for. Any free port must be so at both.
    fn bind_everywhere(&self, session: &Session, addr: SocketAddr) -> Result<Listener, BindError> {
        let mut tries = if addr.port() == 0 { FREE_PORT_TRIES } else { 1 };
        loop {
            let mut listener = self.bind_one(session, addr)?;
            if self.fallback == Fallback::Never {
                return Ok(listener);
            }
            let addr = SocketAddr::new(addr.ip(), listener.local.port());
            tries -= 1;
            match Entrance::bind(addr, self.backlog) {
                Ok(entrance) => {
                    session.inner.watch_entrance(&entrance, addr.port())?;
                    listener.entrance = Some(entrance);
                    return Ok(listener);
                }
                Err(e) if e.kind() == ErrorKind::AddrInUse && tries > 0 => {}
                Err(error) => return Err(BindError::Tcp { addr, error }),
            }
        }
    }

    fn bind_one(&self, session: &Session, addr: SocketAddr) -> Result<Listener, BindError> {
        let inner = &session.inner;
        if !addr.ip().is_unspecified() && !inner.addresses.contains(&addr.ip()) {
            return Err(BindError::NotThisHost { addr, addresses: inner.addresses.clone() });
        }
        inner.check_fork()?;
        let request = inner.next_request();
        let parker = Arc::new(Parker::default());
        lock(&inner.tables).begin(request, vec![Waiter::Thread(Arc::clone(&parker))]);
        let (port, Self { backlog, ring_bytes, kind, .. }) = (addr.port(), *self);
        let listen = match kind {
            Kind::Stream => Request::Listen { request, port, backlog, ring_bytes },
            Kind::Message => Request::ListenMessages { request, port, backlog, ring_bytes },
        };
        let answer = inner
            .send(&listen, &[])
            .and_then(|()| wait_for_answer(inner, request, &parker, inner.timeout))
            .inspect_err(|_| drop(lock(&inner.tables).finish(request)))?;
        match answer {
            Some(Answer::Listening(Ok(local))) => {
                let ip = if addr.ip().is_unspecified() { local.ip() } else { addr.ip() };
                let local = SocketAddr::new(ip, local.port());
                let poller = Arc::<Poller>::default();
                lock(&inner.tables).set_poller(local.port(), Arc::clone(&poller));
                let (session, nonblocking) = (Some(session.clone()), AtomicBool::new(false));
                Ok(Listener { session, entrance: None, local, poller, nonblocking })
            }
            Some(Answer::Listening(Err(reason))) => Err(BindError::Refused { addr, reason }),
            Some(other) => Err(SessionError::Protocol(format!("the answer to Listen was {other:?}")).into()),
            // An answer that still comes finds nobody, and is undone then.
            None => Err(SessionError::Silent { path: inner.path.clone(), waited: inner.timeout }.into()),
        }
    }
}

/// Waits for the answer to a request that was sent. None: it did not come in time.
pub(crate) fn wait_for_answer(
    inner: &Arc<Inner>,
    request: u64,
    parker: &Arc<Parker>,
    timeout: Duration,
) -> Result<Option<Answer>, SessionError> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        inner.block(parker, deadline, &mut || {
            let tables = lock(&inner.tables);
            !tables.is_pending(request) || tables.lost().is_some()
        })?;
        let over = deadline.is_some_and(|d| Instant::now() >= d);
        let mut tables = lock(&inner.tables);
        let lost = tables.lost();
        if !tables.is_pending(request) || lost.is_some() || over {
            let answer = tables.finish(request);
            return match (answer, lost) {
                (None, Some(lost)) => Err(lost),
                (answer, _) => Ok(answer),
            };
        }
    }
}

impl Listener {
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
        let (Some(session), None) = (&self.session, &self.entrance) else {
            return Poll::Ready(Err(NotOverTcp::Tasks.into()));
        };
        if let Err(e) = session.inner.ensure_watched() {
            return Poll::Ready(Err(e.into()));
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

    fn accept_within(&self, timeout: Option<Duration>) -> Result<(Stream, SocketAddr), AcceptError> {
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
    ) -> Result<(Stream, SocketAddr), AcceptError> {
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
    fn accept_now(&self) -> Result<Option<(Stream, SocketAddr)>, AcceptError> {
        if let Some(Session { inner }) = &self.session {
            inner.check_fork()?;
            inner.turn();
        }
        self.take_waiting()
    }

    fn take_waiting(&self) -> Result<Option<(Stream, SocketAddr)>, AcceptError> {
        let daemon = self.session.as_ref().map(|s| &s.inner);
        if let Some(inner) = daemon {
            inner.check_fork()?;
            let (conn, lost) = {
                let mut tables = lock(&inner.tables);
                (tables.take_arrived(self.local.port()), tables.lost())
            };
            match (conn, lost) {
                (Some(conn), _) => {
                    inner.tell(&Request::Accepted { port: self.local.port(), connection: conn.id });
                    let peer = conn.peer;
                    return Ok(Some((Stream::from_conn(conn), peer)));
                }
                (None, Some(lost)) => return Err(lost.into()),
                (None, None) => {}
            }
        }
        let Some(entrance) = &self.entrance else { return Ok(None) };
        let Some((socket, from)) = entrance.try_accept().map_err(AcceptError::Tcp)? else { return Ok(None) };
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
