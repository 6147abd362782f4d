//! Kernel TCP instead of the daemons' paths: when it may be taken, and what it cannot do.
//!
//! Owns the decision and its messages. It must never take kernel TCP unless the caller asked for it. It must report it:
//! in the log, on the stream, and to this host's daemon if there is one.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use control::Reason;

use crate::attachment::Attachment;
use crate::carrier::Carrier;
use crate::error::{ConnectError, SessionError};
use crate::fallback::{Fallback, FallbackCause};
use crate::session::Session;
use crate::stream::Stream;
use crate::tcp::TcpConn;
use crate::tcp_row::TcpRow;

/// What carries the connection or listener that an application is about to make.
pub(crate) enum CarriedBy {
    /// This host's daemon.
    Daemon(Session),
    /// Kernel TCP alone: there is no daemon, and the application asked for this.
    Tcp(FallbackCause),
}

impl Fallback {
    /// What carries it, by the result of making the session.
    pub(crate) fn carried_by(self, session: Result<Session, SessionError>) -> Result<CarriedBy, SessionError> {
        session.map(CarriedBy::Daemon).or_else(|error| match (self, FallbackCause::of_session(&error)) {
            (Self::Tcp, Some(cause)) => Ok(CarriedBy::Tcp(cause)),
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

impl FallbackCause {
    /// From the failure of a session: only that there is no daemon. If a daemon refuses, or is of another release, the
    /// caller must get that error.
    fn of_session(error: &SessionError) -> Option<Self> {
        match error {
            SessionError::NoDaemon { .. } => Some(Self::NoDaemon),
            SessionError::Lost { reason: Reason::DaemonLost | Reason::ShuttingDown } => Some(Self::DaemonLost),
            _ => None,
        }
    }

    /// From the failure to connect: only that no daemon answers at the peer. If the peer answers, the caller must get
    /// its error.
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

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Of the making.
    pub(crate) connect: Duration,
    /// Of the peer's silence, afterwards.
    pub(crate) peer: Option<Duration>,
}

/// Connects over kernel TCP. `daemon`: gets a report of it, if there is one.
pub(crate) fn connect(
    to: SocketAddr,
    cause: FallbackCause,
    limits: Limits,
    daemon: Option<&Arc<Attachment>>,
) -> Result<Stream, ConnectError> {
    // The system refuses to wait for no time at all with another error than when the time is over.
    if limits.connect.is_zero() {
        return Err(ConnectError::TimedOut { to, waited: limits.connect });
    }
    let connected = TcpStream::connect_timeout(&to, limits.connect).and_then(|socket| adopt(socket, cause, daemon));
    match connected {
        Ok(stream) => {
            if limits.peer.is_some() {
                // One that broke meanwhile says so when it is used.
                let _ = stream.set_peer_timeout(limits.peer);
            }
            tracing::warn!(%to, reason = Reason::TcpFallback.key(), %cause, "connected over kernel TCP, as asked for");
            Ok(stream)
        }
        Err(error) => Err(ConnectError::Tcp { to, cause, error }),
    }
}

/// Takes a connection that came over kernel TCP.
pub(crate) fn accept(socket: TcpStream, from: SocketAddr, daemon: Option<&Arc<Attachment>>) -> io::Result<Stream> {
    let stream = adopt(socket, FallbackCause::Accepted, daemon)?;
    tracing::info!(%from, reason = Reason::TcpFallback.key(), "accepted over kernel TCP, as asked for");
    Ok(stream)
}

fn adopt(socket: TcpStream, cause: FallbackCause, daemon: Option<&Arc<Attachment>>) -> io::Result<Stream> {
    let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
    let row = daemon.map(|attachment| TcpRow::new(attachment, local, peer));
    let conn = TcpConn::new(socket, cause, row)?;
    Ok(Stream { carrier: Carrier::Tcp(Arc::new(conn)) })
}
