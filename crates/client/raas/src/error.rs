//! What can go wrong, one enum per operation, and how each becomes an [`io::Error`].
//!
//! Owns the mapping from [`Reason`] to [`io::ErrorKind`]. It must never lose the reason: the typed error stays inside
//! the `io::Error` and comes out again with `get_ref()` and `downcast_ref`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::{Reason, debug_says_the_words};
use raas_core::{Forked, SessionFault, at_descriptor_limit, other_release};

use crate::fallback::{FallbackCause, NotOverTcp};
use crate::flags::FlagsError;

/// The session with this host's daemon could not be made, or is over.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Nobody serves that socket.
    #[error("no RaaS daemon at {} ({cause}): start one with `raas daemon`, or name its socket in RAAS_SOCKET", path.display())]
    NoDaemon {
        /// The socket that was tried.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// A daemon serves there, but its socket does not let this user in.
    #[error("{}", denied(path, *mode, group.as_deref()))]
    Denied {
        /// The socket.
        path: PathBuf,
        /// Mode of the socket file; none if its directory does not even let this user look.
        mode: Option<u32>,
        /// Group of the socket file.
        group: Option<String>,
    },
    /// Library and daemon are of different releases.
    #[error("{}", other_release(*version, *layout, release))]
    Version {
        /// Control protocol of the daemon.
        version: u32,
        /// Memory layout of the daemon.
        layout: u32,
        /// Release of the daemon.
        release: String,
    },
    /// The daemon does not accept this application.
    #[error("the daemon refused this application: {reason} ({detail})")]
    Refused {
        /// Why.
        reason: Reason,
        /// The daemon's words.
        detail: String,
    },
    /// Another user serves the socket at the usual place in /tmp. That user could read and change all data.
    #[error("{} is served by user {uid}, not by you or root: remove it, or name the right socket in RAAS_SOCKET", path.display())]
    Impostor {
        /// The socket.
        path: PathBuf,
        /// The user who serves it.
        uid: u32,
    },
    /// The daemon died, stopped, or put this application out.
    #[error("the session with the daemon is over: {reason}")]
    Lost {
        /// Why.
        reason: Reason,
    },
    /// The daemon did not answer in time.
    #[error("the daemon at {} did not answer within {waited:?}: is it stopped or overloaded?", path.display())]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// This process may open no more descriptors, so it could not get those of the session.
    #[error("{}", at_descriptor_limit(*limit))]
    Descriptors {
        /// Descriptors that it may have open.
        limit: u64,
    },
    /// The daemon said something that its protocol does not allow.
    #[error("the daemon broke the control protocol: {0}")]
    Protocol(String),
    /// This process is a fork of the one that made the session.
    #[error("this session belongs to process {owner}, from which this one was forked: make a new session after fork")]
    Forked {
        /// The process that made it.
        owner: u32,
    },
    /// A system call failed.
    #[error("{call}: {cause}")]
    Os {
        /// Which.
        call: &'static str,
        /// Its kind.
        kind: io::ErrorKind,
        /// What the system said.
        cause: String,
    },
}

impl SessionError {
    pub(crate) fn os(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::io(call, io::Error::from(errno))
    }

    pub(crate) fn io(call: &'static str, error: io::Error) -> Self {
        Self::Os { call, kind: error.kind(), cause: error.to_string() }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoDaemon { .. } => io::ErrorKind::NotFound,
            Self::Version { .. } | Self::Forked { .. } => io::ErrorKind::Unsupported,
            Self::Refused { reason, .. } | Self::Lost { reason } => reason_kind(*reason),
            Self::Silent { .. } => io::ErrorKind::TimedOut,
            Self::Denied { .. } | Self::Impostor { .. } => io::ErrorKind::PermissionDenied,
            Self::Descriptors { .. } => io::ErrorKind::QuotaExceeded,
            Self::Protocol(_) => io::ErrorKind::InvalidData,
            Self::Os { kind, .. } => *kind,
        }
    }
}

impl From<Forked> for SessionError {
    fn from(forked: Forked) -> Self {
        Self::Forked { owner: forked.owner }
    }
}

