//! How a side waits for completions: the same policy for every device. Owns the watchdog, so that no run hangs.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Completion, CqId, Provider, Status};

/// A run without a completion for so long has failed.
const STALL_MAX: Duration = Duration::from_secs(20);
/// Completions taken at once.
const BATCH: usize = 64;
/// Longest sleep, so that the watchdog is looked at.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 1024;

/// What a side does while there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Polls again at once, as perftest does.
    Spin,
    /// Gives the processor away between two polls.
    Yield,
    /// Gives it away 50 times, then sleeps until the device has something.
    Sleep,
}

/// Yields before a side sleeps.
pub(crate) const YIELDS_BEFORE_SLEEP: u32 = 50;

/// Takes completions of one CQ.
#[derive(Debug)]
pub(crate) struct Poller {
    cq: CqId,
    wait: Wait,
    idle: u32,
    since: Instant,
    taken: Vec<Completion>,
}

impl Poller {
    pub(crate) fn new(cq: CqId, wait: Wait) -> Self {
        Self { cq, wait, idle: 0, since: Instant::now(), taken: Vec::with_capacity(BATCH) }
    }

    /// Polls once; after a poll without result it waits as the policy says. A failed completion is an error.
    pub(crate) fn poll(&mut self, nic: &mut dyn Provider) -> Result<&[Completion]> {
        self.taken.clear();
        let asleep = self.wait == Wait::Sleep && self.idle > YIELDS_BEFORE_SLEEP;
        if asleep {
            nic.req_notify_cq(self.cq, false)?;
        }
        if nic.poll_cq(self.cq, &mut self.taken, BATCH)? > 0 {
            for completion in &self.taken {
                ensure!(completion.status == Status::Success, "failed completion: {completion:?}");
            }
            self.idle = 0;
            return Ok(&self.taken);
        }
        self.idle = self.idle.wrapping_add(1);
        match self.wait {
            // No pause: an emulator leaves its loop for that instruction.
            Wait::Spin => {}
            Wait::Yield => std::thread::yield_now(),
            Wait::Sleep if !asleep => std::thread::yield_now(),
            Wait::Sleep => {
                sleep(nic, None)?;
                nic.progress();
            }
        }
        Ok(&[])
    }

    /// Fails when called for too long without [`Self::on_progress`].
    pub(crate) fn check(&mut self) -> Result<()> {
        let is_due = asleep_or_nth(self.wait, self.idle);
        if is_due && self.since.elapsed() > STALL_MAX {
            bail!("nothing happened for {} s", STALL_MAX.as_secs());
        }
        Ok(())
    }

    /// Something happened: the watchdog starts again.
    pub(crate) fn on_progress(&mut self) {
        self.since = Instant::now();
    }
}

fn asleep_or_nth(wait: Wait, idle: u32) -> bool {
    idle.is_multiple_of(POLLS_PER_LOOK) || (wait == Wait::Sleep && idle > YIELDS_BEFORE_SLEEP)
}

/// Sleeps until the device wants progress, `other` is readable, or a tenth of a second is over.
pub(crate) fn sleep(nic: &dyn Provider, other: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut fds = vec![];
    nic.wait_fds(&mut fds);
    fds.extend(other);
    let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let most = nic.deadline().unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() }))?;
    Ok(())
}

/// Whether the descriptor is readable now.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}
