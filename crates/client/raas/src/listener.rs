//! Listeners: taking connections that others make.
//!
//! Owns the turns of the daemon's connections and, if asked for, of kernel TCP's. It must never lose a connection
//! between threads that accept on one listener. It must never let the callers of one kind starve those of the other.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use raas_core::{Readiness, Side};

use crate::error::{AcceptError, SessionError};
use crate::fallback_tcp;
use crate::listening::Listening;
use crate::park::{Parker, lock};
use crate::patience::{Next, Patience};
use crate::poller::Poller;
use crate::stream::Stream;
use crate::tcp_listener::KernelListener;

/// A port of this host on which connections are accepted. Dropping it stops that; connections which nobody accepted are
/// reset.
///
/// A listener survives the loss of its daemon: one `accept` fails and reports it ([`AcceptError::Session`]), the next
/// ones wait until there is a daemon at the same socket again and the port is open there. With
/// [`Listener::set_nonblocking`], `ready_fd` and tasks the session's watcher thread does this; it is started if there
/// is none.
pub struct Listener {
    /// None: there is no daemon, and `kernel` is all there is.
    listening: Option<Arc<Listening>>,
    /// Kernel TCP alone.
    kernel: Option<Arc<KernelListener>>,
    /// The next look is at kernel TCP first: the last connection came from the daemon.
    tcp_first: Arc<AtomicBool>,
    local: SocketAddr,
    poller: Arc<Poller>,
    nonblocking: Arc<AtomicBool>,
}

/// A connection that was taken, and the address of its other end.
type Accepted = (Stream, SocketAddr);

impl Listener {
    pub(crate) fn new(listening: Arc<Listening>) -> Self {
        let (local, poller) = (listening.local, Arc::clone(&listening.poller));
        Self::with(Some(listening), None, local, poller)
    }

    /// Where there is no daemon.
    pub(crate) fn over_tcp(kernel: KernelListener, local: SocketAddr) -> Self {
        Self::with(None, Some(Arc::new(kernel)), local, Arc::default())
    }

    fn with(
        listening: Option<Arc<Listening>>,
        kernel: Option<Arc<KernelListener>>,
        local: SocketAddr,
        poller: Arc<Poller>,
    ) -> Self {
        let (tcp_first, nonblocking) = Default::default();
        Self { listening, kernel, tcp_first, local, poller, nonblocking }
    }

    /// Kernel TCP, alone or in addition to the daemon.
    fn kernel(&self) -> Option<&KernelListener> {
        self.listening.as_ref().map_or(self.kernel.as_deref(), |l| l.kernel.as_ref())
    }

