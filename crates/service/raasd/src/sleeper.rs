//! The engine thread's bed: one epoll set with the command doorbell, the applications' wake sockets and the device's
//! descriptors.
//!
//! Owns what is registered, and the finding of what is ready in O(ready). It must never block longer than
//! [`SLEEP_MAX`], whatever the callers say.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use engine::AppId;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use shm::SleepFlag;

/// Longest sleep: a bound behind every wake that could be missed.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Ready descriptors taken by one call.
const READY_MAX: usize = 64;

const COMMAND: u64 = 0;
const DEVICE: u64 = 1;
const APP: u64 = 1 << 32;

/// The other end of the command doorbell: rings only if the engine thread sleeps.
#[derive(Debug, Clone)]
pub(crate) struct Bell {
    eventfd: Arc<OwnedFd>,
    sleeping: Arc<SleepFlag>,
}

impl Bell {
    /// After a command was put into the channel: wakes the engine thread if it sleeps.
    pub(crate) fn ring(&self) {
        if self.sleeping.must_wake() {
            // A full counter means that it is awake anyway.
            let _ = rustix::io::write(&*self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// What ended a sleep.
#[derive(Debug, Default)]
pub(crate) struct Woken {
    /// Applications whose wake sockets are readable.
    pub(crate) apps: Vec<AppId>,
}

/// The epoll set of the engine thread.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: OwnedFd,
    bell: Bell,
    device_fds: Vec<RawFd>,
    /// Whose descriptors were ready after the last sleep.
    ready: Vec<u64>,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &eventfd, EventData::new_u64(COMMAND), EventFlags::IN)?;
        let bell = Bell { eventfd: Arc::new(eventfd), sleeping: Arc::default() };
        Ok(Self { epoll, bell, device_fds: Vec::new(), ready: Vec::with_capacity(READY_MAX) })
    }

    pub(crate) fn bell(&self) -> Bell {
        self.bell.clone()
    }

    pub(crate) fn add_app(&self, app: AppId, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(APP | u64::from(app.0)), EventFlags::IN)?)
    }

    pub(crate) fn remove_app(&self, fd: BorrowedFd<'_>) {
        // Fails only if it was never added.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Registers the device's descriptors, if they are not the ones of the last time.
    pub(crate) fn watch_device(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if fds.iter().map(AsRawFd::as_raw_fd).eq(self.device_fds.iter().copied()) {
            return Ok(());
        }
        self.device_fds.clear();
        for fd in fds {
            match epoll::add(&self.epoll, fd, EventData::new_u64(DEVICE), EventFlags::IN) {
                // One of the last time that is still there.
                Ok(()) | Err(rustix::io::Errno::EXIST) => self.device_fds.push(fd.as_raw_fd()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Says that commands need the bell from now on. The caller looks for commands once more, then calls
    /// [`Self::sleep`] or [`Self::cancel`].
    pub(crate) fn prepare(&self) {
        self.bell.sleeping.prepare_sleep();
    }

    /// From now on commands need no bell.
    pub(crate) fn cancel(&self) {
        self.bell.sleeping.end_sleep();
    }

    /// Blocks until something is ready or `timeout` has passed.
    pub(crate) fn sleep(&mut self, timeout: Duration) -> io::Result<Woken> {
        let timeout = timeout.min(SLEEP_MAX);
        let timespec = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        self.ready.clear();
        let mut events: Vec<Event> = Vec::with_capacity(READY_MAX);
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timespec));
        self.cancel();
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut woken = Woken::default();
        self.ready.extend(events.iter().map(|event| event.data.u64()));
        for &token in &self.ready {
            match token {
                COMMAND => self.silence_bell(),
                DEVICE => {}
                app => woken.apps.push(AppId(u32::try_from(app & 0xffff_ffff).unwrap_or(0))),
            }
        }
        Ok(woken)
    }

    fn silence_bell(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.bell.eventfd.as_fd(), &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::WakeSocket;

    #[test]
    fn the_bell_rings_only_for_a_sleeper_and_is_silenced() {
        let mut sleeper = Sleeper::new().unwrap();
        let bell = sleeper.bell();
        bell.ring();
        sleeper.prepare();
        assert!(sleeper.sleep(Duration::ZERO).unwrap().apps.is_empty());
        assert!(sleeper.ready.is_empty(), "the bell rang for one awake");
        sleeper.prepare();
        bell.ring();
        sleeper.sleep(Duration::from_secs(1)).unwrap();
        assert_eq!(sleeper.ready.len(), 1);
        sleeper.prepare();
        sleeper.sleep(Duration::ZERO).unwrap();
        assert!(sleeper.ready.is_empty(), "the bell was not silenced");
    }

    #[test]
    fn a_ready_application_is_named() {
        let mut sleeper = Sleeper::new().unwrap();
        let (ours, theirs) = WakeSocket::pair().unwrap();
        sleeper.add_app(AppId(7), ours.fd()).unwrap();
        theirs.wake().unwrap();
        assert_eq!(sleeper.sleep(Duration::from_secs(1)).unwrap().apps, [AppId(7)]);
        sleeper.remove_app(ours.fd());
        assert!(sleeper.sleep(Duration::ZERO).unwrap().apps.is_empty());
    }
}
