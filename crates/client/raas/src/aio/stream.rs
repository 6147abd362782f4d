//! Streams for tokio's tasks.
//!
//! Owns the traits. It must never block a task.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use control::PathKind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::ToSocketAddrs;

use super::dialing::{dial, global};
use super::halves::{OwnedReadHalf, OwnedWriteHalf};
use crate::dial::ConnectOptions;
use crate::error::{ConnectError, SessionError};
use crate::session::Session;

/// A connection, for tasks. One task may read it while another writes; of several in one direction the last is woken.
#[derive(Debug)]
pub struct Stream(crate::Stream);

impl Stream {
    /// Connects, in the process-wide session, to the first of the addresses that answers. Dropping the future stops the
    /// connect.
    pub async fn connect(addr: impl ToSocketAddrs) -> Result<Self, ConnectError> {
        Self::connect_with(&global().await?, addr, &ConnectOptions::new()).await
    }

    /// As [`Stream::connect`], in a session of the caller's and with settings (whose time limit does not count: use
    /// [`tokio::time::timeout`]).
    pub async fn connect_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        Self::dial(Ok(session.clone()), addr, options).await
    }

    /// As [`ConnectOptions::dial`]: `session` is the result of making it. Over kernel TCP the time limit counts.
    pub async fn dial(
        session: Result<Session, SessionError>,
        addr: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        dial(session, addr, options).await.map(Self)
    }

    /// The other end, as [`crate::Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// This end, as [`crate::Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// How the bytes travel.
    pub fn path(&self) -> PathKind {
        self.0.path()
    }

    /// Accepted and without effect, as [`crate::Stream::set_nodelay`].
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.set_nodelay(nodelay)
    }

    /// The two directions, for two tasks. Dropping the writing half ends the writing (the peer reads to the end);
    /// dropping the reading half makes the peer's writes fail. The connection closes when the second half is dropped.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (reader, writer) = self.0.split();
        (OwnedReadHalf(reader), OwnedWriteHalf(writer))
    }

    /// The stream as threads use it.
    pub fn get_ref(&self) -> &crate::Stream {
        &self.0
    }

    /// The stream for threads; its mode (blocking or not) is as it was.
    pub fn into_inner(self) -> crate::Stream {
        self.0
    }
}

impl From<crate::Stream> for Stream {
    fn from(stream: crate::Stream) -> Self {
        Self(stream)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = self.0.carrier.poll_read(context, buf.initialize_unfilled());
        polled.map_ok(|count| buf.advance(count))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.carrier.poll_write(context, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.carrier.poll_write(context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing is held back: every write is on its way when it returns.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shutdown(Shutdown::Write))
    }
}
