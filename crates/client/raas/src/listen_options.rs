//! Settings of a listener, and the asking for its port at the daemon.
//!
//! Owns the request to listen until its answer. It must never ask for what the daemon would refuse anyhow.

use std::net::SocketAddr;
use std::sync::Arc;

use control::Kind;
use raas_core::Answer;

use crate::attachment::Attachment;
use crate::error::{BindError, SessionError};
use crate::fallback::Fallback;
use crate::flags::{Flags, Transport};
use crate::port_request::ask_for_port;

/// Connections that may wait for `accept` unless [`ListenOptions::backlog`] says otherwise.
const BACKLOG_DEFAULT: u32 = 128;

/// Settings of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenOptions {
    pub(crate) ring_bytes: u32,
    pub(crate) backlog: u32,
    pub(crate) kind: Kind,
    pub(crate) fallback: Fallback,
    pub(crate) flags: Flags,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let (kind, fallback) = (Kind::Stream, Fallback::Never);
        Self { ring_bytes: 0, backlog: BACKLOG_DEFAULT, kind, fallback, flags: Flags::empty() }
    }
}

impl ListenOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Size of each direction's ring of accepted connections: a power of two from 4 KiB to 8 MiB, 0 for the daemon's
    /// default.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Connections that may wait for `accept`; further ones are refused. Default: 128.
    #[must_use]
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// With [`Fallback::Tcp`] connections over kernel TCP are accepted too, on the same address and port. Default:
    /// [`Fallback::Never`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// The transport and the verb that must carry accepted connections between hosts; what cannot be had is refused by
    /// `bind`. Default: the service chooses.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// Messages travel on its connections, reliable ones unless the flags say UC.
    pub(crate) fn messages(mut self) -> Self {
        self.kind = self.flags.kind_of_messages();
        self
    }

    /// What carries its connections.
    pub(crate) fn transport(&self) -> Transport {
        Transport::of(self.kind)
    }

    /// Opens the port of `addr` at the daemon, 0 for any free one. The caller must close what was opened.
    pub(crate) fn ask(&self, attachment: &Arc<Attachment>, addr: SocketAddr) -> Result<SocketAddr, BindError> {
        let Self { backlog, ring_bytes, kind, .. } = *self;
        match ask_for_port(attachment, addr, |session| session.listen(addr.port(), backlog, ring_bytes, kind))? {
            Answer::Listening(Ok(local)) => {
                let ip = if addr.ip().is_unspecified() { local.ip() } else { addr.ip() };
                Ok(SocketAddr::new(ip, local.port()))
            }
            Answer::Listening(Err(reason)) => Err(BindError::refused(addr, reason)),
            other => Err(SessionError::Protocol(format!("the answer to Listen was {other:?}")).into()),
        }
    }
}
