//! Who drives a replica: a caller while it waits for its answer, and else the group's own thread.
//!
//! Owns the one lock around the driver. It must never leave a wish behind while nobody drives: who lets go of the driver
//! looks for wishes once more, and who leaves a wish tries for the driver.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use agree::Machine;

use crate::driver::Driver;
use crate::error::GroupError;
use crate::wish::Inbox;

/// See the head of this file.
pub(crate) struct Drive<M> {
    inbox: Arc<Inbox<M>>,
    driver: Mutex<Driver<M>>,
    period: Duration,
}

impl<M: Machine> Drive<M> {
    pub(crate) fn new(driver: Driver<M>, inbox: Arc<Inbox<M>>, period: Duration) -> Self {
        Self { inbox, driver: Mutex::new(driver), period }
    }

    /// The group's thread, until the group is closed, or its machine has panicked in a caller's thread.
    pub(crate) fn run(&self) {
        loop {
            let rest = match self.driver.try_lock() {
                Ok(mut driver) => {
                    driver.round();
                    if driver.is_over() {
                        return;
                    }
                    driver.rest()
                }
                // Who drives rings when it leaves something behind.
                Err(TryLockError::WouldBlock) => {
                    self.inbox.rest(self.period);
                    continue;
                }
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner().close(),
            };
            // Somebody may have left a wish who could not drive because this thread did.
            if !self.inbox.has_wishes() {
                self.inbox.rest(rest);
            }
        }
    }

    /// A wish was left by somebody who does not wait here.
    pub(crate) fn call(&self) {
        // Who drives finds it.
        if !matches!(self.driver.try_lock(), Err(TryLockError::WouldBlock)) {
            self.inbox.ring();
        }
    }

    /// Waits for the answer to a wish that was left, and drives meanwhile if nobody does.
    pub(crate) fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, GroupError> {
        let driven = self.driver.try_lock().ok().and_then(|driver| self.drive(driver, answer));
        driven.unwrap_or_else(|| answer.recv().map_err(|_| GroupError::Closed))
    }

    /// `None`: there is nothing to do for now but to wait, which the group's thread does too.
    fn drive<T>(&self, mut driver: MutexGuard<'_, Driver<M>>, answer: &Receiver<T>) -> Option<Result<T, GroupError>> {
        let answered = loop {
            driver.round();
            match answer.try_recv() {
                Ok(answer) => break Some(Ok(answer)),
                Err(TryRecvError::Disconnected) => break Some(Err(GroupError::Closed)),
                Err(TryRecvError::Empty) if !driver.rest().is_zero() => break None,
                Err(TryRecvError::Empty) => {}
            }
        };
        let is_waited_for = driver.is_waited_for();
        drop(driver);
        if is_waited_for || self.inbox.has_wishes() {
            self.inbox.ring();
        }
        answered
    }
}
