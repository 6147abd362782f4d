//! Operations that were submitted together, and their ends.
//!
//! Owns what a caller may still ask about them. Dropping it takes nothing back: they run to their end, with what they
//! use.

#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::alarm::Armed;
use super::error::RegionError;
use super::flight::{Flight, Outcomes};
use super::later::Later;
use super::queue::Queue;
use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::Parker;

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
    Going {
        queue: Arc<Queue>,
        flight: Arc<Flight>,
        judge: Box<Judge>,
    },
    /// They wait until their region was opened again.
    Later {
        attachment: Arc<Attachment>,
        later: Arc<Later<Pending>>,
    },
    Taken,
}

/// The operations of a [`Batch`](crate::Batch) that were submitted. Take their end by [`Pending::try_take`], by
/// [`Pending::wait`], or, with the feature `tokio`, by `.await`.
///
/// [`Quorum`](crate::Quorum) waits for some of several. Dropping it takes nothing back: the operations run to their
/// end, and what they use lives until then. In whatever state it is, the session is served by whoever waits or polls,
/// and by the session's watcher thread while tasks wait.
#[must_use = "dropped, nobody learns how the operations ended"]
pub struct Pending(State);

impl Pending {
    pub(super) fn ended(ended: Ended) -> Self {
        Self(State::Ended(ended))
    }

    pub(super) fn going(queue: Arc<Queue>, flight: Arc<Flight>, judge: Box<Judge>) -> Self {
        Self(State::Going { queue, flight, judge })
    }

    pub(super) fn later(attachment: Arc<Attachment>, later: Arc<Later<Self>>) -> Self {
        Self(State::Later { attachment, later })
    }

    /// What is still to end of them, and where.
    fn still_going(&self) -> Option<(Arc<Queue>, Arc<Flight>)> {
        match &self.0 {
            State::Going { queue, flight, .. } => Some((Arc::clone(queue), Arc::clone(flight))),
            _ => None,
        }
    }

    /// Goes over to what became of operations that waited for their region.
    fn follow(&mut self, mut submitted: Self) {
        self.0 = std::mem::replace(&mut submitted.0, State::Taken);
    }

    /// As [`Pending::follow`], if they were submitted.
    fn look(&mut self) {
        if let State::Later { later, .. } = &self.0
            && let Some(submitted) = later.take()
        {
            self.follow(submitted);
        }
    }

    /// As [`Pending::look`], and waits until `deadline`. False: they were not submitted.
    fn look_until(&mut self, deadline: Option<Instant>) -> Result<bool, RegionError> {
        let State::Later { attachment, later } = &self.0 else { return Ok(true) };
        // The thread that submits them is the parent's.
        attachment.check_fork()?;
        let submitted = later.wait(deadline);
        let has_come = submitted.is_some();
        submitted.into_iter().for_each(|submitted| self.follow(submitted));
        Ok(has_come)
    }

    /// Whether all operations have ended, or their end was taken. It does not wait.
    pub fn is_ended(&self) -> bool {
        match &self.0 {
            State::Going { queue, flight, .. } => flight.is_done() || queue.poll(flight),
            State::Later { attachment, later } => {
                attachment.check_fork().is_ok() && {
                    // A look may wake others, so no lock is held.
                    let going = later.ask(Self::still_going);
                    going.is_some_and(|going| {
                        going.is_none_or(|(queue, flight)| flight.is_done() || queue.poll(&flight))
                    })
                }
            }
            _ => true,
        }
    }

    /// How the operations ended, if all have. It does not wait, and makes a system call only now and then,
    /// to see whether the daemon is there. `None` also after the end was taken.
    pub fn try_take(&mut self) -> Option<Ended> {
        self.look();
        if self.is_ended() { self.take() } else { None }
    }

    /// Waits until all have ended.
    pub fn wait(mut self) -> Result<Ended, RegionError> {
        self.look_until(None)?;
        if let State::Going { queue, flight, .. } = &self.0 {
            queue.wait(flight, None)?;
        }
        Ok(self.take().unwrap_or_else(|| Ended::new(Vec::new())))
    }

    /// As [`Pending::wait`], at most for `timeout`. `None`: they have not ended, or their end was taken.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Ended>, RegionError> {
        let begun = Instant::now();
        if !self.look_until(begun.checked_add(timeout))? {
            return Ok(None);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        match &self.0 {
            State::Going { queue, flight, .. } if !queue.wait(flight, Some(left))? => Ok(None),
            _ => Ok(self.take()),
        }
    }

    // ---- for who waits for several

    /// The session that they need, until they have ended.
    pub(super) fn attachment(&self) -> Option<&Arc<Attachment>> {
        match &self.0 {
            State::Going { queue, .. } => Some(queue.attachment()),
            State::Later { attachment, .. } => Some(attachment),
            State::Ended(_) | State::Taken => None,
        }
    }

    /// Whether a look finds more than the last one did. It looks at nothing but this.
    pub(super) fn has_news(&self) -> bool {
        match &self.0 {
            State::Going { flight, .. } => flight.is_done(),
            State::Later { later, .. } => later.ask(|_| ()).is_some(),
            State::Ended(_) | State::Taken => true,
        }
    }

    /// One look for a task: `waker` is woken when there is more to see. Whether they have ended.
    #[cfg(feature = "tokio")]
    pub(super) fn poll_ended(&mut self, waker: &Waker) -> Result<bool, SessionError> {
        if let State::Later { attachment, later } = &self.0 {
            attachment.check_fork()?;
            later.set_waker(waker);
            self.look();
        }
        match &self.0 {
            State::Going { queue, flight, .. } => queue.poll_later(flight, waker),
            State::Later { .. } => Ok(false),
            State::Ended(_) | State::Taken => Ok(true),
        }
    }

    /// The thread of `parker` is about to sleep in the session `home`, and the end wakes it. `alert` does the same from
    /// elsewhere.
    pub(super) fn arm<'p>(
        &'p self,
        home: &Arc<Attachment>,
        parker: &Arc<Parker>,
        alert: &Waker,
    ) -> Result<Option<Armed<'p>>, SessionError> {
        match &self.0 {
            State::Going { queue, flight, .. } if Arc::ptr_eq(queue.attachment(), home) => {
                return Ok(Some(queue.arm(flight, parker)));
            }
            State::Going { queue, flight, .. } => _ = queue.poll_later(flight, alert)?,
            State::Later { later, .. } => later.set_waker(alert),
            State::Ended(_) | State::Taken => {}
        }
        Ok(None)
    }

    /// They have ended.
    fn take(&mut self) -> Option<Ended> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Ended(ended) => Some(ended),
            State::Going { flight, judge, .. } => Some(judge(flight.take_outcomes())),
            State::Later { .. } | State::Taken => None,
        }
    }
}

#[cfg(feature = "tokio")]
impl Future for Pending {
    type Output = Result<Ended, RegionError>;

    /// Ends with no operations if the end was taken before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.poll_ended(context.waker())? {
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
            State::Later { .. } => "waiting for its region",
            State::Taken => "taken",
        };
        f.debug_tuple("Pending").field(&state).finish()
    }
}
