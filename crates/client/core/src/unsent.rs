//! Requests of which nothing was sent, because the daemon had ended before: the next daemon gets them.
//!
//! Owns which these are. It must never keep one that may have had an effect, or that names what only the dead daemon knew.

use std::collections::BTreeMap;

use control::Request;

use crate::answer::Asked;
use crate::{RequestId, Session};

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Unsent(BTreeMap<RequestId, Request>);

impl Unsent {
    /// Whether it waits for the next daemon.
    pub(crate) fn has(&self, request: RequestId) -> bool {
        self.0.contains_key(&request)
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
            Self::Notify | Self::Install | Self::Run | Self::Meet | Self::Attach | Self::Lend => false,
        }
    }
}

impl Session {
    /// Nothing of a request was sent: the daemon has ended. It waits for the next one. False: it cannot be asked again.
    pub fn keep_unsent(&mut self, request: RequestId, message: Request) -> bool {
        // No daemon has heard of it, so an answer is that its own was lost.
        let is_kept = self.requests.ask_again(request).is_some();
        if is_kept {
            self.ports.keep_asked(request, &message);
            self.unsent.0.insert(request, message);
        }
        is_kept
    }

    /// A request that waits for the next daemon. Once it is sent: [`Session::on_sent`].
    pub fn first_unsent(&self) -> Option<(RequestId, &Request)> {
        self.unsent.0.first_key_value().map(|(&id, message)| (id, message))
    }

    /// A request that waited was sent.
    pub fn on_sent(&mut self, request: RequestId) {
        self.unsent.remove(request);
    }

    /// Whether a request waits for the next daemon.
    pub fn is_unsent(&self, request: RequestId) -> bool {
        self.unsent.has(request)
    }
}
