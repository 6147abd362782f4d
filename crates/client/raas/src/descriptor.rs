//! Waiting for a descriptor, and times as the kernel wants them.
//!
//! Owns the translation. It must never wait past its deadline.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::SessionError;

/// Longest time for the kernel: a year.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Waits until `fd` is ready or hung up; false when the deadline came first.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> Result<bool, SessionError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(fd, what)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(SessionError::os("poll")(e)),
        }
    }
}

/// Whether the other end of `fd` is gone.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>) -> Result<bool, SessionError> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    poll(&mut fds, Some(&timespec(Duration::ZERO))).map_err(SessionError::os("poll"))?;
    Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR))
}

/// A duration as the kernel wants it; longer than a year is a year.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let bounded = duration.min(LONGEST);
    Timespec { tv_sec: bounded.as_secs().cast_signed(), tv_nsec: bounded.subsec_nanos().into() }
}
