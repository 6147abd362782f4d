//! Closing descriptors that programs sent: a program can have a close wait for as long as it likes (`SO_LINGER` of a
//! socket with unsent bytes, of which the daemon has the last descriptor).
//!
//! Owns the threads that close. No other thread of the daemon may close such a descriptor, because everybody would wait
//! with it; and none of these makes another descriptor wait.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::FileType;
use rustix::net::sockopt;

/// Closes that may wait at a time.
const THREADS_MAX: usize = 64;
/// A thread that has closed nothing for so long ends.
const IDLE: Duration = Duration::from_secs(1);

/// Of this process.
static CLOSERS: Closers = Closers { state: Mutex::new(State::NEW), work: Condvar::new() };

#[derive(Debug)]
struct Closers {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug)]
struct State {
    /// Each is for one of the idle threads.
    waiting: VecDeque<OwnedFd>,
    idle: usize,
    threads: usize,
}

impl State {
    const NEW: Self = Self { waiting: VecDeque::new(), idle: 0, threads: 0 };
}

/// Closes a descriptor that a program sent, and does not wait for it.
pub(crate) fn let_go(fd: OwnedFd) {
    CLOSERS.let_go(fd);
}

/// Lets go of the sockets among descriptors that are to be none.
pub(crate) fn without_sockets(fds: Vec<OwnedFd>) -> Vec<OwnedFd> {
    let is_socket =
        |fd: &OwnedFd| rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_socket());
    let (sockets, others): (Vec<_>, Vec<_>) = fds.into_iter().partition(is_socket);
    sockets.into_iter().for_each(let_go);
    others
}

impl Closers {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements, whichever thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn let_go(&'static self, fd: OwnedFd) {
        let mut state = self.lock();
        if state.waiting.len() < state.idle {
            state.waiting.push_back(fd);
            self.work.notify_one();
            return;
        }
        if state.threads == THREADS_MAX {
            drop(state);
            // So many wait that somebody means it. What this one's program wished for its end is not kept.
            let _ = sockopt::set_socket_linger(&fd, None);
            return;
        }
        state.threads += 1;
        drop(state);
        let thread = std::thread::Builder::new().name("raas-closer".into());
        // A thread that does not start drops the descriptor here, which is what is left to do.
        if thread.spawn(move || self.run(fd)).is_err() {
            self.lock().threads -= 1;
        }
    }

    fn run(&self, first: OwnedFd) {
        let mut next = Some(first);
        while let Some(fd) = next {
            drop(fd);
            let mut state = self.lock();
            state.idle += 1;
            let waited = self.work.wait_timeout_while(state, IDLE, |state| state.waiting.is_empty());
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            next = state.waiting.pop_front();
            if next.is_none() {
                state.threads -= 1;
            }
        }
    }
}
