//! A command under way, as a future.
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

#[derive(Debug, Default)]
struct Place {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// A command that was proposed. It ends as [`crate::Group::propose`] does, and whoever drops it knows of its end as little as
/// with [`GroupError::Unknown`].
#[derive(Debug)]
#[must_use = "a command's end is known to whoever waits for it"]
pub struct Proposal(Arc<Mutex<Place>>);

/// Its other end.
#[derive(Debug)]
pub(crate) struct Answerer(Option<Arc<Mutex<Place>>>);

/// Both.
pub(crate) fn pair() -> (Proposal, Answerer) {
    let place = Arc::default();
    (Proposal(Arc::clone(&place)), Answerer(Some(place)))
}

fn lock(place: &Mutex<Place>) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answerer {
    pub(crate) fn answer(mut self, outcome: Outcome) {
        self.leave(outcome);
    }

    fn leave(&mut self, outcome: Outcome) {
        let Some(place) = self.0.take() else { return };
        let waker = {
            let mut place = lock(&place);
            place.outcome = Some(outcome);
            place.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.leave(Err(GroupError::Closed));
    }
}

impl Future for Proposal {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
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
    use super::*;

    #[test]
    fn it_ends_with_its_answer_or_with_its_answerer() {
        let mut cx = Context::from_waker(Waker::noop());
        let (mut proposal, answerer) = pair();
        assert!(Pin::new(&mut proposal).poll(&mut cx).is_pending());
        answerer.answer(Ok(Committed { index: 3, reply: vec![1] }));
        let ended = Pin::new(&mut proposal).poll(&mut cx);
        assert!(matches!(ended, Poll::Ready(Ok(Committed { index: 3, .. }))), "{ended:?}");
        let (mut proposal, answerer) = pair();
        drop(answerer);
        assert!(matches!(Pin::new(&mut proposal).poll(&mut cx), Poll::Ready(Err(GroupError::Closed))));
    }
}
