//! Batches that were submitted while their region was to be opened again: a thread submits them when it is there.
//!
//! Owns their order, and where their callers find them. It must never have a caller of `submit` wait.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
#[cfg(feature = "tokio")]
use std::task::Waker;
use std::time::Instant;

use super::batch::Batch;
use super::error::RegionError;
use super::pending::Pending;
use super::queue::BACKLOG_MAX;
use super::way::Way;
use crate::error::SessionError;
use crate::park::lock;

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<(Batch, Arc<Later>)>,
    /// A thread submits them.
    is_served: bool,
}

/// The batches that wait for one region, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Waiting>);

/// Where the caller of a batch finds it when it was submitted.
#[derive(Debug, Default)]
pub(super) struct Later {
    place: Mutex<Place>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Place {
    submitted: Option<Pending>,
    #[cfg(feature = "tokio")]
    waker: Option<Waker>,
}

impl Backlog {
    /// Whether batches wait, so that no other may go before them.
    pub(super) fn is_served(&self) -> bool {
        lock(&self.0).is_served
    }
}

impl Way {
    /// Submits a batch when the region is there.
    pub(super) fn submit_later(self: &Arc<Self>, batch: Batch) -> Result<Arc<Later>, RegionError> {
        let mut waiting = lock(&self.backlog.0);
        if waiting.batches.len() >= BACKLOG_MAX {
            return Err(RegionError::TooManyPending { max: BACKLOG_MAX });
        }
        if !waiting.is_served {
            let way = Arc::clone(self);
            let thread = std::thread::Builder::new().name("raas-region".into());
            let failed = |e| SessionError::io("starting a thread that opens a region again", e);
            // It finds the batch as soon as this lock is free.
            thread.spawn(move || way.serve_backlog()).map_err(failed)?;
            waiting.is_served = true;
        }
        let later = Arc::new(Later::default());
        waiting.batches.push_back((batch, Arc::clone(&later)));
        Ok(later)
    }

    fn serve_backlog(&self) {
        loop {
            let (batch, later) = {
                let mut waiting = lock(&self.backlog.0);
                match waiting.batches.pop_front() {
                    Some(next) => next,
                    None => {
                        waiting.is_served = false;
                        return;
                    }
                }
            };
            later.put(batch.submit_settled());
        }
    }
}

impl Later {
    fn put(&self, submitted: Pending) {
        let mut place = lock(&self.place);
        place.submitted = Some(submitted);
        #[cfg(feature = "tokio")]
        let waker = place.waker.take();
        drop(place);
        self.came.notify_all();
        #[cfg(feature = "tokio")]
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What became of it, if it was submitted.
    pub(super) fn take(&self) -> Option<Pending> {
        lock(&self.place).submitted.take()
    }

    /// Whether it was submitted, and all of it has ended. It does not wait.
    pub(super) fn is_ended(&self) -> bool {
        let going = {
            let place = lock(&self.place);
            match &place.submitted {
                Some(submitted) => submitted.still_going(),
                None => return false,
            }
        };
        // A look may wake others, so no lock is held.
        going.is_none_or(|(queue, flight)| flight.is_done() || queue.poll(&flight))
    }

    /// As [`Self::take`]; the waker is woken if it is not.
    #[cfg(feature = "tokio")]
    pub(super) fn take_or_wake(&self, waker: &Waker) -> Option<Pending> {
        let mut place = lock(&self.place);
        let submitted = place.submitted.take();
        if submitted.is_none() {
            place.waker = Some(waker.clone());
        }
        submitted
    }

    /// As [`Self::take`], and waits for it.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<Pending> {
        let mut place = lock(&self.place);
        loop {
            if let Some(submitted) = place.submitted.take() {
                return Some(submitted);
            }
            place = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return None,
                Some(left) => self.came.wait_timeout(place, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.came.wait(place).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
