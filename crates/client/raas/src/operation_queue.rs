//! What a handle to a region of another host does with its session's operation queue.
//!
//! Owns nothing. An attachment keeps the queue by this name, so that it does not need to know how regions use it.

use raas_core::Rx;
use shm::{CompletionRecord, Submission};

use crate::error::SessionError;

/// A queue of operations on regions of other hosts.
pub(crate) trait OperationQueue: std::fmt::Debug + Send + Sync {
    /// Submits `count` operations and waits for the end of all. `operation` describes each by its number, with the
    /// bytes that go with it; `done` gets each completion with the operation's number. An error: the queue is over.
    fn run<'a>(
        &self,
        count: usize,
        operation: &dyn Fn(usize) -> (Submission, &'a [u8]),
        done: &mut dyn FnMut(usize, &CompletionRecord, &Rx),
    ) -> Result<(), SessionError>;
}
