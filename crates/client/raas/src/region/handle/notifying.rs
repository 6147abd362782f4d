//! Notifications: what writers have the owner of a region told, and how the owner takes it.
//!
//! Owns when the owner's ring is opened: with the first call that would take something, and again with each daemon; and
//! when the daemon is asked how a program has the owner told of what it wrote to mapped memory. It must never have a task
//! wait for the daemon that receives.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use control::{RegionAccess, Request};
use raas_core::Answer;

use super::asking::unexpected;
use super::{Handle, Reach};
use crate::park::lock;
use crate::region::ask::ask;
use crate::region::error::RegionError;
use crate::region::notes::{Note, Notification};
use crate::region::queue::{LaneOf, open_rings, queue_of};
use crate::region::remote::{Remote, Told};

/// Bytes of the ring: more than a thousand notices.
const RING_BYTES: u32 = 64 << 10;

impl Handle {
    /// Has the owner told of `bytes` bytes at `offset`, of a region of this host that this program has mapped.
    pub(super) fn notify(&self, tag: u32, offset: u64, bytes: u64) -> Result<(), RegionError> {
        self.wait_until_here()?;
        // Longer than a record can say.
        let bytes = bytes.min(u32::MAX.into());
        let told = self.notifier()?.tell(&self.name, Told { tag, offset, bytes });
        told.map_err(|error| match (error, &self.reach) {
            // The engine does not know it any more: the handle is over.
            (RegionError::Revoked { .. }, Reach::Here(local)) => {
                let place = local.place();
                self.over(local.check(&place).err(), self.ended.get(), place.epoch, true)
            }
            (error, _) => error,
        })
    }

    /// By what the owner is told. The daemon is asked once, and the next one again.
    fn notifier(&self) -> Result<Arc<Remote>, RegionError> {
        let mut known = lock(&self.notifier);
        let daemon = self.daemon();
        if let Some(notifier) = known.as_ref().filter(|notifier| notifier.queue.is_of(daemon)) {
            return Ok(Arc::clone(notifier));
        }
        let answer = ask(&self.attachment, |session| session.region_notifier(self.open_now()))?;
        let handle = match answer {
            Answer::Notifier(result) => result.map_err(|why| RegionError::refused(&self.name, why))?,
            other => return Err(unexpected(&other)),
        };
        let queue = queue_of(&self.attachment, IpAddr::V4(Ipv4Addr::UNSPECIFIED), LaneOf::Writers)?;
        let (epoch, access) = (0, RegionAccess::WRITE);
        Ok(Arc::clone(known.insert(Arc::new(Remote { queue, handle, epoch, access }))))
    }

    /// The next that is there.
    fn take_notification(&self) -> Result<Option<Notification>, RegionError> {
        if !self.is_owner() {
            return Err(RegionError::NotOwner { name: self.name.clone() });
        }
        self.attachment.check_fork()?;
        match self.notes.pop() {
            Some(Note::Told(notification)) => return Ok(Some(notification)),
            Some(Note::Lost) => return Err(RegionError::NotificationsLost { name: self.name.clone() }),
            None => {}
        }
        self.check_session()?;
        self.check_ended().map(|()| None)
    }

    /// Whether the daemon that has the region now has a ring to fill. One that has none yet will get it.
    fn has_ring(&self) -> bool {
        self.is_away() || self.notes.has_ring(self.daemon())
    }

    /// Opens a ring if there is none. It waits for the daemon's answer.
    fn open_ring(&self) -> Result<(), RegionError> {
        if self.has_ring() {
            return Ok(());
        }
        let _one_at_a_time = self.notes.begin_opening();
        if self.has_ring() {
            return Ok(());
        }
        match open_rings(&self.attachment, RING_BYTES) {
            Ok((ring, daemon)) => {
                let queue = ring.endpoint().id();
                self.notes.set_ring(ring, daemon);
                self.attachment.tell(&Request::RegionNotices { open: self.open_now(), queue });
            }
            // The daemon has ended meanwhile, and the next one is asked when the region is there.
            Err(_) if self.is_away() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(in crate::region) fn recv_notification(&self, timeout: Option<Duration>) -> Result<Notification, RegionError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(notification) = self.take_notification()? {
            return Ok(notification);
        }
        let parker = self.notes.enter();
        let taken = loop {
            if let Err(e) = self.open_ring() {
                break Err(e);
            }
            match self.take_notification() {
                Ok(None) if deadline.is_some_and(|at| Instant::now() >= at) => {
                    break Err(RegionError::TimedOut { name: self.name.clone() });
                }
                Ok(None) => {}
                Ok(Some(notification)) => break Ok(notification),
                Err(e) => break Err(e),
            }
            self.notes.listen();
            let mut has_news = || {
                self.notes.has_news()
                    || !self.has_ring()
                    || self.ended.get().is_some()
                    || self.attachment.lost().is_some()
            };
            if let Err(e) = self.attachment.block(&parker, deadline, &mut has_news) {
                break Err(e.into());
            }
        };
        self.notes.leave(&parker);
        taken
    }

    #[cfg(feature = "tokio")]
    pub(in crate::region) fn poll_notification(
        self: &Arc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Notification, RegionError>> {
        // In a forked child the locks are its parent's.
        self.attachment.check_fork()?;
        self.notes.set_waker(context.waker());
        if let Some(error) = self.notes.take_failure() {
            return Poll::Ready(Err(error));
        }
        if self.is_owner() && !self.has_ring() {
            self.open_ring_later()?;
        }
        self.notes.listen();
        match self.take_notification() {
            Ok(Some(notification)) => Poll::Ready(Ok(notification)),
            Ok(None) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    /// A thread opens the ring, and wakes the tasks, which see it or try again.
    #[cfg(feature = "tokio")]
    fn open_ring_later(self: &Arc<Self>) -> Result<(), RegionError> {
        let Some(opening) = self.notes.try_begin_later() else { return Ok(()) };
        let handle = Arc::clone(self);
        let open = move || {
            if let Err(error) = handle.open_ring() {
                handle.notes.fail(error);
            }
            drop(opening);
            handle.notes.wake();
        };
        let failed = |e| crate::error::SessionError::io("starting a thread that opens a ring for notifications", e);
        std::thread::Builder::new().name("raas-region".into()).spawn(open).map(drop).map_err(failed)?;
        Ok(())
    }
}
