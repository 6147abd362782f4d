//! Where frames come from and go to: a tap. And the wait for frames or for a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest sleep, so that commands are seen.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// A wait for a time that is nearer than this yields instead of sleeping, because a wake takes as long.
const SLEEP_MIN: Duration = Duration::from_micros(30);

/// One end of the link, without blocking.
pub(crate) trait Port {
    /// The next frame, of the length that is returned; `None` if there is none.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>>;
    /// False: the port did not take it.
    fn transmit(&mut self, frame: &[u8]) -> io::Result<bool>;
}

/// A tap.
pub(crate) struct Tap(File);

impl Tap {
    pub(crate) fn make(name: &str) -> Result<Self> {
        let device = tap::open(name).with_context(|| {
            format!("making the tap {name}: this needs /dev/net/tun (module tun) and the right to configure a network")
        })?;
        Ok(Self(device))
    }
}

impl Port for Tap {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0.read(into) {
            Ok(len) => Ok(Some(len)),
            Err(e) if is_down(&e) || e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> io::Result<bool> {
        match self.0.write(frame) {
            Ok(_) => Ok(true),
            Err(e) if is_down(&e) || matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) => {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }
}

/// An interface that is not up yet, or whose namespace has ended, takes and gives nothing (EIO, EBADFD).
fn is_down(e: &io::Error) -> bool {
    let code = e.raw_os_error();
    [rustix::io::Errno::IO, rustix::io::Errno::BADFD].into_iter().any(|errno| code == Some(errno.raw_os_error()))
}

/// Waits for a frame of either tap, for `until` at most.
pub(crate) fn wait(taps: &[Tap; 2], until: Option<Duration>) -> Result<()> {
    let sleep = until.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
    let Some(sleep) = sleep.checked_sub(SLEEP_MIN) else {
        std::thread::yield_now();
        return Ok(());
    };
    let mut fds = taps.each_ref().map(|tap| PollFd::from_borrowed_fd(tap.0.as_fd(), PollFlags::IN));
    let timeout = Timespec { tv_sec: 0, tv_nsec: sleep.as_nanos() as _ };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e).context("waiting for frames"),
    }
}
