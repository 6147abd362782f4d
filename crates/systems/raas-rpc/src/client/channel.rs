//! A connection to the server, whatever the transport.
//!
//! Owns the interface between the calls and their way.

use std::time::{Duration, Instant};

use crate::client::ClientCounters;
use crate::frame::{RequestHeader, ResponseHeader};

/// The connection is over; why, in words.
#[derive(Debug, Clone)]
pub(crate) struct ChannelOver(pub(crate) String);

impl<E: std::error::Error> From<E> for ChannelOver {
    fn from(e: E) -> Self {
        Self(e.to_string())
    }
}

/// Takes a response.
pub(crate) type Deliver<'a> = dyn FnMut(ResponseHeader, Vec<u8>) + 'a;

/// See the head of this file. Any thread may send; one at a time receives.
pub(crate) trait Channel: Send + Sync {
    /// Sends a request; may wait for room, not for a response. From then on its response is looked for.
    fn send(&self, header: RequestHeader, payload: &[u8]) -> Result<(), ChannelOver>;

    /// Takes the responses that are there, or waits for one until `until`. Returns the calls of which the request must
    /// be sent again at once.
    fn receive(&self, until: Instant, deliver: &mut Deliver<'_>) -> Result<Vec<u64>, ChannelOver>;

    /// As [`Self::receive`], and does not wait.
    fn look(&self, deliver: &mut Deliver<'_>) -> Result<Vec<u64>, ChannelOver>;

    /// A call was given up: its response is not looked for any more. The server is told; it may be too late.
    fn cancel(&self, header: RequestHeader);

    /// After which time without a response a request is sent again. `None`: nothing is lost on this channel.
    fn repeat_after(&self) -> Option<Duration>;

    /// Adds what this channel did.
    fn count(&self, counters: &mut ClientCounters);
}
