//! A connection that is being made.
//!
//! Owns the request at the daemon from its sending to its answer, or its end. It must never leave an answer behind that
//! nobody takes: dropping the value cancels the connect.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use control::Kind;
use raas_core::{Answer, Connection, Failed, RequestId, Side};

use crate::attachment::Attachment;
use crate::error::{ConnectError, SessionError};
use crate::flags::Flags;
use crate::park::{Parker, lock};
use crate::patience::Next;
use crate::poller::{Poller, Waiter};
use crate::stream::Stream;

/// A connection under way, made by [`ConnectOptions::start`](crate::ConnectOptions::start): to be asked with
/// [`Connecting::try_finish`], polled through [`Connecting::ready_fd`], waited for, or awaited as a future (of any
/// runtime). It has no time limit of its own. Dropping it stops the connect.
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
    attachment: Arc<Attachment>,
    request: RequestId,
    to: SocketAddr,
    parker: Arc<Parker>,
    poller: Arc<Poller>,
    peer_timeout: Option<Duration>,
    flags: Flags,
    over: bool,
}

impl Connecting {
    /// Sends the request.
    pub(crate) fn start(
        attachment: &Arc<Attachment>,
        to: SocketAddr,
        ring_bytes: u32,
        kind: Kind,
    ) -> Result<Self, ConnectError> {
        // As TCP does, the unspecified address means this host.
        let to = match attachment.addresses.iter().find(|a| a.is_ipv4() == to.is_ipv4()) {
            Some(&own) if to.ip().is_unspecified() => SocketAddr::new(own, to.port()),
            _ => to,
        };
        let (parker, poller) = (Arc::<Parker>::default(), Arc::<Poller>::default());
        let waiters = vec![Waiter::Thread(Arc::clone(&parker)), Waiter::Poller(Arc::clone(&poller))];
        let request = attachment.ask(waiters, |session| session.connect(to, ring_bytes, kind))?;
        let attachment = Arc::clone(attachment);
        Ok(Self { attachment, request, to, parker, poller, peer_timeout: None, flags: Flags::empty(), over: false })
    }

    /// The connection gets it when it is made.
    pub(crate) fn peer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.peer_timeout = timeout;
        self
    }

    /// The verb of what is written, as [`crate::ConnectOptions::flags`] named it.
    pub(crate) fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// The connection if it is made by now, None if nobody has answered yet. After an answer it fails.
    pub fn try_finish(&mut self) -> Result<Option<Stream>, ConnectError> {
        self.attachment.check_fork()?;
        self.poller.clear();
        self.attachment.look();
        self.take()
    }

    /// A descriptor that turns readable when [`Connecting::try_finish`] has something to say. It starts the session's
    /// watcher thread; see docs/use/client.md.
    pub fn ready_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.attachment.ensure_watched()?;
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
        let attachment = Arc::clone(&self.attachment);
        let mut patience = attachment.patience();
        loop {
            if let Some(stream) = self.take()? {
                return Ok(stream);
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Err(ConnectError::TimedOut { to: self.to, waited: timeout });
            }
            let mut is_over = || lock(&attachment.tables).is_over(self.request);
            match patience.pause() {
                Next::Look(_) => attachment.look(),
                _ => attachment.block(&self.parker, deadline, &mut is_over)?,
            }
        }
    }

    /// Whether a daemon was asked, or the next one is there to be asked now.
    pub(crate) fn has_daemon(&self) -> bool {
        if self.attachment.is_unsent(self.request) {
            self.attachment.look();
        }
        !self.attachment.is_unsent(self.request)
    }

    /// Where to.
    pub fn peer_addr(&self) -> SocketAddr {
        self.to
    }

    fn take(&mut self) -> Result<Option<Stream>, ConnectError> {
        if self.over {
            return Err(SessionError::Protocol("the connection was taken or refused before".into()).into());
        }
        self.attachment.check_fork()?;
        let (answer, lost) = {
            let mut tables = lock(&self.attachment.tables);
            if !tables.is_over(self.request) {
                return Ok(None);
            }
            (tables.finish(self.request), tables.lost())
        };
        self.over = true;
        match (answer, lost) {
            (Some(answer), _) => {
                let stream = Stream::adopt(&self.attachment, connected(answer, self.to)?).with_flags(self.flags);
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

fn connected(answer: Answer, to: SocketAddr) -> Result<Connection, ConnectError> {
    match answer {
        Answer::Connected(Ok(connection)) => Ok(*connection),
        Answer::Connected(Err(Failed::Reason(reason))) => Err(ConnectError::refused(to, reason)),
        Answer::Connected(Err(Failed::Protocol(what))) => Err(SessionError::Protocol(what).into()),
        other => Err(SessionError::Protocol(format!("the answer to Connect was {other:?}")).into()),
    }
}

impl Future for Connecting {
    type Output = Result<Stream, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(e) = self.attachment.ensure_watched() {
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
        if self.over || self.attachment.check_fork().is_err() {
            return;
        }
        // An answer that came after all is dropped: a connection closes then.
        let cancel = lock(&self.attachment.tables).cancel(self.request);
        if let Some(cancel) = cancel {
            self.attachment.tell(&cancel);
        }
        // What a connection to another process that closed just now left; as in `tell`.
        let _ = self.attachment.send_outgoing();
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("to", &self.to).finish()
    }
}