    /// Waits for the next connection and takes it; also returns the address of its other end. Any number of threads may
    /// wait.
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
        let Some(listening) = &self.listening else {
            return self.kernel.as_ref().ok_or(ErrorKind::Unsupported)?.ready_fd();
        };
        listening.attachment().ensure_watched()?;
        let fd = self.poller.fd()?;
        // Connections may have come before the descriptor was there.
        fd.signal();
        Ok(fd.as_fd())
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        match &self.kernel {
            Some(alone) => alone.ready_fd(),
            None => Ok(self.poller.fd()?.as_fd()),
        }
    }

    /// [`Readiness::READ`] if `accept` would return at once.
    pub fn readiness(&self) -> std::io::Result<Readiness> {
        let ready = match &self.listening {
            Some(listening) => {
                let attachment = listening.attachment();
                attachment.check_fork()?;
                self.poller.clear();
                attachment.look();
                let has_arrived = lock(&attachment.tables).session.has_arrived(self.local.port());
                has_arrived || listening.has_error()
            }
            None => {
                self.kernel.iter().for_each(|e| e.clear());
                false
            }
        };
        let ready = ready || self.kernel().is_some_and(KernelListener::is_ready);
        Ok(Readiness::when(Readiness::READ, ready))
    }

    /// As [`Listener::accept`], for tasks: of those that poll one listener the last is woken.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<(Stream, SocketAddr), AcceptError>> {
        let watched = match (&self.listening, &self.kernel) {
            (Some(listening), _) => listening.attachment().ensure_watched().map_err(AcceptError::from),
            (None, Some(kernel)) => kernel.tell(&self.poller).map_err(AcceptError::Tcp),
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

    /// Connections as they come, without end. The loss of the daemon is one error; then it waits for the next
    /// connection at the daemon that comes back.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Where it listens; if bound to an unspecified address, the host's first one. It does not fail, and is a `Result`
    /// as that of
    /// `std::net`.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Another handle on the same port, as of `TcpListener`: each connection is taken by one of them, the mode of
    /// [`Listener::set_nonblocking`] holds for both, and the port closes when the last is dropped. Fails in a forked
    /// child.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        if let Some(listening) = &self.listening {
            listening.attachment().check_fork()?;
        }
        Ok(Self {
            listening: self.listening.clone(),
            kernel: self.kernel.clone(),
            tcp_first: Arc::clone(&self.tcp_first),
            local: self.local,
            poller: Arc::clone(&self.poller),
            nonblocking: Arc::clone(&self.nonblocking),
        })
    }

    /// Looks, and sleeps between the looks.
    fn accept_within(&self, timeout: Option<Duration>) -> Result<Accepted, AcceptError> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let attachment = self.listening.as_ref().map(|listening| listening.attachment());
        let mut patience = attachment.as_ref().map(|attachment| attachment.patience());
        loop {
            if let Some(accepted) = self.take_waiting()? {
                return Ok(accepted);
            }
            if let Some(t) = timeout
                && deadline.is_some_and(|d| Instant::now() >= d)
            {
                return Err(AcceptError::TimedOut(t));
            }
            match &self.listening {
                None => self.kernel.iter().for_each(|e| e.sleep(deadline)),
                Some(listening) if listening.is_lost() => listening.recover(deadline),
                Some(listening) => match (&attachment, patience.as_mut().map(Patience::pause)) {
                    (Some(attachment), Some(Next::Look(_))) => attachment.look(),
                    _ => self.sleep(listening, deadline)?,
                },
            }
        }
    }

    /// Sleeps until a connection waits or the session is lost.
    fn sleep(&self, listening: &Listening, deadline: Option<Instant>) -> Result<(), SessionError> {
        let (attachment, port) = (listening.attachment(), self.local.port());
        attachment.check_fork()?;
        let ticket = attachment.next_number();
        let parker = Arc::new(Parker::default());
        lock(&attachment.tables).wait_at(port, ticket, Arc::clone(&parker));
        let slept = attachment.block(&parker, deadline, &mut || {
            let tables = lock(&attachment.tables);
            let ready =
                tables.session.has_arrived(port) || tables.lost().is_some() || tables.session.is_port_lost(port);
            drop(tables);
            ready || listening.kernel.as_ref().is_some_and(KernelListener::is_ready)
        });
        let passed_on = lock(&attachment.tables).leave(port, ticket);
        if passed_on {
            attachment.kick();
        }
        slept
    }

    /// Takes a connection if one waits, once what the daemon said was heard.
    fn accept_now(&self) -> Result<Option<Accepted>, AcceptError> {
        let Some(listening) = &self.listening else { return self.take_waiting() };
        let attachment = listening.attachment();
        attachment.check_fork()?;
        attachment.look();
        let taken = self.take_waiting()?;
        if taken.is_none() && listening.is_lost() {
            // No thread sleeps here that would listen again.
            attachment.ensure_watched()?;
        }
        Ok(taken)
    }

    /// Takes a connection if one waits: of the daemon's and of kernel TCP's in turn, so that neither's callers wait for
    /// the other's to end.
    fn take_waiting(&self) -> Result<Option<Accepted>, AcceptError> {
        if self.tcp_first.load(Ordering::Relaxed)
            && let Some(accepted) = self.take_of_tcp()?
        {
            self.tcp_first.store(false, Ordering::Relaxed);
            return Ok(Some(accepted));
        }
        match self.take_of_daemon()? {
            Some(accepted) => {
                self.tcp_first.store(self.kernel().is_some(), Ordering::Relaxed);
                Ok(Some(accepted))
            }
            None => self.take_of_tcp(),
        }
    }

    fn take_of_daemon(&self) -> Result<Option<Accepted>, AcceptError> {
        let Some(listening) = &self.listening else { return Ok(None) };
        let attachment = listening.attachment();
        attachment.check_fork()?;
        let accepted = lock(&attachment.tables).session.accept(self.local.port());
        let Some((connection, request)) = accepted else {
            listening.take_error()?;
            return Ok(None);
        };
        attachment.tell(&request);
        let peer = connection.endpoint.peer();
        Ok(Some((Stream::adopt(&attachment, *connection).with_flags(listening.flags()), peer)))
    }

    fn take_of_tcp(&self) -> Result<Option<Accepted>, AcceptError> {
        let Some(kernel) = self.kernel() else { return Ok(None) };
        let Some((socket, from)) = kernel.try_accept().map_err(AcceptError::Tcp)? else { return Ok(None) };
        let daemon = self.listening.as_ref().map(|l| l.attachment());
        let stream = fallback_tcp::accept(socket, from, daemon.as_ref()).map_err(AcceptError::Tcp)?;
        Ok(Some((stream, from)))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local).finish()
    }
}

impl<'a> IntoIterator for &'a Listener {
    type Item = Result<Stream, AcceptError>;
    type IntoIter = Incoming<'a>;

    fn into_iter(self) -> Incoming<'a> {
        self.incoming()
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
