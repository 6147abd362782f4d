//! Operations that were put into a queue's ring together, and what came of each.
//!
//! Owns the outcomes, and who waits for them. It must keep what the operations use until the last of them has ended,
//! whoever still waits.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use raas_core::Rx;
use shm::{CompletionRecord, KERNEL_BYTES_MAX, LocalSegment, Opcode, OperationStatus, Submission, submission_flag};

use super::error::RegionError;
use crate::error::SessionError;
use crate::park::{Parker, lock};

/// One record: an operation of the caller's, or a piece of one.
#[derive(Debug, Clone)]
pub(super) struct Submitted {
    pub(super) submission: Submission,
    /// Which bytes of the flight's payload go with it.
    pub(super) payload: Range<usize>,
    pub(super) segments: Vec<LocalSegment>,
    /// The operation, by number.
    pub(super) operation: usize,
    /// Where the bytes of a READ belong among the operation's.
    pub(super) at: usize,
}

/// Why an operation failed.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The engine said so.
    Told { status: OperationStatus, detail: u64 },
    /// A kernel has no answer; these bytes say why.
    Kernel(Vec<u8>),
    /// The queue ended.
    Lost(SessionError),
    /// The memory of this host that it used was taken back.
    Here(RegionError),
}

/// What came of an operation.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Of a READ.
    pub(super) bytes: Vec<u8>,
    /// What an atomic found.
    pub(super) value: u64,
    /// Its first failure.
    pub(super) failure: Option<Failure>,
    /// A piece of it was done, or may have been.
    pub(super) may_have_landed: bool,
}

/// The outcomes of a flight.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub(super) all: Vec<Outcome>,
    /// The operation that failed first: those behind it are not done because of it.
    pub(super) first_failed: Option<usize>,
}

/// What the end of an operation needs done before anybody learns of it.
pub(super) type Settle = Box<dyn FnOnce(&mut [Outcome]) + Send>;

#[derive(Default)]
struct Progress {
    /// Records without a completion.
    left: usize,
    outcomes: Outcomes,
    parkers: Vec<Arc<Parker>>,
    waker: Option<Waker>,
    /// What must live until the last operation has ended.
    held: Vec<Arc<dyn Any + Send + Sync>>,
    /// The bytes that go with the records, while these wait for room.
    payload: Vec<u8>,
    settle: Option<Settle>,
}

/// Who looks for the end of a flight.
#[derive(Debug, Default)]
struct Watch {
    is_watched: AtomicBool,
    has_left: AtomicBool,
}

/// See the head of this file. Its records are a chain: nothing begins after one of them failed.
pub(super) struct Flight {
    records: Vec<Submitted>,
    is_done: AtomicBool,
    watch: Watch,
    progress: Mutex<Progress>,
}

impl Flight {
    /// `sizes`: of each operation, how many bytes it reads.
    pub(super) fn new(
        mut records: Vec<Submitted>,
        sizes: impl Iterator<Item = usize>,
        held: Vec<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        if let Some((_last, others)) = records.split_last_mut() {
            others.iter_mut().for_each(|r| r.submission.flags |= submission_flag::CHAINED);
        }
        let all = sizes.map(|bytes| Outcome { bytes: vec![0; bytes], ..Outcome::default() }).collect();
        let outcomes = Outcomes { all, first_failed: None };
        let progress = Progress { left: records.len(), outcomes, held, ..Progress::default() };
        Self {
            is_done: AtomicBool::new(records.is_empty()),
            watch: Watch::default(),
            records,
            progress: Mutex::new(progress),
        }
    }

    /// `settle` is called once, when all have ended.
    pub(super) fn settle_with(&self, settle: Settle) {
        lock(&self.progress).settle = Some(settle);
    }

    pub(super) fn records(&self) -> &[Submitted] {
        &self.records
    }

    /// Bytes of all its records in the ring.
    pub(super) fn ring_bytes(&self) -> usize {
        self.records.iter().fold(0, |sum: usize, r| {
            sum.saturating_add(usize::try_from(r.submission.ring_bytes()).unwrap_or(usize::MAX))
        })
    }

    // ---- waiting for room

    pub(super) fn keep_payload(&self, payload: Vec<u8>) {
        lock(&self.progress).payload = payload;
    }

