//! Calls as threads and tasks hold them.
//!
//! Owns giving up: a call that is dropped before its end is given up.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::core::{Core, Time};
use super::driver;
use super::ticket::Ticket;
use crate::error::CallError;

/// A call under way, begun with [`Client::begin`](crate::Client::begin). Dropping it gives the call up: if the server
/// has not begun it, it does not any more.
#[must_use = "dropped, the call is given up"]
pub struct Call {
    core: Arc<Core>,
    ticket: Arc<Ticket>,
    is_taken: bool,
}

impl Call {
    pub(crate) fn new(core: &Arc<Core>, ticket: Arc<Ticket>) -> Self {
        Self { core: Arc::clone(core), ticket, is_taken: false }
    }

    /// The call's number at this client.
    pub fn sequence(&self) -> u64 {
        self.ticket.sequence
    }

    /// Whether the call has ended: then [`Call::wait`] does not wait. Takes the responses that are there; it waits for
    /// none, but connects again if the server was lost. Who has calls under way at many clients asks each in turn.
    pub fn is_ended(&self) -> bool {
        self.core.look_for(&self.ticket)
    }

    /// Waits for the response, or the call's deadline.
    pub fn wait(mut self) -> Result<Vec<u8>, CallError> {
        let outcome = self.core.wait_for(&self.ticket);
        self.is_taken = true;
        outcome
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_taken {
            self.core.abandon(self.ticket.sequence);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("sequence", &self.sequence()).finish_non_exhaustive()
    }
}

enum State {
    /// It waits for room in the window.
    Waiting(Arc<Vec<u8>>),
    Begun(Call),
    Over,
}

/// A call of a task, made by [`Client::call_async`](crate::Client::call_async). Dropping it gives the call up. Its time
/// begins when it is made.
#[must_use = "futures do nothing unless they are polled"]
pub struct CallFuture {
    core: Arc<Core>,
    time: Time,
    state: State,
}

impl CallFuture {
    pub(crate) fn new(core: &Arc<Core>, request: Vec<u8>, timeout: Option<Duration>) -> Self {
        Self { core: Arc::clone(core), time: Time::new(timeout), state: State::Waiting(Arc::new(request)) }
    }

    fn poll_begun(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<u8>, CallError>> {
        let State::Begun(call) = &mut self.state else { return Poll::Pending };
        let Some(outcome) = call.ticket.wake_later(context.waker()) else { return Poll::Pending };
        call.is_taken = true;
        self.state = State::Over;
        Poll::Ready(outcome)
    }
}

impl Future for CallFuture {
    type Output = Result<Vec<u8>, CallError>;

    /// Pending for ever if it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Waiting(request) = &self.state {
            let sender = match driver::ensure(&self.core) {
                Ok(sender) => sender,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let Some(entered) = self.core.poll_enter(request, self.time, context.waker()) else {
                return Poll::Pending;
            };
            match entered {
                Ok(ticket) => {
                    let sequence = ticket.sequence;
                    self.state = State::Begun(Call::new(&self.core, ticket));
                    // Its thread lives as long as the client.
                    let _ = sender.send(sequence);
                }
                Err(error) => {
                    self.state = State::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
        self.poll_begun(context)
    }
}

impl fmt::Debug for CallFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting(_) => "waiting for room",
            State::Begun(_) => "under way",
            State::Over => "over",
        };
        f.debug_tuple("CallFuture").field(&state).finish()
    }
}
