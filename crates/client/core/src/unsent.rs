//! Requests of which nothing was sent, because the daemon had ended before: the next daemon gets them.
//!
//! Owns which these are. It must never keep one that may have had an effect, or that names what only the dead daemon knew.

use std::collections::BTreeMap;

use control::Request;

use crate::RequestId;
use crate::answer::Asked;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Unsent(BTreeMap<RequestId, Request>);

impl Unsent {
    /// Whether it waits for the next daemon.
    pub(crate) fn has(&self, request: RequestId) -> bool {
        self.0.contains_key(&request)
    }

    /// It waits for the next daemon, which is to get this message.
    pub(crate) fn keep(&mut self, request: RequestId, message: Request) {
        self.0.insert(request, message);
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<(RequestId, &Request)> {
        self.0.first_key_value().map(|(&id, message)| (id, message))
    }

    /// Nobody wants it any more, or it was sent. Whether it was there.
    pub(crate) fn remove(&mut self, request: RequestId) -> bool {
        self.0.remove(&request).is_some()
    }
}

impl Asked {
    /// Whether another daemon can answer it as well: it names nothing that a daemon gave.
    pub(crate) const fn stands_alone(self) -> bool {
        match self {
            Self::Listen
            | Self::Connect
            | Self::BindDatagram
            | Self::Operations
            | Self::DatagramPath
            | Self::Region
            | Self::Revoke => true,
            // Handles and connections by number; a socket that goes along.
            Self::Notifier | Self::Install | Self::Run | Self::Meet | Self::Attach | Self::Lend => false,
        }
    }
}