    pub(super) fn take_payload(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.progress).payload)
    }

    // ---- ends

    /// A record ended. True: it was the last.
    pub(super) fn on_ended(&self, number: usize, completion: &CompletionRecord, rx: &Rx) -> bool {
        let mut progress = lock(&self.progress);
        let Some(record) = self.records.get(number) else { return false };
        let Progress { outcomes: Outcomes { all, first_failed }, left, .. } = &mut *progress;
        if let Some(outcome) = all.get_mut(record.operation) {
            match completion.status {
                // A kernel's words, whichever they are.
                OperationStatus::Ok | OperationStatus::KernelFailed if record.submission.opcode == Opcode::Run => {
                    let most = (completion.bytes as usize).min(KERNEL_BYTES_MAX as usize);
                    outcome.bytes.resize(most, 0);
                    rx.completion_payload(&mut outcome.bytes);
                    outcome.may_have_landed = true;
                    if completion.status == OperationStatus::KernelFailed {
                        outcome.failure.get_or_insert(Failure::Kernel(std::mem::take(&mut outcome.bytes)));
                        first_failed.get_or_insert(record.operation);
                    }
                }
                OperationStatus::Ok => {
                    outcome.value = completion.value;
                    outcome.may_have_landed |= record.submission.opcode != Opcode::Read;
                    if let Some(place) = outcome.bytes.get_mut(record.at..) {
                        let bytes = place.len().min(completion.bytes as usize);
                        rx.completion_payload(&mut place[..bytes]);
                    }
                }
                status => {
                    // Both leave bytes behind, or may.
                    outcome.may_have_landed |=
                        matches!(status, OperationStatus::OutcomeUnknown | OperationStatus::NotificationsFull);
                    outcome.failure.get_or_insert(Failure::Told { status, detail: completion.detail });
                    if status != OperationStatus::ChainBroken {
                        first_failed.get_or_insert(record.operation);
                    }
                }
            }
        }
        *left -= 1;
        *left == 0
    }

    /// The queue ended: nobody knows more of it. `was_begun`: its records were in the ring.
    pub(super) fn on_lost(&self, error: &SessionError, was_begun: bool) {
        let mut progress = lock(&self.progress);
        let all = &mut progress.outcomes.all;
        for record in self.records.iter().filter(|record| was_begun && record.submission.opcode != Opcode::Read) {
            if let Some(outcome) = all.get_mut(record.operation).filter(|outcome| outcome.failure.is_none()) {
                outcome.may_have_landed = true;
            }
        }
        for outcome in all {
            outcome.failure.get_or_insert_with(|| Failure::Lost(error.clone()));
        }
    }

    /// All of it ended: whoever waits is told. To be called without a lock. True: a thread waits that does not sleep
    /// on its parker, so it may lead the session.
    pub(super) fn finish(&self) -> bool {
        let (settle, mut outcomes) = {
            let mut progress = lock(&self.progress);
            (progress.settle.take(), std::mem::take(&mut progress.outcomes))
        };
        if let Some(settle) = settle {
            settle(&mut outcomes.all);
        }
        let mut progress = lock(&self.progress);
        progress.outcomes = outcomes;
        self.is_done.store(true, Ordering::Release);
        let (held, parkers) = (std::mem::take(&mut progress.held), std::mem::take(&mut progress.parkers));
        let waker = progress.waker.take();
        drop(progress);
        drop(held);
        if let Some(waker) = waker {
            waker.wake();
        }
        parkers.iter().fold(false, |may_lead, parker| !parker.notify() | may_lead)
    }

    // ---- who looks for the end; under the lock of the queue

    /// Nobody looks for the end by themselves. Whether that is new, and the end has not come.
    pub(super) fn watch(&self) -> bool {
        !self.watch.has_left.load(Ordering::Relaxed) && !self.watch.is_watched.swap(true, Ordering::Relaxed)
    }

    /// It left its queue. Whether it was watched.
    pub(super) fn leave(&self) -> bool {
        self.watch.has_left.store(true, Ordering::Relaxed);
        self.watch.is_watched.load(Ordering::Relaxed)
    }

    // ---- waiting for the end

    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// A thread that sleeps there waits, until [`Self::leave_waiters`].
    pub(super) fn enter_waiters(&self, parker: &Arc<Parker>) {
        lock(&self.progress).parkers.push(Arc::clone(parker));
    }

    pub(super) fn leave_waiters(&self, parker: &Arc<Parker>) {
        lock(&self.progress).parkers.retain(|one| !Arc::ptr_eq(one, parker));
    }

    pub(super) fn set_waker(&self, waker: &Waker) {
        let place = &mut lock(&self.progress).waker;
        if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }

    /// The outcomes; once, after the end.
    pub(super) fn take_outcomes(&self) -> Outcomes {
        std::mem::take(&mut lock(&self.progress).outcomes)
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("records", &self.records).field("is_done", &self.is_done).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_is_watched_once_and_not_after_it_left() {
        let flight = || Flight::new(Vec::new(), std::iter::empty(), Vec::new());
        let watched = flight();
        assert!(watched.watch() && !watched.watch(), "it is counted once");
        assert!(watched.leave(), "and given back at its end");
        assert!(!watched.watch(), "nothing comes any more");
        let looked_for = flight();
        assert!(!looked_for.leave() && !looked_for.watch());
    }
}
