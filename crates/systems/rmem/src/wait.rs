//! Waiting for a future without a runtime.
//!
//! Owns the sleep of a thread that has nothing else to do.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Futures that a thread can wait for.
///
/// Over a pool for threads ([`Pool`](crate::Pool) as it is built) every operation is done when its future is first
/// looked at, so `wait` is a plain call. Over one for tasks it sleeps until the future's end.
pub trait Wait: Future + Sized {
    /// Runs it to its end on this thread.
    fn wait(self) -> Self::Output {
        let mut future = pin!(self);
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut context = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl<F: Future> Wait for F {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_future_that_ends_later_is_waited_for() {
        let (mut polls, mut sleeper) = (0, None);
        let future = std::future::poll_fn(|context| {
            polls += 1;
            if polls > 2 {
                return Poll::Ready(7);
            }
            let waker = context.waker().clone();
            sleeper = Some(std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(1));
                waker.wake();
            }));
            Poll::Pending
        });
        assert_eq!((future.wait(), std::future::ready(3).wait()), (7, 3));
        assert!(sleeper.is_some());
    }
}
