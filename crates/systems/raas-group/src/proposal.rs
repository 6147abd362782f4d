//! A command or a read under way, as a future.
//!
//! Owns its end, which whoever answers leaves here once. It must end also if nobody answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::committed::Committed;
use crate::error::GroupError;

/// How a command ended.
pub(crate) type Outcome = Result<Committed, GroupError>;

#[derive(Debug)]
struct Place<T> {
    outcome: Option<Result<T, GroupError>>,
    waker: Option<Waker>,
}

/// Tasks whose commands have ended, and that were not woken yet. A wake from another thread costs a system call, and
/// mostly a switch to the thread that is woken; so one task is woken, and wakes the others from its own thread. Whoever
/// answers looks for those that are left, since that one task may not come.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<Vec<Waker>>);

impl Wakes {
    /// Wakes one.
    pub(crate) fn begin(&self) {
        let one = lock(&self.0).pop();
        one.into_iter().for_each(Waker::wake);
    }

    /// Wakes all that are left.
    pub(crate) fn finish(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        all.into_iter().for_each(Waker::wake);
    }
}

/// What a group was asked for, under way. Whoever drops it does not know how it ends.
#[derive(Debug)]
#[must_use = "the end is known to whoever waits for it"]
pub struct Pending<T>(Arc<Mutex<Place<T>>>, Arc<Wakes>);

/// A command that was proposed. It ends as [`crate::Group::propose`] does, and whoever drops it knows of its end as
/// little as with [`GroupError::Unknown`].
pub type Proposal = Pending<Committed>;

/// Its other end.
#[derive(Debug)]
pub(crate) struct Answerer<T>(Option<Arc<Mutex<Place<T>>>>, Arc<Wakes>);

/// Both.
pub(crate) fn pair<T>(wakes: &Arc<Wakes>) -> (Pending<T>, Answerer<T>) {
    let place = Arc::new(Mutex::new(Place { outcome: None, waker: None }));
    (Pending(Arc::clone(&place), Arc::clone(wakes)), Answerer(Some(place), Arc::clone(wakes)))
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Answerer<T> {
    /// Whoever waits is among the wakes then.
    pub(crate) fn answer(mut self, outcome: Result<T, GroupError>) {
        let waker = self.leave(outcome);
        lock(&self.1.0).extend(waker);
    }

    fn leave(&mut self, outcome: Result<T, GroupError>) -> Option<Waker> {
        let place = self.0.take()?;
        let mut place = lock(&place);
        place.outcome = Some(outcome);
        place.waker.take()
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        self.leave(Err(GroupError::Closed)).into_iter().for_each(Waker::wake);
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, GroupError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.1.finish();
        let mut place = lock(&self.0);
        match place.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                place.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::class::Class;

    #[test]
    fn it_ends_with_its_answer_or_with_its_answerer() {
        let mut cx = Context::from_waker(Waker::noop());
        let (mut proposal, answerer) = pair(&Arc::default());
        assert!(Pin::new(&mut proposal).poll(&mut cx).is_pending());
        answerer.answer(Ok(Committed { index: 3, reply: vec![1], class: Class::RamMajority }));
        let ended = Pin::new(&mut proposal).poll(&mut cx);
        assert!(matches!(ended, Poll::Ready(Ok(Committed { index: 3, .. }))), "{ended:?}");
        let (mut proposal, answerer) = pair::<Committed>(&Arc::default());
        drop(answerer);
        assert!(matches!(Pin::new(&mut proposal).poll(&mut cx), Poll::Ready(Err(GroupError::Closed))));
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn of_many_that_ended_one_is_woken_and_wakes_the_others_and_none_is_forgotten() {
        let woken = |counts: &[Arc<Count>]| counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<u32>();
        for one_comes in [true, false] {
            let (wakes, counts) = (Arc::<Wakes>::default(), [(); 3].map(|()| Arc::<Count>::default()));
            let (mut proposals, answerers): (Vec<_>, Vec<_>) = counts.iter().map(|_| pair(&wakes)).unzip();
            for (proposal, count) in proposals.iter_mut().zip(&counts) {
                let waker = Waker::from(Arc::clone(count));
                assert!(Pin::new(proposal).poll(&mut Context::from_waker(&waker)).is_pending());
            }
            for answerer in answerers {
                answerer.answer(Ok(Committed { index: 1, reply: vec![], class: Class::RamMajority }));
            }
            assert_eq!(woken(&counts), 0);
            wakes.begin();
            assert_eq!(woken(&counts), 1);
            if one_comes {
                let ended = Pin::new(&mut proposals[2]).poll(&mut Context::from_waker(Waker::noop()));
                assert!(ended.is_ready());
            } else {
                wakes.finish();
            }
            assert_eq!(woken(&counts), 3);
        }
    }
}
