//! How a side waits for completions: it yields, and sleeps after enough of that, as a daemon's engine does. Owns the
//! watchdog, so that no run hangs.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Completion, Status};

use super::end::End;

/// Fruitless polls, each with a yield, before a side sleeps.
pub(crate) const YIELDS: u32 = 100;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Nothing takes longer unless it hangs.
const STALL_MAX: Duration = Duration::from_secs(20);
/// Completions taken at once.
const BATCH: usize = 64;

/// Takes completions of one context.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) done: Vec<Completion>,
    idle: u32,
    since: Instant,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self { done: Vec::with_capacity(BATCH), idle: 0, since: Instant::now() }
    }

    /// Takes completions, and never waits. A failed one is an error.
    pub(crate) fn take(&mut self, end: &mut End) -> Result<usize> {
        self.done.clear();
        let count = end.nic.poll_cq(end.cq, &mut self.done, BATCH)?;
        if let Some(failed) = self.done.iter().find(|c| c.status != Status::Success) {
            bail!("failed completion: {failed:?}");
        }
        if count > 0 {
            self.idle = 0;
            self.since = Instant::now();
        }
        Ok(count)
    }

    /// The same; waits a little where there is none. `other` ends a sleep too.
    pub(crate) fn poll(&mut self, end: &mut End, other: Option<BorrowedFd<'_>>) -> Result<usize> {
        let asleep = self.idle > YIELDS;
        if asleep {
            end.nic.req_notify_cq(end.cq, false)?;
        }
        let count = self.take(end)?;
        if count > 0 {
            return Ok(count);
        }
        self.idle += 1;
        if asleep {
            sleep(end, SLEEP_MAX, other)?;
            end.nic.progress();
            ensure!(other.is_some() || self.since.elapsed() < STALL_MAX, "nothing happened for {STALL_MAX:?}");
        } else {
            std::thread::yield_now();
        }
        Ok(0)
    }

    /// Rests until `until`, and lets the device work meanwhile.
    pub(crate) fn rest(&mut self, end: &mut End, until: Instant) -> Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.since = Instant::now();
                return Ok(());
            }
            end.nic.req_notify_cq(end.cq, false)?;
            sleep(end, left, None)?;
            end.nic.progress();
        }
    }
}

fn sleep(end: &End, most: Duration, other: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut fds = vec![];
    end.nic.wait_fds(&mut fds);
    fds.extend(other);
    let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let most = end.nic.deadline().unwrap_or(SLEEP_MAX).min(most).min(SLEEP_MAX);
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() }))?;
    Ok(())
}