impl From<SessionFault> for SessionError {
    fn from(fault: SessionFault) -> Self {
        match fault {
            SessionFault::Version { version, layout, release } => Self::Version { version, layout, release },
            SessionFault::Refused { reason, detail } => Self::Refused { reason, detail },
            SessionFault::Lost(reason) => Self::Lost { reason },
            SessionFault::Descriptors { limit } => Self::Descriptors { limit },
            SessionFault::Forked(forked) => forked.into(),
            SessionFault::Os { call, kind, cause } => Self::Os { call, kind, cause },
            SessionFault::Protocol(what) => Self::Protocol(what),
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// Which users the socket lets in, and what this user must do to be one of them.
fn denied(path: &Path, mode: Option<u32>, group: Option<&str>) -> String {
    let socket = path.display();
    let configure = "the daemon's configuration must let a group of yours in, with `socket_mode = \"0660\"` and `socket_group = \"GROUP\"`";
    match (mode, group) {
        (Some(mode), Some(group)) if mode & 0o020 != 0 && group != "root" => format!(
            "the daemon's socket {socket} (mode {mode:04o}, group {group}) does not let you in: join its group (as root: \
             `usermod -aG {group} USER`, then log in again), or {configure}"
        ),
        (Some(mode), _) => {
            format!("the daemon's socket {socket} (mode {mode:04o}) lets only its own user in: {configure}")
        }
        (None, _) => format!("the directory of the daemon's socket {socket} does not let you in: {configure}"),
    }
}

/// A connection could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No session with this host's daemon.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The address could not be understood or looked up.
    #[error("the address cannot be resolved: {0}")]
    Resolve(io::Error),
    /// The daemons said no.
    #[error("connect to {to}: {reason}")]
    Refused {
        /// Where to.
        to: SocketAddr,
        /// Why.
        reason: Reason,
    },
    /// This process may open no more descriptors, so it could not get the memory of the connection. Its other
    /// connections go on.
    #[error("connect to {to}: {}", at_descriptor_limit(*limit))]
    Descriptors {
        /// Where to.
        to: SocketAddr,
        /// Descriptors that it may have open.
        limit: u64,
    },
    /// No answer within the time given.
    #[error("connect to {to}: no answer within {waited:?}")]
    TimedOut {
        /// Where to.
        to: SocketAddr,
        /// The time.
        waited: Duration,
    },
    /// The ring size is not usable.
    #[error("ring size {0} is not 0 or a power of two from 4096 to 8388608 bytes")]
    RingBytes(u32),
    /// The peer timeout is not usable.
    #[error("a peer timeout of 0 is not allowed: leave it out to wait as long as the daemons do")]
    PeerTimeoutZero,
    /// Kernel TCP was asked for as fallback and taken, and failed too.
    #[error("connect to {to} over kernel TCP ({cause}): {error}")]
    Tcp {
        /// Where to.
        to: SocketAddr,
        /// Why kernel TCP was taken.
        cause: FallbackCause,
        /// What the system said.
        error: io::Error,
    },
    /// What was asked for does not go together with [`crate::Fallback::Tcp`].
    #[error(transparent)]
    NotOverTcp(#[from] NotOverTcp),
    /// The flags cannot be had; see [`crate::Flags`].
    #[error(transparent)]
    Flags(#[from] FlagsError),
    /// The name stands for several addresses, and none could be connected to.
    #[error("no address could be connected to: {}", list(.0))]
    All(Vec<ConnectError>),
}

fn list<E: std::fmt::Display>(errors: &[E]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl ConnectError {
    /// What the daemons' refusal means.
    pub(crate) fn refused(to: SocketAddr, reason: Reason) -> Self {
        match reason {
            Reason::AppDescriptors => Self::Descriptors { to, limit: control::descriptor_limit() },
            reason => Self::Refused { to, reason },
        }
    }

    /// The daemons' reason, if they gave one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Session(SessionError::Refused { reason, .. } | SessionError::Lost { reason })
            | Self::Refused { reason, .. } => Some(*reason),
            Self::Descriptors { .. } => Some(Reason::AppDescriptors),
            Self::TimedOut { .. } => Some(Reason::TimedOut),
            Self::All(failed) => failed.last().and_then(Self::reason),
            _ => None,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Session(e) => e.kind(),
            Self::Resolve(e) => e.kind(),
            Self::Refused { reason, .. } => reason_kind(*reason),
            Self::Descriptors { .. } => io::ErrorKind::QuotaExceeded,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::RingBytes(_) | Self::PeerTimeoutZero => io::ErrorKind::InvalidInput,
            Self::Tcp { error, .. } => error.kind(),
            Self::NotOverTcp(_) => io::ErrorKind::Unsupported,
            Self::Flags(e) => e.kind(),
            Self::All(failed) => failed.last().map_or(io::ErrorKind::Other, Self::kind),
        }
    }
}

/// A listener could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// No session with this host's daemon.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The address could not be understood or looked up.
    #[error("the address cannot be resolved: {0}")]
    Resolve(io::Error),
    /// The daemon said no.
    #[error("listen on {addr}: {reason}")]
    Refused {
        /// Where.
        addr: SocketAddr,
        /// Why.
        reason: Reason,
    },
    /// This process may open no more descriptors, so it could not get the memory of the socket.
    #[error("listen on {addr}: {}", at_descriptor_limit(*limit))]
    Descriptors {
        /// Where.
        addr: SocketAddr,
        /// Descriptors that it may have open.
        limit: u64,
    },
    /// The address is not one of this host's.
    #[error("listen on {addr}: the daemon of this host has the addresses {addresses:?}; use one of them or 0.0.0.0")]
    NotThisHost {
        /// Where.
        addr: SocketAddr,
        /// What the daemon calls this host.
        addresses: Vec<IpAddr>,
    },
    /// The ring size is not usable.
    #[error("ring size {0} is not 0 or a power of two from 4096 to 8388608 bytes")]
    RingBytes(u32),
    /// Kernel TCP was asked for as fallback, and cannot be listened on.
    #[error("listen on {addr} over kernel TCP: {error}")]
    Tcp {
        /// Where.
        addr: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// What was asked for does not go together with [`crate::Fallback::Tcp`].
    #[error(transparent)]
    NotOverTcp(#[from] NotOverTcp),
    /// The flags cannot be had; see [`crate::Flags`].
    #[error(transparent)]
    Flags(#[from] FlagsError),
    /// The name stands for several addresses, and none could be listened on.
    #[error("no address could be listened on: {}", list(.0))]
    All(Vec<BindError>),
}

impl BindError {
    /// What the daemon's refusal means.
    pub(crate) fn refused(addr: SocketAddr, reason: Reason) -> Self {
        match reason {
            Reason::AppDescriptors => Self::Descriptors { addr, limit: control::descriptor_limit() },
            reason => Self::Refused { addr, reason },
        }
    }

    /// Why the daemon said no, if it did.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Session(SessionError::Refused { reason, .. } | SessionError::Lost { reason })
            | Self::Refused { reason, .. } => Some(*reason),
            Self::Descriptors { .. } => Some(Reason::AppDescriptors),
            Self::All(failed) => failed.last().and_then(Self::reason),
            _ => None,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Session(e) => e.kind(),
            Self::Resolve(e) => e.kind(),
            Self::Refused { reason, .. } => reason_kind(*reason),
            Self::Descriptors { .. } => io::ErrorKind::QuotaExceeded,
            Self::NotThisHost { .. } => io::ErrorKind::AddrNotAvailable,
            Self::RingBytes(_) => io::ErrorKind::InvalidInput,
            Self::Tcp { error, .. } => error.kind(),
            Self::NotOverTcp(_) => io::ErrorKind::Unsupported,
            Self::Flags(e) => e.kind(),
            Self::All(failed) => failed.last().map_or(io::ErrorKind::Other, Self::kind),
        }
    }
}

/// No connection could be accepted.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The daemon was lost. This is reported once: the next `accept` waits until there is a daemon again and the port
    /// is open there. Or the listener cannot attach to what serves the socket now, which is reported once too.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is a daemon again, but it does not open the port, for instance because another program has it. This is
    /// reported once. The listener goes on trying while somebody accepts.
    #[error("after the loss of the daemon: {0}")]
    NotListening(#[source] BindError),
    /// Nobody connected within the time given.
    #[error("nobody connected within {0:?}")]
    TimedOut(Duration),
    /// The listener does not block, and nobody waits.
    #[error("nobody waits to be accepted")]
    WouldBlock,
    /// A connection over kernel TCP waits and cannot be taken, mostly for want of descriptors.
    #[error("a connection over kernel TCP cannot be accepted: {0}")]
    Tcp(io::Error),
    /// A task polls a listener with [`crate::Fallback::Tcp`].
    #[error(transparent)]
    NotOverTcp(#[from] NotOverTcp),
}

impl AcceptError {
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Session(e) => e.kind(),
            Self::NotListening(e) => e.kind(),
            Self::TimedOut(_) => io::ErrorKind::TimedOut,
            Self::WouldBlock => io::ErrorKind::WouldBlock,
            Self::Tcp(e) => e.kind(),
            Self::NotOverTcp(_) => io::ErrorKind::Unsupported,
        }
    }
}

/// What is inside the [`io::Error`] of a failed read or write.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct StreamError {
    /// Why.
    pub reason: Reason,
}

impl StreamError {
    /// The stream broke for `reason`.
    pub(crate) fn reset(reason: Reason) -> io::Error {
        io::Error::new(reason_kind(reason), Self { reason })
    }

