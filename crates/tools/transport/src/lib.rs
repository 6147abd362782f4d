//! What the measuring and sending commands need from a byte stream, so that the same program runs over RaaS and over
//! kernel TCP; and the loads that are measured on one.
//!
//! Owns the streams, and the loads that are measured on them. It must never do for one carrier what it does not do
//! for the other. May use `control`, `raas`, `terminal`. Order of calls: a transport is made once, then listens or
//! connects.

#![forbid(unsafe_code)]

mod fallback;
pub mod load;
pub mod process;
mod raas;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use self::fallback::FallingBack;
pub use self::raas::{Raas, reason_failure, session_failure, stream_failure};
pub use tcp::{Tcp, default_congestion, set_congestion, tcp_congestion};

use ::raas::FallbackCause;

use terminal::Failure;

/// A way to make connections.
pub trait Transport: Clone + Send + Sync + 'static {
    /// What waits for connections.
    type Listener: Accept<Stream = Self::Stream>;
    /// A connection.
    type Stream: Connection;

    /// Listens at `at`; port 0 takes any free one.
    fn listen(&self, at: SocketAddr) -> Result<Self::Listener, Failure>;
    /// Connects within `timeout`.
    fn connect(&self, to: SocketAddr, timeout: Duration) -> Result<Self::Stream, Failure>;
    /// The daemon whose processor time belongs to this transport's cost, if there is one and its process is known.
    fn daemon_pid(&self) -> Option<u32>;
}

/// A listener.
pub trait Accept: Send + Sync + 'static {
    /// What it gives.
    type Stream: Connection;

    /// The next connection, or `None` if none came within `timeout`.
    fn accept_timeout(&self, timeout: Duration) -> io::Result<Option<Self::Stream>>;
    /// Where it listens.
    fn local_addr(&self) -> SocketAddr;
}

/// Bytes in both directions: one thread may receive while another sends.
pub trait Duplex: Send + Sync + 'static {
    /// Receives at least one byte, or 0 after the peer's last one.
    fn recv(&self, into: &mut [u8]) -> io::Result<usize>;
    /// Sends at least one byte of `from`.
    fn send(&self, from: &[u8]) -> io::Result<usize>;
    /// Ends the sending direction: no more bytes follow. Receiving goes on.
    fn finish_sending(&self) -> io::Result<()>;

    /// Receives exactly `into.len()` bytes; an earlier end is `UnexpectedEof`.
    fn recv_exact(&self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.recv(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => into = into.get_mut(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends all of `from`.
    fn send_all(&self, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match self.send(from) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => from = from.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// What a [`Transport`] makes.
pub trait Connection: Duplex {
    /// Bounds each `recv` and `send`; `None` waits without bound.
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    /// The other end.
    fn peer_addr(&self) -> SocketAddr;
    /// How the bytes travel: a value of `path` in docs/operate/commands.md.
    fn path(&self) -> &'static str;
    /// Why kernel TCP carries it instead of a daemon, if it was made so.
    fn fallback(&self) -> Option<FallbackCause> {
        None
    }
}
