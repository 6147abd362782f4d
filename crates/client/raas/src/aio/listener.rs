//! Listeners for tokio's tasks.
//!
//! Owns the traits. It must never lose a connection to a future that is dropped.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::ToSocketAddrs;

use super::dialing::{global, listen};
use super::stream::Stream;
use crate::error::{AcceptError, BindError, SessionError};
use crate::listen_options::ListenOptions;
use crate::session::Session;

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

    /// The next connection, and the address of its other end. One task at a time waits. Dropping the future loses no
    /// connection.
    pub async fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        let (stream, peer) = poll_fn(|context| self.0.poll_accept(context)).await?;
        Ok((Stream::from(stream), peer))
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

/// Connections as they come, without end: a [`futures_core::Stream`]. The loss of the daemon is one error of kind
/// `ConnectionAborted`, after which servers go on. The next connection comes over the next daemon.
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
        self.0
            .poll_accept(context)
            .map(|accepted| Some(accepted.map(|(stream, _)| Stream::from(stream)).map_err(Into::into)))
    }
}