    /// Nobody will read what is written.
    pub(crate) fn broken_pipe() -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, Self { reason: Reason::Closed })
    }

    /// The reason inside an error of a stream, if it is one.
    pub fn reason_of(error: &io::Error) -> Option<Reason> {
        error.get_ref()?.downcast_ref::<Self>().map(|e| e.reason)
    }
}

/// The fitting kind for a reason.
pub(crate) fn reason_kind(reason: Reason) -> io::ErrorKind {
    use io::ErrorKind as K;
    match reason {
        Reason::NoListener | Reason::BacklogFull | Reason::WrongKind => K::ConnectionRefused,
        Reason::PeerUnreachable | Reason::Stalled => K::HostUnreachable,
        Reason::PeerAuth | Reason::Policy => K::PermissionDenied,
        Reason::PeerVersion => K::Unsupported,
        Reason::DaemonLost | Reason::ShuttingDown => K::ConnectionAborted,
        Reason::LocalLimit
        | Reason::PeerLimit
        | Reason::UserPrograms
        | Reason::UserListeners
        | Reason::UserConnections
        | Reason::UserLanes
        | Reason::UserDials
        | Reason::UserPairs
        | Reason::AppDescriptors
        | Reason::PeerAppDescriptors => K::QuotaExceeded,
        Reason::BadAddress => K::AddrNotAvailable,
        Reason::TimedOut => K::TimedOut,
        Reason::PeerBusy => K::ResourceBusy,
        Reason::PortInUse => K::AddrInUse,
        Reason::Closed => K::BrokenPipe,
        Reason::ResetByPeer
        | Reason::PeerAppDied
        | Reason::PeerLost
        | Reason::PeerTimeout
        | Reason::LaneFailed
        | Reason::AppFault
        | Reason::DirectLost
        | Reason::Unspecified => K::ConnectionReset,
        _ => K::Other,
    }
}

