//! Calls enter: each gets its number, when the window has room for it.
//!
//! Owns the wait for room, of threads and of tasks.

use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use super::core::{Core, PAUSES, Pending, State, TICK, Time, left};
use super::ticket::Ticket;
use crate::error::CallError;
use crate::server::lock;

impl Core {
    /// A number for a call; waits while the window is full.
    pub(crate) fn enter(&self, request: Arc<Vec<u8>>, time: Time) -> Result<Arc<Ticket>, CallError> {
        loop {
            let state = lock(&self.state);
            if state.calls.is_empty() && state.wanted.is_some() && !state.is_led {
                // Now nothing has to be asked for again.
                drop(state);
                self.lead(Instant::now() + TICK, &|| lock(&self.state).wanted.is_none());
                continue;
            }
            if state.has_room(self.settings.window) {
                return self.admit(state, request, time);
            }
            if time.is_over() {
                return Err(CallError::DeadlineExceeded { after: time.after, was_sent: false });
            }
            // Calls that were begun and are not waited for have nobody who looks for their responses.
            if state.is_led {
                drop(self.wait(state, TICK.min(left(time.deadline))));
            } else {
                drop(state);
                self.lead(Instant::now() + TICK.min(left(time.deadline)), &|| {
                    lock(&self.state).has_room(self.settings.window)
                });
            }
        }
    }

    fn admit(
        &self,
        mut state: MutexGuard<'_, State>,
        request: Arc<Vec<u8>>,
        time: Time,
    ) -> Result<Arc<Ticket>, CallError> {
        let (len, max) = (request.len(), state.limits.0);
        if len > max {
            return Err(CallError::RequestTooLong { len, max });
        }
        if state.calls.is_empty() && state.way.channel.is_none() {
            // Nobody tried since the last call ended: the time to try begins with this one.
            let now = Instant::now();
            (state.way.lost, state.way.next_dial, state.way.pause) = (Some(now), now, PAUSES.0);
        }
        let sequence = state.next;
        state.next += 1;
        state.totals.calls += 1;
        state.chooser.on_call(Instant::now());
        let ticket = Arc::new(Ticket::new(sequence));
        let pending = Pending { request, ticket: Arc::clone(&ticket), time, attempt: 0, sent: None };
        state.calls.insert(sequence, pending);
        self.tell(&state);
        Ok(ticket)
    }

    /// As [`Self::enter`] for a task; `None`: it is woken when there is room, or its time is over.
    pub(crate) fn poll_enter(
        &self,
        request: &Arc<Vec<u8>>,
        time: Time,
        waker: &Waker,
    ) -> Option<Result<Arc<Ticket>, CallError>> {
        let mut state = lock(&self.state);
        if state.has_room(self.settings.window) {
            return Some(self.admit(state, Arc::clone(request), time));
        }
        if time.is_over() {
            return Some(Err(CallError::DeadlineExceeded { after: time.after, was_sent: false }));
        }
        state.room_wakers.push((time, waker.clone()));
        None
    }

    pub(crate) fn has_room_or_wakes(&self, waker: &Waker, time: Time) -> bool {
        let mut state = lock(&self.state);
        let has_room = state.has_room(self.settings.window);
        if !has_room {
            state.room_wakers.push((time, waker.clone()));
        }
        has_room
    }
}
