//! RaaS as a transport: one session with this host's daemon, and what its errors mean for the exit code.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use raas::{
    AcceptError, BindError, ConnectError, ConnectOptions, FallbackCause, ListenOptions, Reason, Session, SessionError,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Accept, Connection, Duplex, Transport};
use terminal::Failure;

/// Connections that may wait to be accepted.
pub(super) const BACKLOG: u32 = 1024;

/// Connections through this host's daemon.
#[derive(Debug, Clone)]
pub struct Raas {
    session: Session,
    daemon_pid: Option<u32>,
}

impl Raas {
    /// Attaches to the daemon at `socket` (by the usual rule if `None`), with this name in `raas stat`.
    pub fn attach(socket: Option<&Path>, name: &str) -> Result<Self, Failure> {
        let session = attach(socket, name).map_err(session_failure)?;
        let daemon_pid = daemon_pid(session.socket().to_path_buf());
        Ok(Self { session, daemon_pid })
    }

    /// The session with the daemon.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

pub(super) fn attach(socket: Option<&Path>, name: &str) -> Result<Session, SessionError> {
    let builder = Session::builder().name(name);
    match socket {
        Some(path) => builder.socket(path),
        None => builder,
    }
    .connect()
}

/// The process that serves `socket`, by the word of the kernel; `None` if it is in another pid namespace.
pub(super) fn daemon_pid(socket: PathBuf) -> Option<u32> {
    let address = SocketAddrUnix::new(socket).ok()?;
    let probe =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&probe, &address).ok()?;
    let pid = control::peer_credentials(&probe).ok()?.pid;
    (pid != 0).then_some(pid)
}

/// A session's error as a failure of the command.
pub fn session_failure(e: SessionError) -> Failure {
    match e {
        SessionError::NoDaemon { .. } | SessionError::Lost { .. } | SessionError::Silent { .. } => {
            Failure::NoDaemon(e.to_string())
        }
        SessionError::Refused { .. }
        | SessionError::Version { .. }
        | SessionError::Denied { .. }
        | SessionError::Impostor { .. } => Failure::Refused(e.to_string()),
        _ => Failure::Failed(e.to_string()),
    }
}

pub fn reason_failure(reason: Reason, message: String) -> Failure {
    match reason {
        Reason::DaemonLost | Reason::ShuttingDown | Reason::PeerUnreachable | Reason::PeerBusy => {
            Failure::NoDaemon(message)
        }
        Reason::TimedOut | Reason::PeerLost | Reason::PeerTimeout | Reason::LaneFailed => Failure::Failed(message),
        _ => Failure::Refused(message),
    }
}

pub(super) fn connect_failure(e: ConnectError) -> Failure {
    let message = e.to_string();
    match e {
        ConnectError::Session(e) => session_failure(e),
        ConnectError::Refused { reason, .. } => reason_failure(reason, message),
        ConnectError::Tcp { error, .. } if error.kind() == io::ErrorKind::ConnectionRefused => {
            Failure::Refused(message)
        }
        // Neither the peer's daemon nor the peer itself.
        ConnectError::Tcp { .. } => Failure::NoDaemon(message),
        ConnectError::Resolve(_) | ConnectError::RingBytes(_) => Failure::Usage(message),
        _ => Failure::Failed(message),
    }
}

pub(super) fn bind_failure(e: BindError) -> Failure {
    let message = e.to_string();
    match e {
        BindError::Session(e) => session_failure(e),
        BindError::Refused { reason, .. } => reason_failure(reason, message),
        _ => Failure::Usage(message),
    }
}

impl Transport for Raas {
    type Listener = RaasAccept;
    type Stream = raas::Stream;

    fn listen(&self, at: SocketAddr) -> Result<RaasAccept, Failure> {
        let listener = ListenOptions::new().backlog(BACKLOG).bind(&self.session, at).map_err(bind_failure)?;
        Ok(RaasAccept(listener))
    }

    fn connect(&self, to: SocketAddr, timeout: Duration) -> Result<raas::Stream, Failure> {
        ConnectOptions::new().timeout(timeout).connect(&self.session, to).map_err(connect_failure)
    }

    fn daemon_pid(&self) -> Option<u32> {
        self.daemon_pid
    }
}

/// A listener at this host's daemon.
#[derive(Debug)]
pub struct RaasAccept(raas::Listener);

impl RaasAccept {
    pub(super) fn new(listener: raas::Listener) -> Self {
        Self(listener)
    }
}

impl Accept for RaasAccept {
    type Stream = raas::Stream;

    fn accept_timeout(&self, timeout: Duration) -> io::Result<Option<raas::Stream>> {
        match self.0.accept_timeout(timeout) {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(AcceptError::TimedOut(_)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr().expect("a listener knows its address")
    }
}

impl Duplex for raas::Stream {
    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, into)
    }

    fn send(&self, from: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, from)
    }

    fn finish_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Connection for raas::Stream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }

    fn peer_addr(&self) -> SocketAddr {
        Self::peer_addr(self).expect("a stream knows its addresses")
    }

    fn path(&self) -> &'static str {
        Self::path(self).as_str()
    }

    fn fallback(&self) -> Option<FallbackCause> {
        Self::fallback(self)
    }
}

/// A failed read or write as a failure of the command. A lost daemon has an exit code of its own.
pub fn stream_failure(what: impl std::fmt::Display, e: &io::Error) -> Failure {
    let message = format!("{what}: {e}");
    match raas::StreamError::reason_of(e) {
        Some(Reason::DaemonLost | Reason::ShuttingDown) => Failure::NoDaemon(message),
        _ => Failure::Failed(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_daemon_says_how_to_start_one() {
        let failure = Raas::attach(Some(Path::new("/nonexistent/raasd.sock")), "test").unwrap_err();
        assert!(matches!(&failure, Failure::NoDaemon(m) if m.contains("raas daemon")), "{failure}");
    }

    #[test]
    fn reasons_choose_the_exit_code() {
        let to: SocketAddr = "10.0.0.2:1".parse().unwrap();
        let refused = |reason| connect_failure(ConnectError::Refused { to, reason });
        assert!(matches!(refused(Reason::NoListener), Failure::Refused(_)));
        assert!(matches!(refused(Reason::PeerAuth), Failure::Refused(_)));
        assert!(matches!(refused(Reason::PeerVersion), Failure::Refused(_)));
        assert!(matches!(refused(Reason::PeerUnreachable), Failure::NoDaemon(_)));
        assert!(matches!(refused(Reason::TimedOut), Failure::Failed(_)));
    }
}
