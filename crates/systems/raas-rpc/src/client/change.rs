//! Another connection: because the first is lost, or because a client of [`Transport::Auto`] gets another transport.
//!
//! Owns what becomes of the calls that are under way: they are asked for again there. The server knows the client by its
//! name, so nothing is executed twice; if it does not, their outcome is unknown.

use std::time::Instant;

use raas::{RegionRefusal, Session};

use super::core::{Core, DIAL_MAX, PAUSES, Pending, Route};
use super::dial::{Dialed, dial};
use crate::error::{CallError, OpenError};
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
    pub(super) fn connect_again(&self, until: Instant) {
        let (session, next_dial, lost, transport) = {
            let state = lock(&self.state);
            (state.session.clone(), state.way.next_dial, state.way.lost, state.chooser.choice().transport)
        };
        let now = Instant::now();
        if lost.is_some_and(|at| now.saturating_duration_since(at) > self.settings.reconnect_for) {
            self.fail_all();
            return;
        }
        if next_dial > now {
            // New calls, and calls that are given up, need nobody meanwhile.
            std::thread::sleep((next_dial - now).min(until.saturating_duration_since(now)));
            return;
        }
        let session = session.reattach().map_err(OpenError::from);
        let dialed = session.and_then(|session| Ok((dial(&session, &self.settings, transport, DIAL_MAX)?, session)));
        match dialed {
            Ok((dialed, session)) => {
                lock(&self.state).totals.reconnects += 1;
                self.resume(dialed, session);
            }
            Err(error) => {
                self.on_refused(&error);
                let mut state = lock(&self.state);
                state.way.why = error.to_string();
                state.way.next_dial = Instant::now() + state.way.pause;
                state.way.pause = (state.way.pause * 2).min(PAUSES.1);
            }
        }
    }

    /// There is a connection again: what was under way is asked for again.
    fn resume(&self, dialed: Dialed, session: Session) {
        let (mut gone, mut again) = (Vec::new(), Vec::new());
        {
            let mut state = lock(&self.state);
            state.session = session;
            state.limits = (dialed.request_bytes_max, dialed.response_bytes_max);
            state.chooser.on_connected(dialed.is_one_host);
            if let Some(old) = state.way.channel.take() {
                old.count(&mut state.totals);
            }
            // A server that remembers nothing would execute again what it executed before.
            for (sequence, call) in &state.calls {
                if call.sent.is_some() && !dialed.is_known { gone.push(*sequence) } else { again.push(*sequence) }
            }
            let gone: Vec<Pending> = gone.iter().filter_map(|sequence| state.calls.remove(sequence)).collect();
            let way = Route {
                channel: Some(dialed.channel),
                lost: None,
                next_dial: Instant::now(),
                pause: PAUSES.0,
                why: String::new(),
            };
            state.way = way;
            if !gone.is_empty() {
                self.make_room(&mut state);
            }
            for call in gone {
                call.ticket.settle(Err(CallError::OutcomeUnknown));
            }
        }
        for sequence in again {
            let was_sent = lock(&self.state).calls.get(&sequence).is_some_and(|call| call.sent.is_some());
            self.transmit(sequence, was_sent);
        }
    }

    /// The server was away for too long.
    fn fail_all(&self) {
        let mut state = lock(&self.state);
        let why = state.way.why.clone();
        state.way.lost = Some(Instant::now());
        let calls = std::mem::take(&mut state.calls);
        self.make_room(&mut state);
        drop(state);
        for call in calls.into_values() {
            let was_sent = call.sent.is_some();
            call.ticket.settle(Err(CallError::Unreachable { why: why.clone(), was_sent }));
        }
    }

    /// The transport that is to be had now, if the server is there.
    pub(super) fn take_wanted(&self) -> Option<Transport> {
        let mut state = lock(&self.state);
        state.wanted.take().filter(|_| state.way.channel.is_some())
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
