//! Operations that were submitted together, and their ends.
//!
//! Owns what a caller may still ask about them. Dropping it takes nothing back: they run to their end, with what they
//! use.

#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;

use super::error::RegionError;
use super::flight::{Flight, Outcomes};
use super::queue::Queue;

/// What an operation found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// It was a write, or a read into a region.
    Nothing,
    /// The bytes that were read.
    Bytes(Vec<u8>),
    /// The 8 bytes that an atomic found.
    Word(u64),
}

/// How the operations of a [`Batch`](crate::Batch) ended, each by its number.
#[derive(Debug, Clone)]
pub struct Ended(Vec<Result<Found, RegionError>>);

impl Ended {
    pub(super) fn new(all: Vec<Result<Found, RegionError>>) -> Self {
        Self(all)
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Why an operation failed, if it did. [`RegionError::NotDone`] names the one that kept it from being done.
    pub fn error(&self, operation: usize) -> Option<&RegionError> {
        self.0.get(operation)?.as_ref().err()
    }

    /// Whether all were done; otherwise the error of the one that failed first, which is not
    /// [`RegionError::NotDone`].
    pub fn check(&self) -> Result<(), RegionError> {
        let errors = || self.0.iter().filter_map(|result| result.as_ref().err());
        let is_cause = |e: &&RegionError| !matches!(e, RegionError::NotDone { .. });
        errors().find(is_cause).or_else(|| errors().next()).map_or(Ok(()), |e| Err(e.clone()))
    }

    /// The bytes that a read found; none of another operation, or one that there is not.
    pub fn bytes(&self, operation: usize) -> Result<&[u8], RegionError> {
        match self.0.get(operation) {
            Some(Ok(Found::Bytes(bytes))) => Ok(bytes),
            Some(Err(e)) => Err(e.clone()),
            _ => Ok(&[]),
        }
    }

    /// As [`Ended::bytes`], and takes them out.
    pub fn take_bytes(&mut self, operation: usize) -> Result<Vec<u8>, RegionError> {
        match self.0.get_mut(operation) {
            Some(Ok(Found::Bytes(bytes))) => Ok(std::mem::take(bytes)),
            Some(Err(e)) => Err(e.clone()),
            _ => Ok(Vec::new()),
        }
    }

    /// What an atomic found, or a read of 8 bytes as a number in the host's byte order; 0 of another operation, or one
    /// that there is not.
    pub fn value(&self, operation: usize) -> Result<u64, RegionError> {
        match self.0.get(operation) {
            Some(Ok(Found::Word(value))) => Ok(*value),
            Some(Ok(Found::Bytes(bytes))) => Ok(bytes.as_slice().try_into().map_or(0, u64::from_ne_bytes)),
            Some(Err(e)) => Err(e.clone()),
            _ => Ok(0),
        }
    }
}

/// Says what the outcomes mean.
type Judge = dyn Fn(Outcomes) -> Ended + Send + Sync;

enum State {
    Ended(Ended),
    Going { queue: Arc<Queue>, flight: Arc<Flight>, judge: Box<Judge> },
    Taken,
}

/// The operations of a [`Batch`](crate::Batch) that were submitted. Take their end by [`Pending::try_take`], by
/// [`Pending::wait`], or, with the feature `tokio`, by `.await`.
///
/// Dropping it takes nothing back: the operations run to their end, and what they use lives until then. In whatever
/// state it is, the session is served by whoever waits or polls, and by the session's watcher thread while tasks wait.
#[must_use = "dropped, nobody learns how the operations ended"]
pub struct Pending(State);

impl Pending {
    pub(super) fn ended(ended: Ended) -> Self {
        Self(State::Ended(ended))
    }

    pub(super) fn going(queue: Arc<Queue>, flight: Arc<Flight>, judge: Box<Judge>) -> Self {
        Self(State::Going { queue, flight, judge })
    }

    /// Whether all operations have ended, or their end was taken. It does not wait.
    pub fn is_ended(&self) -> bool {
        match &self.0 {
            State::Going { queue, flight, .. } => flight.is_done() || queue.poll(flight),
            _ => true,
        }
    }

    /// How the operations ended, if all have. It does not wait, and makes a system call only now and then,
    /// to see whether the daemon is there. `None` also after the end was taken.
    pub fn try_take(&mut self) -> Option<Ended> {
        if self.is_ended() { self.take() } else { None }
    }

    /// Waits until all have ended.
    pub fn wait(mut self) -> Result<Ended, RegionError> {
        if let State::Going { queue, flight, .. } = &self.0 {
            queue.wait(flight, None)?;
        }
        Ok(self.take().unwrap_or_else(|| Ended::new(Vec::new())))
    }

    /// As [`Pending::wait`], at most for `timeout`. `None`: they have not ended, or their end was taken.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Ended>, RegionError> {
        match &self.0 {
            State::Going { queue, flight, .. } if !queue.wait(flight, Some(timeout))? => Ok(None),
            _ => Ok(self.take()),
        }
    }

    /// They have ended.
    fn take(&mut self) -> Option<Ended> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Ended(ended) => Some(ended),
            State::Going { flight, judge, .. } => Some(judge(flight.take_outcomes())),
            State::Taken => None,
        }
    }
}

#[cfg(feature = "tokio")]
impl Future for Pending {
    type Output = Result<Ended, RegionError>;

    /// Ends with no operations if the end was taken before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Going { queue, flight, .. } = &self.0
            && !queue.poll_later(flight, context.waker())?
        {
            return Poll::Pending;
        }
        Poll::Ready(Ok(self.take().unwrap_or_else(|| Ended::new(Vec::new()))))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let State::Going { queue, flight, .. } = &self.0
            && !flight.is_done()
        {
            queue.let_go(flight);
        }
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.0 {
            State::Ended(_) => "ended",
            State::Going { flight, .. } if flight.is_done() => "ended",
            State::Going { .. } => "going",
            State::Taken => "taken",
        };
        f.debug_tuple("Pending").field(&state).finish()
    }
}
