//! The making of message connections and their listeners.
//!
//! Makes sure that both ends agree on the kind. It must never make one over kernel TCP, which keeps no boundaries.

use std::net::ToSocketAddrs;

use crate::dial::ConnectOptions;
use crate::error::{BindError, ConnectError};
use crate::listen_options::ListenOptions;
use crate::message::MessageStream;
use crate::message_listener::MessageListener;
use crate::session::Session;

impl MessageStream {
    /// Connects, in the process-wide session, to the first of the addresses that answers.
    pub fn connect(addr: impl ToSocketAddrs) -> Result<Self, ConnectError> {
        Self::connect_with(&Session::global()?, addr, ConnectOptions::new())
    }

    /// As [`MessageStream::connect`], in a session of the caller's and with settings.
    pub fn connect_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let options = options.messages();
        options.connect(session, addr).map(|stream| Self::new(stream, options.transport()))
    }
}

impl MessageListener {
    /// Listens, in the process-wide session; as [`Listener::bind`](crate::Listener::bind).
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&Session::global()?, addr, ListenOptions::new())
    }

    /// As [`MessageListener::bind`], in a session of the caller's and with settings.
    pub fn bind_with(session: &Session, addr: impl ToSocketAddrs, options: ListenOptions) -> Result<Self, BindError> {
        let options = options.messages();
        options.bind(session, addr).map(|listener| Self::new(listener, options.transport()))
    }
}
