//! Settings of a datagram socket, and the making of one.
//!
//! Owns the request to bind until its answer. It must never leave a port bound that no socket has.

use std::net::{SocketAddr, ToSocketAddrs};

use raas_core::{Answer, Failed};

use crate::addresses;
use crate::conn::Conn;
use crate::datagram::DatagramSocket;
use crate::error::{BindError, SessionError};
use crate::flags::{Flags, Transport};
use crate::port_request::ask_for_port;
use crate::ring_size::check_ring_bytes;
use crate::session::Session;

impl DatagramSocket {
    /// Binds, in the process-wide session. The host must be an address of this host or unspecified (`0.0.0.0`); port 0
    /// is any free one, which [`DatagramSocket::local_addr`] returns.
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&Session::global()?, addr)
    }

    /// As [`DatagramSocket::bind`], in a session of the caller's. More settings: [`DatagramOptions`].
    pub fn bind_with(session: &Session, addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        DatagramOptions::new().bind(session, addr)
    }
}

/// Settings of a datagram socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramOptions {
    ring_bytes: u32,
    flags: Flags,
}

impl DatagramOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Size of the ring of each direction: a power of two from 4 KiB to 8 MiB, 0 for the daemon's default; the daemon
    /// gives 16 KiB at least. It holds datagrams with 24 bytes more for each: those that were sent and not yet taken by
    /// the daemon, and those that arrived and were not received.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// The transport and the verb of the datagrams between hosts; what cannot be had is refused by `bind`. Default:
    /// the service chooses, which is UD and SEND.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// Binds to the first of the addresses that can be.
    pub fn bind(&self, session: &Session, addr: impl ToSocketAddrs) -> Result<DatagramSocket, BindError> {
        self.flags.check(Transport::Ud)?;
        check_ring_bytes(self.ring_bytes).map_err(BindError::RingBytes)?;
        addresses::first(addr, |addr| self.bind_one(session, addr))
    }

    fn bind_one(&self, session: &Session, addr: SocketAddr) -> Result<DatagramSocket, BindError> {
        let attachment = &session.attachment;
        let answer = ask_for_port(attachment, addr, |session| session.bind_datagram(addr.port(), self.ring_bytes))?;
        let connection = match answer {
            Answer::Connected(Ok(connection)) => *connection,
            Answer::Connected(Err(Failed::Reason(reason))) => return Err(BindError::refused(addr, reason)),
            Answer::Connected(Err(Failed::Protocol(what))) => return Err(SessionError::Protocol(what).into()),
            other => return Err(SessionError::Protocol(format!("the answer to BindDatagram was {other:?}")).into()),
        };
        Ok(DatagramSocket::adopt(attachment, Conn::adopt(attachment, connection), addr))
    }
}
