//! RaaS as a transport, and kernel TCP where no daemon carries a connection (`--fallback tcp`). It must never take
//! kernel TCP without a line on stderr that says why.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raas::{ConnectOptions, Fallback, ListenOptions, Reason, Session, SessionError};

use super::Transport;
use super::raas::{BACKLOG, RaasAccept, attach, bind_failure, connect_failure, daemon_pid, session_failure};
use terminal::Failure;
use terminal::out;

/// Connections through this host's daemon, else over kernel TCP.
#[derive(Debug, Clone)]
pub struct FallingBack {
    /// An error is [`SessionError::NoDaemon`].
    session: Result<Session, SessionError>,
    daemon_pid: Option<u32>,
    /// It was said that, and why, kernel TCP carries connections.
    said: Arc<AtomicBool>,
}

impl FallingBack {
    /// Attaches to the daemon at `socket`, if there is one. A daemon that refuses is a mistake to be heard of.
    pub fn attach(socket: Option<&Path>, name: &str) -> Result<Self, Failure> {
        let session = attach(socket, name);
        if let Err(e) = &session
            && !matches!(e, SessionError::NoDaemon { .. })
        {
            return Err(session_failure(e.clone()));
        }
        let daemon_pid = session.as_ref().ok().and_then(|s| daemon_pid(s.socket().to_path_buf()));
        Ok(Self { session, daemon_pid, said: Arc::default() })
    }
}

impl Transport for FallingBack {
    type Listener = RaasAccept;
    type Stream = raas::Stream;

    fn listen(&self, at: SocketAddr) -> Result<RaasAccept, Failure> {
        let options = ListenOptions::new().backlog(BACKLOG).fallback(Fallback::Tcp);
        let listener = options.listen(self.session.clone(), at).map_err(bind_failure)?;
        let scope = if self.session.is_ok() { "too" } else { "alone: there is no RaaS daemon on this host" };
        out::say(format_args!("raas: listening on kernel TCP {scope}"));
        Ok(RaasAccept::new(listener))
    }

    fn connect(&self, to: SocketAddr, timeout: Duration) -> Result<raas::Stream, Failure> {
        let options = ConnectOptions::new().timeout(timeout).fallback(Fallback::Tcp);
        let stream = options.dial(self.session.clone(), to).map_err(connect_failure)?;
        if let Some(cause) = stream.fallback()
            && !self.said.swap(true, Ordering::Relaxed)
        {
            out::say(format_args!("raas: to {to} over kernel TCP ({}): {cause}", Reason::TcpFallback.key()));
        }
        Ok(stream)
    }

    fn daemon_pid(&self) -> Option<u32> {
        self.daemon_pid
    }
}
