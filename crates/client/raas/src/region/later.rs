//! Batches that were submitted while their region was to be opened again: a thread submits them when it is there.
//!
//! Owns their order, and where their callers find them. It must never have a caller of `submit` wait.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::error::RegionError;
use super::queue::BACKLOG_MAX;
use crate::error::SessionError;
use crate::park::lock;

/// Submits a batch, for which it may wait.
type Submit<T> = Box<dyn FnOnce() -> T + Send>;

struct Waiting<T> {
    batches: VecDeque<(Submit<T>, Arc<Later<T>>)>,
    /// A thread submits them.
    is_served: bool,
}

/// The batches that wait for one region, in the order in which they came. `T` is what a submitted one is known by.
pub(super) struct Backlog<T>(Arc<Mutex<Waiting<T>>>);

/// Where the caller of a batch finds it when it was submitted.
#[derive(Debug)]
pub(super) struct Later<T> {
    place: Mutex<Delivery<T>>,
    came: Condvar,
}

#[derive(Debug)]
struct Delivery<T> {
    submitted: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Waiting { batches: VecDeque::new(), is_served: false })))
    }
}

impl<T> std::fmt::Debug for Backlog<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backlog").field(&lock(&self.0).batches.len()).finish()
    }
}

impl<T: Send + 'static> Backlog<T> {
    /// Whether batches wait, so that no other may go before them.
    pub(super) fn is_served(&self) -> bool {
        lock(&self.0).is_served
    }

    /// A thread submits a batch behind those that wait.
    pub(super) fn add(&self, submit: Submit<T>) -> Result<Arc<Later<T>>, RegionError> {
        let mut waiting = lock(&self.0);
        if waiting.batches.len() >= BACKLOG_MAX {
            return Err(RegionError::TooManyPending { max: BACKLOG_MAX });
        }
        if !waiting.is_served {
            let all = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("raas-region".into());
            let failed = |e| SessionError::io("starting a thread that opens a region again", e);
            // It finds the batch as soon as this lock is free.
            thread.spawn(move || serve(&all)).map_err(failed)?;
            waiting.is_served = true;
        }
        let later = Arc::new(Later::new());
        waiting.batches.push_back((submit, Arc::clone(&later)));
        Ok(later)
    }
}

fn serve<T>(all: &Mutex<Waiting<T>>) {
    loop {
        let (submit, later) = {
            let mut waiting = lock(all);
            match waiting.batches.pop_front() {
                Some(next) => next,
                None => {
                    waiting.is_served = false;
                    return;
                }
            }
        };
        later.put(submit());
    }
}

impl<T> Later<T> {
    fn new() -> Self {
        Self { place: Mutex::new(Delivery { submitted: None, waker: None }), came: Condvar::new() }
    }

    fn put(&self, submitted: T) {
        let mut place = lock(&self.place);
        place.submitted = Some(submitted);
        let waker = place.waker.take();
        drop(place);
        self.came.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What became of it, if it was submitted.
    pub(super) fn take(&self) -> Option<T> {
        lock(&self.place).submitted.take()
    }

    /// What is to be known of it, if it was submitted. `ask` must not wait.
    pub(super) fn ask<R>(&self, ask: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.place).submitted.as_ref().map(ask)
    }

    /// The waker is woken when it is submitted, if it is not.
    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut place = lock(&self.place);
        if place.submitted.is_none() {
            place.waker = Some(waker.clone());
        }
    }

    /// As [`Self::take`], and waits for it.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<T> {
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
