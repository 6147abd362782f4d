//! A thread that is about to sleep in the kernel, and how it learns of streams meanwhile.
//!
//! Decides whether it follows the sessions itself. It must never have a thread sleep for ever that nobody wakes.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use raas::Session;
use raas::elsewhere::{SLEEP_MAX, Sleeper};

use crate::{errno, inside};

/// Longest sleep of a signal handler that interrupted a sleep of its own thread: the session is followed by the thread
/// below it, which does not run.
const NESTED_MAX: Duration = Duration::from_millis(5);

thread_local! {
    static IS_ASLEEP: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped the thread sleeps, or is about to.
#[derive(Debug)]
pub(crate) struct Sleep<'a> {
    /// None in a signal handler that interrupted another sleep.
    sleepers: Option<Vec<Sleeper<'a>>>,
}

impl<'a> Sleep<'a> {
    /// For streams of these sessions.
    pub(crate) fn new(sessions: &'a [Session]) -> Self {
        // Inside: a handler interrupted this thread's work with streams.
        if inside::is_inside() || IS_ASLEEP.with(|is| is.replace(true)) {
            return Self { sleepers: None };
        }
        let _inside = inside::enter();
        Self { sleepers: Some(sessions.iter().map(Sleeper::new).collect()) }
    }

    /// Descriptors that are readable when there are news, where this thread is the one that takes them.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.sleepers.iter().flatten().filter_map(|sleeper| Some(sleeper.fd()?.as_raw_fd()))
    }

    /// Whether this thread takes the news of all sessions. If not, each stream is to be watched.
    pub(crate) fn follows_all(&self) -> bool {
        self.sleepers.as_ref().is_some_and(|all| all.iter().all(|sleeper| sleeper.fd().is_some()))
    }

    /// To be said before the last look at the streams.
    pub(crate) fn announce(&mut self) {
        let _inside = inside::enter();
        self.sleepers.iter_mut().flatten().for_each(Sleeper::announce);
    }

    /// How long the thread may sleep now of what is left.
    pub(crate) fn bound(&self, left: Option<Duration>) -> Duration {
        let max = if self.sleepers.is_some() { SLEEP_MAX } else { NESTED_MAX };
        left.map_or(max, |left| left.min(max))
    }

    /// The thread is awake. `is_readable`: of which descriptors the kernel said so. `errno` stays as it is.
    pub(crate) fn hear(&mut self, is_readable: impl Fn(RawFd) -> bool) {
        let code: c_int = errno::get();
        let _inside = inside::enter();
        for sleeper in self.sleepers.iter_mut().flatten() {
            let is_readable = sleeper.fd().is_some_and(|fd| is_readable(fd.as_raw_fd()));
            sleeper.hear(is_readable);
        }
        errno::set(code);
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(sleepers) = self.sleepers.take() {
            let code = errno::get();
            let _inside = inside::enter();
            drop(sleepers);
            errno::set(code);
            IS_ASLEEP.with(|is| is.set(false));
        }
    }
}
