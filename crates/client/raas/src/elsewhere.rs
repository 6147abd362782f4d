//! Sleeping in a poll of one's own, for streams of a session: for libraries that stand between a program and its sockets.
//!
//! Decides who follows the session meanwhile: the thread that sleeps, which then needs nobody to wake it, or another
//! one. It must never let a thread sleep while nobody follows the session.
//!
//! The way of a thread that waits: look by [`Stream::glance`] as often as it likes; then [`Sleeper::new`], `announce`,
//! ask each stream by [`Stream::readiness`], and sleep, with [`Sleeper::fd`] among its descriptors; then `hear` if that
//! was readable, and look again. Where `fd` is None somebody else follows the session, and what was changed is told by
//! [`Stream::on_change`] and [`Stream::ready_fd`].

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use shm::{end_sleep, prepare_sleep};

use crate::attachment::Attachment;
use crate::driver::{Driver, EVENTS_MAX};
use crate::fallback::NotOverTcp;
use crate::park::lock;
use crate::reactor::{Leadership, Outside};
use crate::{Readiness, Session, Stream};

pub use crate::reactor::SLEEP_MAX;

/// Yields while the watcher is asked to leave the session to this thread.
const HANDOVER_YIELDS: u32 = 64;
/// Rounds in which descriptors are read before the thread looks at its streams again.
const ROUNDS_MAX: u32 = 16;

/// A thread that is about to sleep in a poll of its own, or sleeps, until this is dropped. It must sleep no longer than
/// [`SLEEP_MAX`] at a time.
pub struct Sleeper<'a> {
    attachment: &'a Arc<Attachment>,
    /// Dropped in this order, so that the next leader finds the driver free.
    driver: Option<MutexGuard<'a, Driver>>,
    leadership: Option<Leadership<'a>>,
}

impl<'a> Sleeper<'a> {
    /// For streams of this session.
    pub fn new(session: &'a Session) -> Self {
        let attachment = &session.attachment;
        let mut outside = attachment.reactor.enter_outside(true);
        if matches!(outside, Outside::WatcherLeads) {
            attachment.kick();
            for _ in 0..HANDOVER_YIELDS {
                std::thread::yield_now();
                outside = attachment.reactor.enter_outside(true);
                if !matches!(outside, Outside::WatcherLeads) {
                    break;
                }
            }
        }
        if matches!(outside, Outside::WatcherLeads) {
            outside = attachment.reactor.enter_outside(false);
        }
        match outside {
            Outside::Leader(leadership) => {
                Self { attachment, driver: Some(lock(&attachment.driver)), leadership: Some(leadership) }
            }
            _ => Self { attachment, driver: None, leadership: None },
        }
    }

    /// The descriptor that is readable when the session has news, if it is this thread that follows it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.leadership.as_ref().map(|_| self.attachment.epoll.as_fd())
    }

    /// Says that this thread is about to sleep, and takes the news that need no system call. Afterwards it looks at its
    /// streams.
    pub fn announce(&mut self) {
        if let Some(driver) = &mut self.driver {
            prepare_sleep(&self.attachment.app_sleep);
            self.attachment.take_doorbells(driver);
        }
    }

    /// The thread is awake; `is_readable`: its poll said so of [`Sleeper::fd`]. Takes the news.
    pub fn hear(&mut self, is_readable: bool) {
        let Some(driver) = &mut self.driver else { return };
        end_sleep(&self.attachment.app_sleep);
        if is_readable {
            for _ in 0..ROUNDS_MAX {
                let is_ready = driver.sleep(self.attachment.epoll.as_fd(), Duration::ZERO);
                let is_full = driver.ready.len() >= EVENTS_MAX;
                if is_ready {
                    self.attachment.handle_events(driver);
                }
                if !is_full {
                    break;
                }
            }
        }
        self.attachment.try_return();
        self.attachment.try_show();
        self.attachment.take_doorbells(driver);
        self.attachment.sweep(driver);
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if self.leadership.is_none() {
            return self.attachment.reactor.leave_outside();
        }
        end_sleep(&self.attachment.app_sleep);
        self.driver = None;
        self.leadership = None;
    }
}

impl fmt::Debug for Sleeper<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").field("leads", &self.leadership.is_some()).finish()
    }
}

/// Makes the thread that follows the session look at its streams again, if it sleeps: for what another thread changed.
pub fn kick(session: &Session) {
    session.attachment.kick();
}

/// The library makes no call for this session any more, and neither does a thread of its own: the process is about to
/// enter a sandbox. Returns when that thread has ended, or after a while if it does not.
pub fn leave(session: &Session) {
    session.attachment.end_watcher();
}

impl Stream {
    /// What can be done now, without a word to anybody: no change is signalled afterwards. It makes no system call.
    pub fn glance(&self) -> std::io::Result<Readiness> {
        self.carrier.rings(NotOverTcp::Polling)?.glance()
    }

    /// A number that is another one when the other side has changed anything of the connection, all but surely: a glance
    /// that comes to the same number as one before finds the same, unless this side did something. It takes a tenth of
    /// the time. None: not known.
    #[inline]
    pub fn stamp(&self) -> Option<u64> {
        self.carrier.rings(NotOverTcp::Polling).ok()?.endpoint().stamp()
    }

    /// As [`Stream::readiness`], where the caller knows of the bytes that are there: those that come behind them count
    /// as a change too.
    pub fn readiness_and_more(&self) -> std::io::Result<Readiness> {
        self.carrier.rings(NotOverTcp::Polling)?.readiness_and_more()
    }

    /// Has `told` called, by any thread, when the readiness has changed since [`Stream::readiness`] was last asked and
    /// said that something could not be done. From now on calls that would wait do not ask by themselves. `told` must
    /// not use the stream. False: the stream has such a function already.
    pub fn on_change(&self, told: impl Fn() + Send + Sync + 'static) -> std::io::Result<bool> {
        Ok(self.carrier.rings(NotOverTcp::Polling)?.set_hook(Box::new(told)))
    }

    /// Writes leave at most so many bytes unread by the peer from now on; `None`: as many as the ring holds. For a
    /// stream that does not wait.
    pub fn set_unread_max(&self, bytes: Option<u64>) -> std::io::Result<()> {
        self.carrier.rings(NotOverTcp::Polling)?.set_unread_max(bytes)
    }

    /// The session that the stream belongs to.
    pub fn session(&self) -> Result<Session, NotOverTcp> {
        Ok(Session { attachment: Arc::clone(&self.carrier.rings(NotOverTcp::Polling)?.attachment) })
    }
}
