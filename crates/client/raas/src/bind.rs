//! Settings of a listener, and the making of one: at the daemon, and at the kernel's TCP if that was asked for.
//!
//! Owns the request to listen until its answer. It must never leave a port open at the daemon that no listener has.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Kind, Request};

use crate::dial::check_ring_bytes;
use crate::entrance::Entrance;
use crate::fallback::Way;
use crate::inner::Inner;
use crate::listening::{Listening, close};
use crate::park::{Parker, lock};
use crate::poller::Waiter;
use crate::tables::Answer;
use crate::{BindError, Fallback, FallbackCause, Listener, Session, SessionError};

/// Connections that may wait for `accept` unless [`ListenOptions::backlog`] says otherwise.
const BACKLOG_DEFAULT: u32 = 128;
/// Free ports of the daemon that are tried until one is free for kernel TCP too.
const FREE_PORT_TRIES: u32 = 16;

/// Settings of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        self.listen(Ok(session.clone()), addr)
    }

    /// As [`ListenOptions::bind`], for programs that go on without a daemon: `session` is what making it gave, and if it gave
    /// that there is no daemon, and [`Fallback::Tcp`] was asked for, only connections over kernel TCP are accepted.
    pub fn listen(
        &self,
        session: Result<Session, SessionError>,
        addr: impl ToSocketAddrs,
    ) -> Result<Listener, BindError> {
        check_ring_bytes(self.ring_bytes).map_err(BindError::RingBytes)?;
        self.fallback.check(self.kind)?;
        let way = self.fallback.way(session)?;
        let mut failed = Vec::new();
        for addr in addr.to_socket_addrs().map_err(BindError::Resolve)? {
            let bound = match &way {
                Way::Daemon(session) => self.bind_everywhere(session, addr),
                Way::Tcp(cause) => self.bind_tcp(addr, *cause),
            };
            match bound {
                Ok(listener) => return Ok(listener),
                Err(e @ BindError::Session(_)) => return Err(e),
                Err(e) => failed.push(e),
            }
        }
        Err(BindError::of_all(failed))
    }

    fn bind_tcp(&self, addr: SocketAddr, cause: FallbackCause) -> Result<Listener, BindError> {
        let bound = Entrance::bind(addr, self.backlog).and_then(|e| Ok((e.local_addr()?, e)));
        let (local, entrance) = bound.map_err(|error| BindError::Tcp { addr, error })?;
        tracing::warn!(%local, %cause, "listening on kernel TCP alone, as asked for");
        Ok(Listener::over_tcp(entrance, local))
    }

    /// At the daemon, and on the same port of kernel TCP if asked for. Any free port must be so at both.
    fn bind_everywhere(&self, session: &Session, addr: SocketAddr) -> Result<Listener, BindError> {
        let inner = &session.inner;
        let mut tries = if addr.port() == 0 { FREE_PORT_TRIES } else { 1 };
        loop {
            let local = self.ask(inner, addr)?;
            let entrance = match self.fallback {
                Fallback::Never => None,
                Fallback::Tcp => {
                    tries -= 1;
                    let addr = SocketAddr::new(addr.ip(), local.port());
                    match Entrance::bind(addr, self.backlog) {
                        Ok(entrance) => Some(entrance),
                        Err(e) => {
                            close(inner, local.port());
                            if e.kind() == ErrorKind::AddrInUse && tries > 0 {
                                continue;
                            }
                            return Err(BindError::Tcp { addr, error: e });
                        }
                    }
                }
            };
            return Ok(Listener::new(Listening::start(*self, inner, local, entrance)?));
        }
    }

    /// Opens the port of `addr` at the daemon, 0 for any free one. What is opened is to be closed by the caller.
    pub(crate) fn ask(&self, inner: &Arc<Inner>, addr: SocketAddr) -> Result<SocketAddr, BindError> {
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
                Ok(SocketAddr::new(ip, local.port()))
            }
            Some(Answer::Listening(Err(reason))) => Err(BindError::refused(addr, reason)),
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
