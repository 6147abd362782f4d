//! A connection or socket as a Python object has it: open or closed, with Python's three modes of waiting.
//!
//! Owns the waiting. The interpreter's lock is free meanwhile, and a wait comes back now and then, so that Python's signal
//! handlers run and Ctrl-C ends it. No lock here is held while the interpreter's is free, or while Python's code runs, as
//! in making an exception: another thread would wait for it with the interpreter's lock, and a forked child for ever.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use raas::{Readiness, StreamError};

use crate::address::seconds;
use crate::failure::{OrRaise, closed, exception};
use crate::shown::Shown;

/// A wait comes back so often.
pub(crate) const SLICE: Duration = Duration::from_millis(250);
/// The library refuses a time of 0.
const SHORTEST: Duration = Duration::from_micros(1);

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// `settimeout` of None, of 0, and of more.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Blocking,
    NonBlocking,
    Within(Duration),
}

/// What has waits that can be bounded, and a descriptor.
pub(crate) trait Waits: Send + Sync + 'static {
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    fn bound(&self, way: Direction, time: Duration) -> io::Result<()>;
    fn ready_fd(&self) -> io::Result<BorrowedFd<'_>>;
    fn readiness(&self) -> io::Result<Readiness>;
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct MaybeOpen<T> {
    inner: Mutex<Option<Arc<T>>>,
    mode: Mutex<Mode>,
    has_fd: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Waits> MaybeOpen<T> {
    pub(crate) fn new(py: Python<'_>, inner: T) -> PyResult<Self> {
        for way in [Direction::In, Direction::Out] {
            inner.bound(way, SLICE).or_raise(py)?;
        }
        let (inner, mode) = (Mutex::new(Some(Arc::new(inner))), Mutex::new(Mode::Blocking));
        Ok(Self { inner, mode, has_fd: AtomicBool::new(false) })
    }

    /// It, unless it was closed.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<T>> {
        let inner = lock(&self.inner).clone();
        inner.ok_or_else(|| closed(py))
    }

    /// What it says of itself.
    pub(crate) fn shown(&self, class: &str, facts: impl FnOnce(&T, Shown) -> Shown) -> String {
        let inner = lock(&self.inner).clone();
        inner.map_or_else(|| Shown::closed(class), |inner| facts(&inner, Shown::of(class)).end())
    }

    /// Operations under way in other threads come to their end first.
    pub(crate) fn close(&self, py: Python<'_>) {
        let inner = lock(&self.inner).take();
        py.detach(|| drop(inner));
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.inner).is_none()
    }

    pub(crate) fn set_timeout(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mode = match seconds(timeout)? {
            None => Mode::Blocking,
            Some(Duration::ZERO) => Mode::NonBlocking,
            Some(time) => Mode::Within(time),
        };
        let inner = self.get(py)?;
        inner.set_nonblocking(mode == Mode::NonBlocking).or_raise(py)?;
        for way in [Direction::In, Direction::Out] {
            inner.bound(way, SLICE).or_raise(py)?;
        }
        *lock(&self.mode) = mode;
        Ok(())
    }

    pub(crate) fn timeout(&self) -> Option<f64> {
        match *lock(&self.mode) {
            Mode::Blocking => None,
            Mode::NonBlocking => Some(0.0),
            Mode::Within(time) => Some(time.as_secs_f64()),
        }
    }

    /// When a call that begins now must be over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match *lock(&self.mode) {
            Mode::Within(time) => Instant::now().checked_add(time),
            _ => None,
        }
    }

    /// Does `operation`, which waits as the library does, until it succeeds, fails, or the time is over.
    pub(crate) fn wait<R: Send>(
        &self,
        py: Python<'_>,
        way: Direction,
        deadline: Option<Instant>,
        mut operation: impl FnMut(&T) -> io::Result<R> + Send,
    ) -> PyResult<R> {
        let inner = self.get(py)?;
        loop {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                inner.bound(way, left.clamp(SHORTEST, SLICE)).or_raise(py)?;
            }
            let error = match py.detach(|| operation(&inner)) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match error.kind() {
                // The slice is over, and not the connection.
                ErrorKind::TimedOut if StreamError::reason_of(&error).is_none() => {
                    py.check_signals()?;
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(exception(py, &ErrorKind::TimedOut.into()));
                    }
                }
                ErrorKind::WouldBlock
                    if self.has_fd.load(Ordering::Relaxed) && self.is_ready(&inner, way).or_raise(py)? => {}
                _ => return Err(exception(py, &error)),
            }
        }
    }

    /// Nothing could be done without waiting, so the descriptor is to signal what comes. True: something came meanwhile.
    fn is_ready(&self, inner: &T, way: Direction) -> io::Result<bool> {
        let now = inner.readiness()?;
        let wanted = if way == Direction::In { Readiness::READ } else { Readiness::WRITE };
        if now.contains(Readiness::READ) && way == Direction::Out {
            // A reader has not seen the signal that was just cleared.
            inner.ready_fd()?;
        }
        Ok(now.contains(wanted))
    }

    /// The descriptor, readable while there is something to read, as far as that is known when it is asked for.
    pub(crate) fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let inner = self.get(py)?;
        self.has_fd.store(true, Ordering::Relaxed);
        let number = inner.ready_fd().or_raise(py)?.as_raw_fd();
        if inner.readiness().or_raise(py)?.contains(Readiness::READ) {
            inner.ready_fd().or_raise(py)?;
        }
        Ok(number)
    }

    /// As bits: 1 read, 2 write, 4 the peer writes no more, 8 broken. The descriptor signals what changes from then on.
    pub(crate) fn readiness(&self, py: Python<'_>) -> PyResult<u8> {
        let now = self.get(py)?.readiness().or_raise(py)?;
        let bits = [Readiness::READ, Readiness::WRITE, Readiness::HUP, Readiness::ERR];
        Ok(bits.iter().enumerate().map(|(bit, flag)| u8::from(now.contains(*flag)) << bit).sum())
    }
}
