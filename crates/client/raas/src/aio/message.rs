//! Messages for tokio's tasks: boundaries are kept, as by [`crate::MessageStream`].
//!
//! Owns nothing beyond the waiting. A future that is dropped loses nothing: a message is sent whole or not at all, and
//! what was taken of one that comes is kept. It must never block a task.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;

use control::PathKind;
use tokio::net::ToSocketAddrs;

use super::dialing::{dial, global, listen};
use crate::dial::ConnectOptions;
use crate::error::{AcceptError, BindError, ConnectError};
use crate::lend::View;
use crate::listen_options::ListenOptions;
use crate::message_error::MessageError;
use crate::session::Session;

/// A connection of messages, for tasks. One task may receive while another sends; of several in one direction the last
/// is woken.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// let message = raas::aio::MessageStream::connect("10.0.0.2:7000").await?;
/// message.send(b"question").await?;
/// while let Some(answer) = message.receive_vec().await? {
///     println!("{} bytes", answer.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MessageStream(crate::MessageStream);

impl MessageStream {
    /// Connects, in the process-wide session, to the first of the addresses that answers. Dropping the future stops the
    /// connect.
    pub async fn connect(addr: impl ToSocketAddrs) -> Result<Self, ConnectError> {
        Self::connect_with(&global().await?, addr, &ConnectOptions::new()).await
    }

    /// As [`MessageStream::connect`], in a session of the caller's and with settings, whose time limit does not count.
    pub async fn connect_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let options = options.messages();
        let stream = dial(Ok(session.clone()), addr, &options).await?;
        Ok(Self(crate::MessageStream::new(stream, options.transport())))
    }

    /// Sends one message, which may be empty; waits while there is no room for all of it. On an error, and if the
    /// future is dropped before it is done, none of it was sent.
    pub async fn send(&self, message: &[u8]) -> io::Result<()> {
        poll_fn(|context| self.0.poll_send(context, message)).await
    }

    /// Receives the next message and says how long it is; None at the end. If `buf` is too small the message is kept,
    /// as by [`crate::MessageStream::receive`]. So is one that another host lends ([`MessageError::Lent`]).
    pub async fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        poll_fn(|context| self.0.poll_receive(context, buf)).await
    }

    /// Receives the next message, however long it is; None at the end.
    pub async fn receive_vec(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buf = Vec::new();
        loop {
            match self.receive(&mut buf).await {
                Ok(len) => return Ok(len.map(|_| buf)),
                Err(e) => buf.resize(MessageError::len_wanted(e)?, 0),
            }
        }
    }

    /// Receives the next message without copying it if it was lent; None at the end. The first look at a slice of each
    /// region asks the daemon, and looks at slices of another host wait for it: do them where a thread may wait.
    pub async fn receive_view(&self) -> io::Result<Option<View>> {
        poll_fn(|context| self.0.poll_receive_view(context)).await
    }

    /// As [`crate::MessageStream::call`]: sends `request` and receives its reply into `reply`; says how long it is. A
    /// future that is dropped after it sent (for instance by a timeout) leaves the connection out of step too. A second
    /// call fails in this way while one is under way.
    pub async fn call(&self, request: &[u8], reply: &mut [u8]) -> io::Result<usize> {
        self.call_by(request, self.receive(reply)).await
    }

    /// As [`MessageStream::call`], for a reply of any length.
    pub async fn call_vec(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.call_by(request, self.receive_vec()).await
    }

    async fn call_by<T>(&self, request: &[u8], receive: impl Future<Output = io::Result<Option<T>>>) -> io::Result<T> {
        let mut call = self.0.calls.begin().map_err(io::Error::from)?;
        // Whether it was sent is known when it is awaited to its end: a message is sent whole or not at all.
        self.send(request).await?;
        call.sending();
        let reply = receive.await?.ok_or(MessageError::NoReply)?;
        call.in_step();
        Ok(reply)
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

    /// The connection as threads use it.
    pub fn get_ref(&self) -> &crate::MessageStream {
        &self.0
    }
}

impl From<crate::MessageStream> for MessageStream {
    fn from(message: crate::MessageStream) -> Self {
        Self(message)
    }
}

/// A port on which connections of messages are accepted, for tasks.
#[derive(Debug)]
pub struct MessageListener(crate::MessageListener);

impl MessageListener {
    /// Listens, in the process-wide session; as [`crate::MessageListener::bind`].
    pub async fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&global().await?, addr, ListenOptions::new()).await
    }

    /// As [`MessageListener::bind`], in a session of the caller's and with settings.
    pub async fn bind_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: ListenOptions,
    ) -> Result<Self, BindError> {
        let options = options.messages();
        let listener = listen(Ok(session.clone()), addr, options).await?;
        Ok(Self(crate::MessageListener::new(listener, options.transport())))
    }

    /// The next connection, and the address of its other end. One task at a time waits. Dropping the future loses no
    /// connection.
    pub async fn accept(&self) -> Result<(MessageStream, SocketAddr), AcceptError> {
        let (message, peer) = poll_fn(|context| self.0.poll_accept(context)).await?;
        Ok((MessageStream(message), peer))
    }

    /// Where it listens, as [`crate::Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The listener as threads use it.
    pub fn get_ref(&self) -> &crate::MessageListener {
        &self.0
    }
}
