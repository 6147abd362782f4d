//! gRPC over RaaS: what tonic (and hyper) need to run on streams of crate `raas`.
//!
//! A server uses [`Incoming`], a client [`Connector`]; tonic does everything between. A handler finds [`ConnectInfo`]
//! among the extensions of its request: the caller, and the path that the bytes took.
//!
//! ```no_run
//! use tonic::transport::{Endpoint, Server};
//!
//! // The server:
//! # async fn server(router: tonic::transport::server::Router) -> Result<(), Box<dyn std::error::Error>> {
//! let listener = raas::aio::Listener::bind("0.0.0.0:50051").await?;
//! router.serve_with_incoming(raas_tonic::Incoming::new(listener)).await?;
//! # Ok(()) }
//! // The client:
//! # async fn client() -> Result<(), Box<dyn std::error::Error>> {
//! let connector = raas_tonic::Connector::new(raas::Session::global()?);
//! let channel = Endpoint::from_static("http://10.0.0.2:50051").connect_with_connector(connector).await?;
//! # Ok(()) }
//! ```
//!
//! Owns the adapters alone. It must never choose another path than RaaS.
//!
//! May use `raas`. Order of calls: that of tonic.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use raas::aio;
use raas::{ConnectOptions, PathKind, Session};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Port of an address that names none.
const HTTP_PORT: u16 = 80;

/// A stream as tonic takes it.
#[derive(Debug)]
pub struct Io(pub aio::Stream);

/// What a handler may know of the connection that a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectInfo {
    /// The connection's number on this host, as in `raas ss`.
    pub id: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// How the bytes travel.
    pub path: PathKind,
}

impl Connected for Io {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        let stream = self.0.get_ref();
        let known = "a stream knows its addresses";
        let (local, peer) = (stream.local_addr().expect(known), stream.peer_addr().expect(known));
        ConnectInfo { id: stream.id(), local, peer, path: stream.path() }
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Connections for `serve_with_incoming`. It has no end: the loss of the daemon is one error of kind
/// `ConnectionAborted`, over which tonic goes on, and the next connection comes over the daemon that is back.
#[derive(Debug)]
pub struct Incoming(aio::Incoming);

impl Incoming {
    /// The connections of a listener.
    pub fn new(listener: aio::Listener) -> Self {
        Self(listener.incoming())
    }

    /// Where it listens, as [`raas::Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl futures_core::Stream for Incoming {
    type Item = io::Result<Io>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(context).map(|next| next.map(|stream| stream.map(Io)))
    }
}

/// Connects to the host and port of a URI, for `Endpoint::connect_with_connector` and hyper's clients. After the loss
/// of the daemon it attaches to the one that serves the same socket ([`Session::reattach`]), so that a channel connects
/// again.
#[derive(Debug, Clone)]
pub struct Connector {
    session: Session,
    options: ConnectOptions,
}

impl Connector {
    /// In this session, with the default settings.
    pub fn new(session: Session) -> Self {
        Self { session, options: ConnectOptions::new() }
    }

    /// With other settings.
    #[must_use]
    pub fn options(mut self, options: ConnectOptions) -> Self {
        self.options = options;
        self
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Io>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { session, options } = self.clone();
        Box::pin(async move {
            let host = uri.host().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{uri} names no host: use http://HOST:PORT"))
            })?;
            // An IPv6 address stands in brackets there.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = uri.port_u16().unwrap_or(HTTP_PORT);
            let session = if session.is_usable() { session } else { reattach(session).await? };
            let stream = aio::Stream::connect_with(&session, (host, port), &options).await?;
            Ok(TokioIo::new(Io(stream)))
        })
    }
}

/// On a thread that may wait for the daemon's answer.
async fn reattach(session: Session) -> io::Result<Session> {
    let attached = tokio::task::spawn_blocking(move || session.reattach()).await;
    attached.map_err(io::Error::other)?.map_err(Into::into)
}
