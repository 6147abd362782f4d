//! The making of a listener: at the daemon, and at the kernel's TCP if that was asked for.
//!
//! Owns the choice of a port that is free at both. It must never leave a port open at the daemon that no listener has.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::addresses;
use crate::error::{BindError, SessionError};
use crate::fallback::{Fallback, FallbackCause};
use crate::fallback_tcp::CarriedBy;
use crate::listen_options::ListenOptions;
use crate::listener::Listener;
use crate::listening::{Listening, close};
use crate::ring_size::check_ring_bytes;
use crate::session::Session;
use crate::tcp_listener::KernelListener;

/// Free ports of the daemon that are tried until one is free for kernel TCP too.
const FREE_PORT_TRIES: u32 = 16;

impl Listener {
    /// Listens, in the process-wide session. The host must be an address of this host or unspecified (`0.0.0.0`); port
    /// 0 is any free one, which [`Listener::local_addr`] returns.
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&Session::global()?, addr)
    }

    /// As [`Listener::bind`], in a session of the caller's. More settings: [`ListenOptions`].
    pub fn bind_with(session: &Session, addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        ListenOptions::new().bind(session, addr)
    }
}

impl ListenOptions {
    /// Listens on the first of the addresses that can be.
    pub fn bind(&self, session: &Session, addr: impl ToSocketAddrs) -> Result<Listener, BindError> {
        self.listen(Ok(session.clone()), addr)
    }

    /// As [`ListenOptions::bind`], for programs that go on without a daemon. `session` is the result of making it. If
    /// there is no daemon, and [`Fallback::Tcp`] was asked for, only connections over kernel TCP are accepted.
    pub fn listen(
        &self,
        session: Result<Session, SessionError>,
        addr: impl ToSocketAddrs,
    ) -> Result<Listener, BindError> {
        self.flags.check(self.transport())?;
        check_ring_bytes(self.ring_bytes).map_err(BindError::RingBytes)?;
        self.fallback.check(self.kind)?;
        let carrier = self.fallback.carried_by(session)?;
        addresses::first(addr, |addr| match &carrier {
            CarriedBy::Daemon(session) => self.bind_everywhere(session, addr),
            CarriedBy::Tcp(cause) => self.bind_tcp(addr, *cause),
        })
    }

    fn bind_tcp(&self, addr: SocketAddr, cause: FallbackCause) -> Result<Listener, BindError> {
        let bound = KernelListener::bind(addr, self.backlog).and_then(|kernel| Ok((kernel.local_addr()?, kernel)));
        let (local, kernel) = bound.map_err(|error| BindError::Tcp { addr, error })?;
        tracing::warn!(%local, %cause, "listening on kernel TCP alone, as asked for");
        Ok(Listener::over_tcp(kernel, local))
    }

    /// At the daemon, and on the same port of kernel TCP if asked for. A free port must be free at both.
    fn bind_everywhere(&self, session: &Session, addr: SocketAddr) -> Result<Listener, BindError> {
        let attachment = &session.attachment;
        let mut tries = if addr.port() == 0 { FREE_PORT_TRIES } else { 1 };
        loop {
            let local = self.ask(attachment, addr)?;
            let kernel = match self.fallback {
                Fallback::Never => None,
                Fallback::Tcp => {
                    tries -= 1;
                    let addr = SocketAddr::new(addr.ip(), local.port());
                    match KernelListener::bind(addr, self.backlog) {
                        Ok(kernel) => Some(kernel),
                        Err(e) => {
                            close(attachment, local.port());
                            if e.kind() == ErrorKind::AddrInUse && tries > 0 {
                                continue;
                            }
                            return Err(BindError::Tcp { addr, error: e });
                        }
                    }
                }
            };
            return Ok(Listener::new(Listening::start(*self, attachment, local, kernel)?));
        }
    }
}
