//! Kernel TCP instead of the daemons' paths: when it may be taken, and what it cannot do.
//!
//! Owns the decision and its words. It must never take kernel TCP unless the caller asked for it, nor without saying so: in
//! the log, on the stream, and to this host's daemon if there is one.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use control::{Kind, Reason};

use crate::carrier::Carrier;
use crate::inner::Inner;
use crate::tcp::{TcpConn, Told};
use crate::{ConnectError, Session, SessionError, Stream};

/// What to do where no daemon can carry a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fallback {
    /// Fail, with the error that says why. The default.
    #[default]
    Never,
    /// Use kernel TCP, to the same address and port. The stream says so: [`Stream::path`], [`Stream::fallback`].
    Tcp,
}

/// Who carries what an application is about to make.
pub(crate) enum Way {
    /// This host's daemon.
    Daemon(Session),
    /// Kernel TCP alone: there is no daemon, and the application asked for this.
    Tcp(FallbackCause),
}

impl Fallback {
    /// Refuses what kernel TCP could never carry before anything is tried.
    pub(crate) fn check(self, kind: Kind) -> Result<(), NotOverTcp> {
        match (self, kind) {
            (Self::Tcp, Kind::Message) => Err(NotOverTcp::Messages),
            _ => Ok(()),
        }
    }

    /// Who carries, by what making the session gave.
    pub(crate) fn way(self, session: Result<Session, SessionError>) -> Result<Way, SessionError> {
        session.map(Way::Daemon).or_else(|error| match (self, FallbackCause::of_session(&error)) {
            (Self::Tcp, Some(cause)) => Ok(Way::Tcp(cause)),
            _ => Err(error),
        })
    }

    /// Why a connection that the daemon could not make goes over kernel TCP, if it does.
    pub(crate) fn cause_of(self, failed: &ConnectError) -> Option<FallbackCause> {
        match self {
            Self::Never => None,
            Self::Tcp => FallbackCause::of_connect(failed),
        }
    }
}

/// Why a connection goes over kernel TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackCause {
    /// Nobody serves the daemon's socket on this host.
    #[error("there is no RaaS daemon on this host")]
    NoDaemon,
    /// This host's daemon died or was stopped.
    #[error("this host's RaaS daemon was lost")]
    DaemonLost,
    /// This host's daemon cannot reach one at the peer.
    #[error("the peer's RaaS daemon cannot be reached")]
    PeerUnreachable,
    /// The peer connected so; it knows why.
    #[error("the peer connected over kernel TCP")]
    Accepted,
}

/// What was asked for does not exist over kernel TCP. Kind: [`io::ErrorKind::Unsupported`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotOverTcp {
    /// [`Stream::reserve`] and [`Stream::loan`].
    #[error("loans lend the rings in shared memory, which a connection over kernel TCP has not: use read and write")]
    Loans,
    /// [`Message`](crate::Message) and [`MessageListener`](crate::MessageListener).
    #[error("messages do not travel over kernel TCP: leave out `fallback`, or use Stream and Listener")]
    Messages,
    /// [`ConnectOptions::start`](crate::ConnectOptions::start).
    #[error(
        "a connection that is started cannot fall back to kernel TCP: use `connect` or `dial`, or leave out `fallback`"
    )]
    Starting,
}

crate::error::debug_says_the_words!(NotOverTcp);

impl From<NotOverTcp> for io::Error {
    fn from(e: NotOverTcp) -> Self {
        Self::new(io::ErrorKind::Unsupported, e)
    }
}

impl FallbackCause {
    /// Of the failure of a session: only that there is no daemon. One that refuses, or is of another release, is a mistake to
    /// be heard of.
    fn of_session(error: &SessionError) -> Option<Self> {
        match error {
            SessionError::NoDaemon { .. } => Some(Self::NoDaemon),
            SessionError::Lost { reason: Reason::DaemonLost | Reason::ShuttingDown } => Some(Self::DaemonLost),
            _ => None,
        }
    }

    /// Of the failure to connect: only that there is nobody to ask at the peer. A peer that answers is taken at its word.
    fn of_connect(error: &ConnectError) -> Option<Self> {
        match error {
            ConnectError::Session(e) => Self::of_session(e),
            ConnectError::Refused { reason: Reason::PeerUnreachable | Reason::PeerBusy, .. } => {
                Some(Self::PeerUnreachable)
            }
            _ => None,
        }
    }
}

/// Connects over kernel TCP. `daemon`: who is told, if there is one.
pub(crate) fn connect(
    to: SocketAddr,
    cause: FallbackCause,
    (timeout, peer_timeout): (Duration, Option<Duration>),
    daemon: Option<&Arc<Inner>>,
) -> Result<Stream, ConnectError> {
    // The system refuses to wait for no time at all with another error than when the time is over.
    if timeout.is_zero() {
        return Err(ConnectError::TimedOut { to, waited: timeout });
    }
    let connected = TcpStream::connect_timeout(&to, timeout).and_then(|socket| adopt(socket, cause, daemon));
    match connected {
        Ok(stream) => {
            if peer_timeout.is_some() {
                // One that broke meanwhile says so when it is used.
                let _ = stream.set_peer_timeout(peer_timeout);
            }
            tracing::warn!(%to, reason = Reason::TcpFallback.key(), %cause, "connected over kernel TCP, as asked for");
            Ok(stream)
        }
        Err(error) => Err(ConnectError::Tcp { to, cause, error }),
    }
}

/// Takes a connection that came over kernel TCP.
pub(crate) fn accept(socket: TcpStream, from: SocketAddr, daemon: Option<&Arc<Inner>>) -> io::Result<Stream> {
    let stream = adopt(socket, FallbackCause::Accepted, daemon)?;
    tracing::info!(%from, reason = Reason::TcpFallback.key(), "accepted over kernel TCP, as asked for");
    Ok(stream)
}

fn adopt(socket: TcpStream, cause: FallbackCause, daemon: Option<&Arc<Inner>>) -> io::Result<Stream> {
    let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
    let told = daemon.map(|inner| Told::new(inner, local, peer));
    let conn = TcpConn::new(socket, (local, peer), cause, told)?;
    Ok(Stream { carrier: Carrier::Tcp(Arc::new(conn)) })
}
