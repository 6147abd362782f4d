//! Listeners for connections of messages.
//!
//! Owns nothing beyond the kind. It must never give out a connection of bytes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};
use std::time::Duration;

use raas_core::Readiness;

use crate::error::AcceptError;
use crate::flags::Transport;
use crate::listener::Listener;
use crate::message::MessageStream;
use crate::stream::Stream;

/// A port of this host on which connections of messages are accepted.
#[derive(Debug)]
pub struct MessageListener {
    listener: Listener,
    transport: Transport,
}

impl MessageListener {
    pub(crate) fn new(listener: Listener, transport: Transport) -> Self {
        Self { listener, transport }
    }

    fn made(&self, (stream, peer): (Stream, SocketAddr)) -> (MessageStream, SocketAddr) {
        (MessageStream::new(stream, self.transport), peer)
    }

    /// As [`MessageListener::accept`], for tasks: of those that poll one listener the last is woken.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<(MessageStream, SocketAddr), AcceptError>> {
        self.listener.poll_accept(context).map_ok(|accepted| self.made(accepted))
    }

    /// As [`Listener::accept`].
    pub fn accept(&self) -> Result<(MessageStream, SocketAddr), AcceptError> {
        self.listener.accept().map(|accepted| self.made(accepted))
    }

    /// As [`Listener::accept_timeout`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<(MessageStream, SocketAddr), AcceptError> {
        self.listener.accept_timeout(timeout).map(|accepted| self.made(accepted))
    }

    /// As [`Listener::set_nonblocking`].
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.listener.set_nonblocking(nonblocking)
    }

    /// As [`Listener::readiness`].
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.listener.readiness()
    }

    /// As [`Listener::ready_fd`].
    pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.listener.ready_fd()
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.listener.made_fd()
    }

    /// Where it listens, as [`Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// As [`Listener::try_clone`].
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.try_clone()?, transport: self.transport })
    }

    /// Connections as they come, without end; as [`Listener::incoming`].
    pub fn incoming(&self) -> IncomingMessages<'_> {
        IncomingMessages { listener: self }
    }
}

impl<'a> IntoIterator for &'a MessageListener {
    type Item = Result<MessageStream, AcceptError>;
    type IntoIter = IncomingMessages<'a>;

    fn into_iter(self) -> IncomingMessages<'a> {
        self.incoming()
    }
}

/// Connections of messages as they come; made by [`MessageListener::incoming`].
#[derive(Debug)]
pub struct IncomingMessages<'a> {
    listener: &'a MessageListener,
}

impl Iterator for IncomingMessages<'_> {
    type Item = Result<MessageStream, AcceptError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(message, _)| message))
    }
}
