//! The two directions of a stream, for two tasks.
//!
//! Owns nothing beyond the traits. It must never end a direction but by its own half's drop or shutdown.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The reading direction of an [`aio::Stream`](super::Stream), by [`into_split`](super::Stream::into_split).
#[derive(Debug)]
pub struct OwnedReadHalf(pub(super) crate::ReadHalf);

/// The writing direction of an [`aio::Stream`](super::Stream), by [`into_split`](super::Stream::into_split).
#[derive(Debug)]
pub struct OwnedWriteHalf(pub(super) crate::WriteHalf);

impl OwnedReadHalf {
    /// The other end, as [`crate::Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// This end, as [`crate::Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl OwnedWriteHalf {
    /// The other end, as [`crate::Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// This end, as [`crate::Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = self.0.carrier.poll_read(context, buf.initialize_unfilled());
        polled.map_ok(|count| buf.advance(count))
    }
}

impl AsyncWrite for OwnedWriteHalf {
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
        Poll::Ready(self.0.shutdown())
    }
}
