//! The ports of a session: which are open, which the daemon was asked for, and which a daemon before it had.
//!
//! Owns how each port is listened on, so that the next daemon can be asked for the same. A port must never be open here
//! and not be told to the daemon, except those that the application does not know to be lost.

use std::collections::{BTreeMap, BTreeSet};

use control::{Kind, Request};

use crate::RequestId;

/// How a port is listened on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortUse {
    pub(crate) backlog: u32,
    pub(crate) ring_bytes: u32,
    pub(crate) kind: Kind,
}

impl PortUse {
    /// The request that opens it.
    pub(crate) fn request(self, id: RequestId, port: u16) -> Request {
        let Self { backlog, ring_bytes, kind } = self;
        Request::Listen { request: id.number(), port, backlog, ring_bytes, kind }
    }
}

/// What an answer to a request for a port was for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asked {
    /// A port that a daemon before this one had opened.
    Again(u16),
    /// A new one; nothing if the session does not know of the request.
    New(Option<PortUse>),
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    open: BTreeMap<u16, PortUse>,
    /// By request.
    asked: BTreeMap<u64, PortUse>,
    /// By request, of those that are asked for again.
    asked_again: BTreeMap<u64, u16>,
    /// Those that a new daemon could not open again, and nobody knows yet.
    lost: BTreeSet<u16>,
}

impl Ports {
    /// The daemon is asked for a port; 0 is any. The request.
    pub(crate) fn ask(&mut self, id: RequestId, port: u16, how: PortUse) -> Request {
        self.asked.insert(id.number(), how);
        how.request(id, port)
    }

    /// A new daemon is asked for an open port. The request; none if the port is not open.
    pub(crate) fn ask_again(&mut self, id: RequestId, port: u16) -> Option<Request> {
        let how = self.open.get(&port)?;
        self.asked_again.insert(id.number(), port);
        Some(how.request(id, port))
    }

    /// The daemon answered a request, which is not asked any more.
    pub(crate) fn take(&mut self, request: u64) -> Asked {
        let how = self.asked.remove(&request);
        self.asked_again.remove(&request).map_or(Asked::New(how), Asked::Again)
    }

    /// Nothing that was asked is answered, except what is `kept` for another daemon.
    pub(crate) fn lose_asked(&mut self, kept: impl Fn(RequestId) -> bool) {
        self.asked.retain(|&request, _| kept(RequestId(request)));
        self.asked_again.clear();
    }

    /// A daemon is still to be asked what this message asks.
    pub(crate) fn keep_asked(&mut self, request: RequestId, message: &Request) {
        if let &Request::Listen { backlog, ring_bytes, kind, .. } = message {
            self.asked.insert(request.number(), PortUse { backlog, ring_bytes, kind });
        }
    }

    pub(crate) fn open(&mut self, port: u16, how: PortUse) {
        self.open.insert(port, how);
    }

    pub(crate) fn is_open(&self, port: u16) -> bool {
        self.open.contains_key(&port)
    }

    pub(crate) fn all_open(&self) -> Vec<u16> {
        self.open.keys().copied().collect()
    }

    /// The application closes it.
    pub(crate) fn close(&mut self, port: u16) {
        self.open.remove(&port);
        self.lost.remove(&port);
    }

    /// A new daemon could not open it again.
    pub(crate) fn lose(&mut self, port: u16) {
        self.open.remove(&port);
        self.lost.insert(port);
    }

    /// Whether it was lost, and nobody knows yet.
    pub(crate) fn is_lost(&self, port: u16) -> bool {
        self.lost.contains(&port)
    }

    /// As [`Ports::is_lost`], once.
    pub(crate) fn take_lost(&mut self, port: u16) -> bool {
        self.lost.remove(&port)
    }
}
