//! Datagrams for tokio's tasks, as by [`crate::DatagramSocket`].
//!
//! Owns nothing beyond the waiting. A future that is dropped loses nothing: a datagram is sent whole or not at all, and
//! one that comes stays in the ring. It must never block a task.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;

use tokio::net::{ToSocketAddrs, lookup_host};

use super::dialing::{aside, global};
use crate::datagram_making::DatagramOptions;
use crate::error::BindError;
use crate::session::Session;

/// A socket for datagrams, for tasks. One task may receive while another sends; of several in one direction the last is
/// woken.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// let socket = raas::aio::DatagramSocket::bind("0.0.0.0:0").await?;
/// socket.send_to(b"question", "10.0.0.2:7001").await?;
/// let mut buffer = [0; 4096];
/// let (len, from) = socket.recv_from(&mut buffer).await?;
/// println!("{from} answers with {len} bytes");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramSocket(crate::DatagramSocket);

impl DatagramSocket {
    /// Binds, in the process-wide session, as [`crate::DatagramSocket::bind`].
    pub async fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&global().await?, addr, DatagramOptions::new()).await
    }

    /// As [`DatagramSocket::bind`], in a session of the caller's and with settings.
    pub async fn bind_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: DatagramOptions,
    ) -> Result<Self, BindError> {
        let addresses: Vec<SocketAddr> = lookup_host(addr).await.map_err(BindError::Resolve)?.collect();
        let session = session.clone();
        aside(move || options.bind(&session, &addresses[..])).await.map(Self)
    }

    /// Sends one datagram to the first of the addresses; waits for room, and for the first link to the host.
    pub async fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "the address names no host");
        let to = lookup_host(addr).await?.next().ok_or_else(none)?;
        poll_fn(|context| self.0.poll_send_to(context, buf, to)).await
    }

    /// Receives one datagram; returns its length and its sender. If `buf` is too small, the datagram is kept.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|context| self.0.poll_recv_from(context, buf)).await
    }

    /// Where it is bound, as [`crate::DatagramSocket::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The socket as threads use it.
    pub fn get_ref(&self) -> &crate::DatagramSocket {
        &self.0
    }
}

impl From<crate::DatagramSocket> for DatagramSocket {
    fn from(socket: crate::DatagramSocket) -> Self {
        Self(socket)
    }
}
