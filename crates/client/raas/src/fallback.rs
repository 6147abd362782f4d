//! Kernel TCP instead of the daemons' paths: what a caller may ask for, and what it cannot do.
//!
//! Owns the words. It must never be taken unless the caller asked for it.

use std::io;

use control::{Kind, debug_says_the_words};

/// What to do where no daemon can carry a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fallback {
    /// Fail, with the error that says why. The default.
    #[default]
    Never,
    /// Use kernel TCP, to the same address and port. The stream says so: [`Stream::path`](crate::Stream::path),
    /// [`Stream::fallback`](crate::Stream::fallback).
    Tcp,
}

impl Fallback {
    /// Refuses what kernel TCP could never carry before anything is tried.
    pub(crate) fn check(self, kind: Kind) -> Result<(), NotOverTcp> {
        match (self, kind) {
            (Self::Tcp, Kind::Message | Kind::Unreliable) => Err(NotOverTcp::Messages),
            _ => Ok(()),
        }
    }
}

/// Why a connection goes over kernel TCP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
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
    /// [`Stream::reserve`](crate::Stream::reserve) and [`Stream::loan`](crate::Stream::loan).
    #[error("loans lend the rings in shared memory, which a connection over kernel TCP has not: use read and write")]
    Loans,
    /// [`Message`](crate::MessageStream) and [`MessageListener`](crate::MessageListener).
    #[error("messages do not travel over kernel TCP: leave out `fallback`, or use Stream and Listener")]
    Messages,
    /// [`ConnectOptions::start`](crate::ConnectOptions::start).
    #[error(
        "a connection that is started cannot fall back to kernel TCP: use `connect` or `dial`, or leave out `fallback`"
    )]
    Starting,
    /// The calls of [`elsewhere`](crate::elsewhere).
    #[error("kernel TCP has a socket to poll, and no rings to look at: use `ready_fd`")]
    Polling,
}

debug_says_the_words!(FallbackCause, NotOverTcp);

impl From<NotOverTcp> for io::Error {
    fn from(e: NotOverTcp) -> Self {
        Self::new(io::ErrorKind::Unsupported, e)
    }
}
