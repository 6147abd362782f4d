//! Streams and listeners for tokio (cargo feature `tokio`).
//!
//! [`Stream`] is tokio's [`AsyncRead`] and [`AsyncWrite`], so that hyper, tonic and the like run on it; [`Incoming`] is the
//! stream of connections that servers take; [`Message`] keeps boundaries. Tasks are woken by the session's watcher thread, or
//! one for kernel TCP (docs/client.md); no runtime is bound to a stream, which may move from one to another.
//!
//! It must never block a task, but for the daemon's locks, which are held shortly.
//!
//! ```no_run
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn example() -> std::io::Result<()> {
//! let listener = raas::aio::Listener::bind("0.0.0.0:7000").await?;
//! tokio::spawn(async move {
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         tokio::spawn(async move {
//!             let (mut reader, mut writer) = tokio::io::split(&mut stream);
//!             tokio::io::copy(&mut reader, &mut writer).await
//!         });
//!     }
//! #   #[allow(unreachable_code)]
//! #   std::io::Result::Ok(())
//! });
//! let mut stream = raas::aio::Stream::connect("10.0.0.2:7000").await?;
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! # Ok(())
//! # }
//! ```

mod datagram;
mod halves;
mod message;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use control::PathKind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{ToSocketAddrs, lookup_host};

pub use self::datagram::DatagramSocket;
pub use self::halves::{OwnedReadHalf, OwnedWriteHalf};
pub use self::message::{Message, MessageListener};
use crate::fallback::Way;
use crate::session::TIMEOUT_DEFAULT;
use crate::{AcceptError, BindError, ConnectError, ConnectOptions, ListenOptions, Session, SessionError, fallback};

/// A connection, for tasks. One task may read it while another writes; of several in one direction the last is woken.
#[derive(Debug)]
pub struct Stream(crate::Stream);

impl Stream {
    /// Connects, in the process-wide session, to the first of the addresses that answers. Dropping the future gives up.
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

    /// As [`ConnectOptions::dial`]: `session` is what making it gave. Over kernel TCP the time limit counts.
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
    /// dropping the reading half tells the peer that nobody reads; the connection closes with the second.
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

/// A port on which connections are accepted, for tasks.
#[derive(Debug)]
pub struct Listener(crate::Listener);

impl Listener {
    /// Listens, in the process-wide session; as [`crate::Listener::bind`].
    pub async fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&global().await?, addr, ListenOptions::new()).await
    }

    /// As [`Listener::bind`], in a session of the caller's and with settings.
    pub async fn bind_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: ListenOptions,
    ) -> Result<Self, BindError> {
        Self::listen(Ok(session.clone()), addr, options).await
    }

    /// As [`ListenOptions::listen`]: `session` is what making it gave.
    pub async fn listen(
        session: Result<Session, SessionError>,
        addr: impl ToSocketAddrs,
        options: ListenOptions,
    ) -> Result<Self, BindError> {
        listen(session, addr, options).await.map(Self)
    }

    /// The next connection, and who made it. One task at a time waits; dropping the future loses none.
    pub async fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        let (stream, peer) = poll_fn(|context| self.0.poll_accept(context)).await?;
        Ok((Stream(stream), peer))
    }

    /// Where it listens, as [`crate::Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Connections as they come, as hyper and tonic take them.
    pub fn incoming(self) -> Incoming {
        Incoming(self.0)
    }

    /// The listener as threads use it.
    pub fn get_ref(&self) -> &crate::Listener {
        &self.0
    }
}

impl From<crate::Listener> for Listener {
    fn from(listener: crate::Listener) -> Self {
        Self(listener)
    }
}

/// Connections as they come, without end: a [`futures_core::Stream`]. The loss of the daemon is one error, of kind
/// `ConnectionAborted`, after which servers go on; the next connection comes over the daemon that is back.
#[derive(Debug)]
pub struct Incoming(crate::Listener);

impl Incoming {
    /// Where it listens, as [`crate::Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl futures_core::Stream for Incoming {
    type Item = io::Result<Stream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| Stream(stream)).map_err(Into::into)))
    }
}

/// The addresses in turn.
async fn dial(
    session: Result<Session, SessionError>,
    addr: impl ToSocketAddrs,
    options: &ConnectOptions,
) -> Result<crate::Stream, ConnectError> {
    options.check()?;
    let way = options.fallback.way(session)?;
    let mut failed = Vec::new();
    for to in lookup_host(addr).await.map_err(ConnectError::Resolve)? {
        match connect_one(&way, to, options).await {
            Ok(stream) => return Ok(stream),
            Err(e @ ConnectError::Session(_)) => return Err(e),
            Err(e) => failed.push(e),
        }
    }
    Err(ConnectError::of_all(failed))
}

async fn connect_one(way: &Way, to: SocketAddr, options: &ConnectOptions) -> Result<crate::Stream, ConnectError> {
    let (cause, daemon) = match way {
        Way::Tcp(cause) => (*cause, None),
        Way::Daemon(session) => {
            let connected = match options.begin(session, to) {
                Ok(connecting) => connecting.await,
                Err(e) => Err(e),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(failed) => match options.fallback.cause_of(&failed) {
                    Some(cause) => (cause, Some(Arc::clone(&session.inner))),
                    None => return Err(failed),
                },
            }
        }
    };
    let timeout = options.timeout.unwrap_or(daemon.as_ref().map_or(TIMEOUT_DEFAULT, |inner| inner.timeout));
    let timeouts = (timeout, options.peer_timeout);
    aside(move || fallback::connect(to, cause, timeouts, daemon.as_ref())).await
}

async fn listen(
    session: Result<Session, SessionError>,
    addr: impl ToSocketAddrs,
    options: ListenOptions,
) -> Result<crate::Listener, BindError> {
    let addresses: Vec<SocketAddr> = lookup_host(addr).await.map_err(BindError::Resolve)?.collect();
    aside(move || options.listen(session, &addresses[..])).await
}

/// The process-wide session; attaching may wait for the daemon.
async fn global() -> Result<Session, SessionError> {
    aside(Session::global).await
}

/// Runs what may wait on a thread that may.
async fn aside<T: Send + 'static, E: From<SessionError> + Send + 'static>(
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(e) => Err(SessionError::io("a thread of the runtime", io::Error::other(e)).into()),
    }
}
