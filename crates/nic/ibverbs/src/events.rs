//! Queues of events behind a descriptor that is readable while one waits, and the count of those that a program has not
//! acknowledged yet.
//!
//! Owns the agreement of queue and descriptor. It must never let an event of an object be taken after the object is gone.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A lock whose holder cannot leave it half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events that wait. The descriptor counts them, so that a program can poll it, and set it non-blocking.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    descriptor: OwnedFd,
    waiting: Mutex<VecDeque<T>>,
}

impl<T: Copy> Queue<T> {
    pub(crate) fn new() -> Result<Self, Errno> {
        let descriptor = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { descriptor, waiting: Mutex::default() })
    }

    pub(crate) fn number(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    pub(crate) fn push(&self, event: T) {
        lock(&self.waiting).push_back(event);
        // It fails only if the count is at its end, and then the descriptor is readable.
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    /// Takes the oldest one; waits for it unless the program has set the descriptor non-blocking. `note` runs before another
    /// thread can drop the object that the event is of.
    pub(crate) fn take(&self, note: impl FnOnce(&T)) -> Result<T, Errno> {
        loop {
            rustix::io::read(&self.descriptor, &mut [0_u8; 8])?;
            let mut waiting = lock(&self.waiting);
            // Another thread may have dropped what this count was of.
            if let Some(event) = waiting.pop_front() {
                note(&event);
                return Ok(event);
            }
        }
    }

    /// Drops those events that are of an object which goes.
    pub(crate) fn purge(&self, is_of_it: impl Fn(&T) -> bool) {
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|event| !is_of_it(event));
        for _ in waiting.len()..before {
            // Without waiting: a thread in `take` may have this count already, and looks again.
            let mut ready = [rustix::event::PollFd::new(&self.descriptor, rustix::event::PollFlags::IN)];
            if rustix::event::poll(&mut ready, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(1) {
                break;
            }
            let _ = rustix::io::read(&self.descriptor, &mut [0_u8; 8]);
        }
    }
}

/// Events of one object that a program took and has not acknowledged: the object stays as long.
#[derive(Debug, Default)]
pub(crate) struct Acked {
    open: Mutex<u64>,
    none_open: Condvar,
}

impl Acked {
    pub(crate) fn on_taken(&self) {
        *lock(&self.open) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u64) {
        let mut open = lock(&self.open);
        *open = open.saturating_sub(count);
        if *open == 0 {
            self.none_open.notify_all();
        }
    }

    /// Waits until all are acknowledged, as the man pages of the calls that destroy objects have it.
    pub(crate) fn wait(&self) {
        let mut open = lock(&self.open);
        while *open > 0 {
            open = self.none_open.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_and_purged() {
        let queue = Queue::new().unwrap();
        rustix::io::ioctl_fionbio(&queue.descriptor, true).unwrap();
        for event in [1, 2, 1, 3] {
            queue.push(event);
        }
        queue.purge(|event| *event == 1);
        let mut noted = Vec::new();
        assert_eq!(queue.take(|event| noted.push(*event)), Ok(2));
        assert_eq!(queue.take(|event| noted.push(*event)), Ok(3));
        assert_eq!(queue.take(|_| ()), Err(Errno::AGAIN));
        assert_eq!(noted, [2, 3]);
    }

    #[test]
    fn the_last_acknowledgement_ends_the_wait() {
        let acked = Acked::default();
        acked.wait();
        acked.on_taken();
        acked.on_taken();
        std::thread::scope(|scope| {
            scope.spawn(|| acked.wait());
            acked.acknowledge(1);
            acked.acknowledge(1);
        });
    }
}
