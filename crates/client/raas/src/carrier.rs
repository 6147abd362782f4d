//! What carries a stream's bytes: the rings, or kernel TCP.
//!
//! Owns the choice between the two for each call. It must never do anything of its own between them.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;

use control::{PathKind, Reason};
use raas_core::{Readiness, Side};

use crate::conn::Conn;
use crate::error::SessionError;
use crate::fallback::{FallbackCause, NotOverTcp};
use crate::flags::Flags;
use crate::tcp::TcpConn;

/// One end of a connection.
#[derive(Debug, Clone)]
pub(crate) enum Carrier {
    /// Shared memory, to a process of this host or to the lane.
    Rings(Arc<Conn>),
    /// A socket of the kernel.
    Tcp(Arc<TcpConn>),
}

macro_rules! on_either {
    ($($(#[$attr:meta])* $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { $(
        $(#[$attr])*
        pub(crate) fn $name(&self, $($arg: $type),*) -> $result {
            match self {
                Self::Rings(conn) => conn.$name($($arg),*),
                Self::Tcp(conn) => conn.$name($($arg),*),
            }
        }
    )* };
}

impl Carrier {
    on_either! {
        #[inline] read(buf: &mut [u8]) -> io::Result<usize>;
        #[inline] write(buf: &[u8]) -> io::Result<usize>;
        write_slices(bufs: &[IoSlice<'_>]) -> io::Result<usize>;
        peek(buf: &mut [u8]) -> io::Result<usize>;
        unread_bytes() -> io::Result<u64>;
        timeout(side: Side) -> Option<Duration>;
        set_timeout(side: Side, timeout: Option<Duration>) -> io::Result<()>;
        set_peer_timeout(timeout: Option<Duration>) -> io::Result<()>;
        peer_timeout() -> Option<Duration>;
        set_verb(flags: Flags) -> io::Result<()>;
        use_verb(flags: Flags) -> io::Result<()>;
        set_nonblocking(on: bool) -> io::Result<()>;
        readiness() -> io::Result<Readiness>;
        ready_fd() -> io::Result<BorrowedFd<'_>>;
        made_fd() -> io::Result<BorrowedFd<'_>>;
        shut(side: Side) -> io::Result<()>;
        failure() -> Option<Reason>;
        #[cfg(feature = "tokio")] poll_read(context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;
        #[cfg(feature = "tokio")] poll_write(context: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    }

    /// The rings, for operations that only they can do.
    #[inline]
    pub(crate) fn rings(&self, otherwise: NotOverTcp) -> Result<&Conn, NotOverTcp> {
        match self {
            Self::Rings(conn) => Ok(conn),
            Self::Tcp(_) => Err(otherwise),
        }
    }

    /// Refuses a forked child.
    pub(crate) fn check_fork(&self) -> Result<(), SessionError> {
        match self {
            Self::Rings(conn) => conn.check_fork(),
            // A child has a copy of the socket.
            Self::Tcp(_) => Ok(()),
        }
    }

    /// Whether calls do not wait. For rings alone.
    pub(crate) fn is_nonblocking(&self) -> bool {
        match self {
            Self::Rings(conn) => conn.is_nonblocking(),
            Self::Tcp(_) => false,
        }
    }

    /// Number on this host; kernel TCP has none here.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Rings(conn) => conn.endpoint().id(),
            Self::Tcp(_) => 0,
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            Self::Rings(conn) => conn.endpoint().local(),
            Self::Tcp(conn) => conn.local,
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        match self {
            Self::Rings(conn) => conn.endpoint().peer(),
            Self::Tcp(conn) => conn.peer,
        }
    }

    pub(crate) fn path(&self) -> PathKind {
        match self {
            Self::Rings(conn) => conn.endpoint().path(),
            Self::Tcp(_) => PathKind::Tcp,
        }
    }

    pub(crate) fn peer_pid(&self) -> Option<u32> {
        match self {
            Self::Rings(conn) => conn.endpoint().peer_pid(),
            Self::Tcp(_) => None,
        }
    }

    pub(crate) fn fallback(&self) -> Option<FallbackCause> {
        match self {
            Self::Rings(_) => None,
            Self::Tcp(conn) => Some(conn.cause),
        }
    }
}
