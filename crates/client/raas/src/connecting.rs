//! A connection that is being made.
//!
//! Owns the request at the daemon from its sending to its answer, or its end. It must never leave an answer behind that
//! nobody takes: dropping it cancels.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use control::{Kind, Request};

use crate::conn::{Conn, Side};
use crate::inner::Inner;
use crate::park::{Parker, lock};
use crate::poller::{Poller, Waiter};
use crate::tables::{Answer, Failed};
use crate::{ConnectError, SessionError, Stream};

/// A connection under way, made by [`ConnectOptions::start`](crate::ConnectOptions::start): to be asked with
/// [`Connecting::try_finish`], polled through [`Connecting::ready_fd`], waited for, or awaited as a future (of any
/// runtime). It has no limit in time of its own. Dropping it gives the connection up.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = raas::Session::global()?;
/// let mut connecting = raas::ConnectOptions::new().start(&session, "10.0.0.2:7000".parse()?)?;
/// let stream = loop {
///     if let Some(stream) = connecting.try_finish()? {
///         break stream;
///     }
///     // Something else meanwhile; or poll `connecting.ready_fd()?`.
/// };
/// stream.set_nonblocking(true)?;
/// # Ok(())
/// # }
/// ```
pub struct Connecting {
    inner: Arc<Inner>,
    request: u64,
    to: SocketAddr,
    parker: Arc<Parker>,
    poller: Arc<Poller>,
    peer_timeout: Option<Duration>,
    over: bool,
}

impl Connecting {
    /// Sends the request.
    pub(crate) fn start(inner: &Arc<Inner>, to: SocketAddr, ring_bytes: u32, kind: Kind) -> Result<Self, ConnectError> {
        inner.check_fork()?;
        // As TCP does, the unspecified address means this host.
        let to = match inner.addresses.iter().find(|a| a.is_ipv4() == to.is_ipv4()) {
            Some(&own) if to.ip().is_unspecified() => SocketAddr::new(own, to.port()),
            _ => to,
        };
        let request = inner.next_request();
        let connecting = Self {
            inner: Arc::clone(inner),
            request,
            to,
            parker: Arc::default(),
            poller: Arc::default(),
            peer_timeout: None,
            over: false,
        };
        let waiters =
            vec![Waiter::Thread(Arc::clone(&connecting.parker)), Waiter::Poller(Arc::clone(&connecting.poller))];
        lock(&inner.tables).begin(request, waiters);
        let connect = match kind {
            Kind::Stream => Request::Connect { request, to, ring_bytes },
            Kind::Message => Request::ConnectMessages { request, to, ring_bytes },
        };
        inner.send(&connect, &[])?;
        Ok(connecting)
    }

    /// The connection gets it when it is made.
    pub(crate) fn peer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.peer_timeout = timeout;
        self
    }

    /// The connection if it is made by now, None if nobody has answered yet. After an answer it fails.
    pub fn try_finish(&mut self) -> Result<Option<Stream>, ConnectError> {
        self.inner.check_fork()?;
        self.poller.clear();
        self.inner.turn();
        self.take()
    }

    /// A descriptor that turns readable when [`Connecting::try_finish`] has something to say. It starts the session's
    /// watcher thread; see docs/client.md.
    pub fn ready_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.inner.ensure_watched()?;
        let fd = self.poller.fd()?;
        // The answer may have come before the descriptor was there.
        fd.signal();
        Ok(fd.as_fd())
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        Ok(self.poller.fd()?.as_fd())
    }

    /// Waits for the answer, at most `timeout`.
    pub fn wait(mut self, timeout: Duration) -> Result<Stream, ConnectError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(stream) = self.take()? {
                return Ok(stream);
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Err(ConnectError::TimedOut { to: self.to, waited: timeout });
            }
            let (inner, request) = (&self.inner, self.request);
            inner.block(&self.parker, deadline, &mut || {
                let tables = lock(&inner.tables);
                !tables.is_pending(request) || tables.lost().is_some()
            })?;
        }
    }

    /// Where to.
    pub fn peer_addr(&self) -> SocketAddr {
        self.to
    }

    fn take(&mut self) -> Result<Option<Stream>, ConnectError> {
        if self.over {
            return Err(SessionError::Protocol("the connection was taken or refused before".into()).into());
        }
        let (answer, lost) = {
            let mut tables = lock(&self.inner.tables);
            let lost = tables.lost();
            if tables.is_pending(self.request) && lost.is_none() {
                return Ok(None);
            }
            (tables.finish(self.request), lost)
        };
        self.over = true;
        match (answer, lost) {
            (Some(answer), _) => {
                let stream = Stream::from_conn(connected(answer, self.to)?);
                if self.peer_timeout.is_some() {
                    // One that broke meanwhile says so when it is used.
                    let _ = stream.set_peer_timeout(self.peer_timeout);
                }
                Ok(Some(stream))
            }
            (None, Some(lost)) => Err(lost.into()),
            (None, None) => Err(SessionError::Protocol("the answer to Connect is gone".into()).into()),
        }
    }
}

fn connected(answer: Answer, to: SocketAddr) -> Result<Arc<Conn>, ConnectError> {
    match answer {
        Answer::Connected(Ok(conn)) => Ok(conn),
        Answer::Connected(Err(Failed::Reason(reason))) => Err(ConnectError::refused(to, reason)),
        Answer::Connected(Err(Failed::Protocol(what))) => Err(SessionError::Protocol(what).into()),
        other => Err(SessionError::Protocol(format!("the answer to Connect was {other:?}")).into()),
    }
}

impl Future for Connecting {
    type Output = Result<Stream, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(e) = self.inner.ensure_watched() {
            return Poll::Ready(Err(e.into()));
        }
        self.poller.set_waker(Side::Read, context.waker());
        match self.take() {
            Ok(Some(stream)) => Poll::Ready(Ok(stream)),
            Ok(None) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if self.over || self.inner.check_fork().is_err() {
            return;
        }
        // An answer that came after all is dropped without the lock: a connection closes then.
        let (pending, late) = {
            let mut tables = lock(&self.inner.tables);
            (tables.is_pending(self.request), tables.finish(self.request))
        };
        drop(late);
        if pending {
            self.inner.tell(&Request::CancelConnect { request: self.request });
        }
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("to", &self.to).finish()
    }
}
