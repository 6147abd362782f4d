//! A client of [`Transport::Auto`] gets another transport.
//!
//! Owns the change: a second connection, over which what is under way is asked for again. The server knows the client by
//! its name, so nothing is executed twice.

use std::time::Instant;

use raas::RegionRefusal;

use super::core::{Core, DIAL_MAX};
use super::dial::dial;
use crate::error::OpenError;
use crate::hello::{Refusal, Transport};
use crate::server::lock;

/// Whether that says that the server's memory is not for this client.
fn is_no_memory(error: &OpenError) -> bool {
    match error {
        OpenError::Region(e) => matches!(e.refusal(), Some(RegionRefusal::OtherUser { .. })),
        OpenError::Refused(refusal) => matches!(refusal, Refusal::Ring(_) | Refusal::NotOffered(_)),
        _ => false,
    }
}

impl Core {
    /// The transport that is to be had now, if the server is there.
    pub(super) fn take_wanted(&self) -> Option<Transport> {
        let mut state = lock(&self.state);
        state.wanted.take().filter(|_| state.way.link.is_some())
    }

    /// Connects by another transport. If that fails all stays as it is.
    pub(super) fn change(&self, to: Transport) {
        let session = lock(&self.state).session.clone();
        match dial(&session, &self.settings, to, DIAL_MAX) {
            Ok(dialed) => {
                {
                    let mut state = lock(&self.state);
                    state.totals.changes += 1;
                    state.chooser.on_changed(to, Instant::now());
                }
                self.resume(dialed, session);
            }
            Err(error) => {
                tracing::debug!(%error, %to, "the transport is not changed");
                self.on_refused(&error);
                lock(&self.state).chooser.wait(Instant::now());
            }
        }
    }

    /// The server could not be reached by the transport that was chosen: if that is for good, another is.
    pub(super) fn on_refused(&self, error: &OpenError) {
        if self.settings.transport == Transport::Auto && is_no_memory(error) {
            lock(&self.state).chooser.on_no_memory(error.to_string());
        }
    }
}