macro_rules! into_io {
    ($($error:ty),*) => { $(
        impl From<$error> for io::Error {
            fn from(e: $error) -> Self {
                Self::new(e.kind(), e)
            }
        }
    )* };
}
into_io!(SessionError, ConnectError, BindError, AcceptError);
debug_says_the_words!(SessionError, ConnectError, BindError, AcceptError, StreamError);

#[cfg(test)]
mod tests {
    use control::APP_VERSION;

    use super::*;

    #[test]
    fn reasons_survive_the_way_through_io_errors() {
        let refused = ConnectError::Refused { to: "10.0.0.1:80".parse().unwrap(), reason: Reason::NoListener };
        let io: io::Error = refused.into();
        assert_eq!(io.kind(), io::ErrorKind::ConnectionRefused);
        let inner = io.get_ref().unwrap().downcast_ref::<ConnectError>().unwrap();
        assert_eq!(inner.reason(), Some(Reason::NoListener));
        let io = StreamError::reset(Reason::PeerAppDied);
        assert_eq!(io.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(StreamError::reason_of(&io), Some(Reason::PeerAppDied));
    }

    #[test]
    fn every_reason_of_failure_has_a_kind_of_its_own() {
        for &reason in Reason::ALL.iter().filter(|r| r.code() < 32) {
            assert_ne!(reason_kind(reason), io::ErrorKind::Other, "{reason:?}");
        }
    }

    #[test]
    fn messages_say_what_to_do() {
        let e = SessionError::NoDaemon { path: "/run/x.sock".into(), cause: "none".into() };
        assert!(e.to_string().contains("raas daemon") && e.to_string().contains("/run/x.sock"));
        let e = SessionError::Version { version: 7, layout: 9, release: "8.1".into() };
        assert!(
            e.to_string().contains(&format!("protocol {APP_VERSION} ")) && e.to_string().contains("7 and 9"),
            "{e}"
        );
    }
}
