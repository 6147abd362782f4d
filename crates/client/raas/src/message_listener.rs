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
use crate::listener::Listener;
use crate::message::MessageStream;

/// A port of this host on which connections of messages are accepted.
#[derive(Debug)]
pub struct MessageListener(Listener);

impl MessageListener {
    pub(crate) fn new(listener: Listener) -> Self {
        Self(listener)
    }

    /// As [`MessageListener::accept`], for tasks: of those that poll one listener the last is woken.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<(MessageStream, SocketAddr), AcceptError>> {
        self.0.poll_accept(context).map_ok(|(stream, peer)| (MessageStream::new(stream), peer))
    }

    /// As [`Listener::accept`].
    pub fn accept(&self) -> Result<(MessageStream, SocketAddr), AcceptError> {
        self.0.accept().map(|(stream, peer)| (MessageStream::new(stream), peer))
    }

    /// As [`Listener::accept_timeout`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<(MessageStream, SocketAddr), AcceptError> {
        self.0.accept_timeout(timeout).map(|(stream, peer)| (MessageStream::new(stream), peer))
    }

    /// As [`Listener::set_nonblocking`].
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    /// As [`Listener::readiness`].
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.0.readiness()
    }

    /// As [`Listener::ready_fd`].
    pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.ready_fd()
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.made_fd()
    }

    /// Where it listens, as [`Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// As [`Listener::try_clone`].
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
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
