//! Settings of a connection, and making it: addresses in turn, the time limit, kernel TCP if the program asked for it.
//!
//! Owns the limits of what an application may ask for. It must never wait longer than the limit for one address.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use control::{Kind, Reason};

use crate::addresses;
use crate::connecting::Connecting;
use crate::error::{ConnectError, SessionError};
use crate::fallback::{Fallback, NotOverTcp};
use crate::fallback_tcp::{self, CarriedBy, Limits};
use crate::flags::{Flags, Transport};
use crate::ring_size::check_ring_bytes;
use crate::session::{Session, TIMEOUT_DEFAULT};
use crate::stream::Stream;

impl Stream {
    /// Connects, in the process-wide session, to the first of the addresses that answers.
    pub fn connect(addr: impl ToSocketAddrs) -> Result<Self, ConnectError> {
        Self::connect_with(&Session::global()?, addr)
    }

    /// As [`Stream::connect`], giving up after `timeout`.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> Result<Self, ConnectError> {
        ConnectOptions::new().timeout(timeout).connect(&Session::global()?, addr)
    }

    /// As [`Stream::connect`], in a session of the caller's. More settings: [`ConnectOptions`].
    pub fn connect_with(session: &Session, addr: impl ToSocketAddrs) -> Result<Self, ConnectError> {
        ConnectOptions::new().connect(session, addr)
    }
}

/// Settings of a connection to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectOptions {
    ring_bytes: u32,
    timeout: Option<Duration>,
    kind: Kind,
    peer_timeout: Option<Duration>,
    pub(crate) fallback: Fallback,
    flags: Flags,
}

impl ConnectOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Size of each direction's ring: a power of two from 4 KiB to 8 MiB, 0 for the daemon's default.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// How long to wait for each address.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long the connection waits for the other host while its daemon says nothing: [`Stream::set_peer_timeout`].
    /// Zero is refused.
    #[must_use]
    pub fn peer_timeout(mut self, timeout: Duration) -> Self {
        self.peer_timeout = Some(timeout);
        self
    }

    /// What to do if there is no daemon on this host (see [`ConnectOptions::dial`]), or none that can be reached at the
    /// peer. Default: [`Fallback::Never`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// The transport and the verb that must carry the connection between hosts; what cannot be had is refused when it
    /// is made. Default: the service chooses.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// Messages travel, reliable ones unless the flags say UC.
    pub(crate) fn messages(mut self) -> Self {
        self.kind = self.flags.kind_of_messages();
        self
    }

    /// What carries it.
    pub(crate) fn transport(&self) -> Transport {
        Transport::of(self.kind)
    }

    /// Connects to the first of the addresses that answers, tried in turn. If none does the error names each.
    pub fn connect(&self, session: &Session, addr: impl ToSocketAddrs) -> Result<Stream, ConnectError> {
        self.dial(Ok(session.clone()), addr)
    }

    /// As [`ConnectOptions::connect`], for programs that go on without a daemon. `session` is the result of making it.
    /// If there is no daemon, and [`Fallback::Tcp`] was asked for, the connection goes over kernel TCP.
    ///
    /// ```no_run
    /// use raas::{ConnectOptions, Fallback, Session};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let options = ConnectOptions::new().fallback(Fallback::Tcp);
    /// let stream = options.dial(Session::global(), "10.0.0.2:7000")?;
    /// if let Some(cause) = stream.fallback() {
    ///     eprintln!("over kernel TCP: {cause}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn dial(
        &self,
        session: Result<Session, SessionError>,
        addr: impl ToSocketAddrs,
    ) -> Result<Stream, ConnectError> {
        self.check()?;
        let carrier = self.fallback.carried_by(session)?;
        addresses::first(addr, |to| self.connect_one(&carrier, to))
    }

    fn connect_one(&self, carrier: &CarriedBy, to: SocketAddr) -> Result<Stream, ConnectError> {
        let (session, limits) = match carrier {
            CarriedBy::Daemon(session) => (session, self.limits(session.attachment.config.timeout)),
            CarriedBy::Tcp(cause) => {
                return fallback_tcp::connect(to, *cause, self.limits(TIMEOUT_DEFAULT), None);
            }
        };
        let begun = Instant::now();
        let connected = self.begin_now(session, to).and_then(|c| c.wait(limits.connect));
        connected.or_else(|failed| match self.fallback.cause_of(&failed) {
            Some(cause) => {
                let left = limits.connect.saturating_sub(begun.elapsed());
                fallback_tcp::connect(to, cause, Limits { connect: left, ..limits }, Some(&session.attachment))
            }
            None => Err(failed),
        })
    }

    /// The time limits, where nobody said how long to wait: `default`.
    pub(crate) fn limits(&self, default: Duration) -> Limits {
        Limits { connect: self.timeout.unwrap_or(default), peer: self.peer_timeout }
    }

    /// Starts to connect to one address and returns at once; [`ConnectOptions::timeout`] does not count here, and
    /// [`Fallback::Tcp`] is refused.
    pub fn start(&self, session: &Session, to: SocketAddr) -> Result<Connecting, ConnectError> {
        self.check()?;
        if self.fallback != Fallback::Never {
            return Err(NotOverTcp::Starting.into());
        }
        self.begin(session, to)
    }

    /// Asks the daemon for a connection, without any fallback.
    pub(crate) fn begin(&self, session: &Session, to: SocketAddr) -> Result<Connecting, ConnectError> {
        Connecting::start(&session.attachment, to, self.ring_bytes, self.kind)
            .map(|c| c.peer_timeout(self.peer_timeout).flags(self.flags))
    }

    /// As [`Self::begin`]. With a fallback it does not wait for a daemon: the program has another way.
    pub(crate) fn begin_now(&self, session: &Session, to: SocketAddr) -> Result<Connecting, ConnectError> {
        let connecting = self.begin(session, to)?;
        if self.fallback != Fallback::Never && !connecting.has_daemon() {
            return Err(SessionError::Lost { reason: Reason::DaemonLost }.into());
        }
        Ok(connecting)
    }

    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        self.flags.check(self.transport())?;
        if self.peer_timeout == Some(Duration::ZERO) {
            return Err(ConnectError::PeerTimeoutZero);
        }
        check_ring_bytes(self.ring_bytes).map_err(ConnectError::RingBytes)?;
        Ok(self.fallback.check(self.kind)?)
    }
}
