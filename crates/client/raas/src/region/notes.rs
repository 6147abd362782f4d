//! What the owner of a region is to be told: notices out of its ring, and that a daemon was lost.
//!
//! Owns their order and who waits for them. It must never take more out of the ring at a time than [`TAKEN_MAX`], unless
//! the daemon has ended: what stays there holds the writers back.

use std::collections::VecDeque;
use std::net::IpAddr;
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use shm::Notice;

#[cfg(feature = "tokio")]
use super::error::RegionError;
use crate::conn::Conn;
use crate::park::{Parker, lock};
use crate::poller::Poller;

/// Notices that are taken out of the ring at a time.
const TAKEN_MAX: usize = 64;

/// Somebody wrote to a region, and had its owner told ([`Region::write_notify`](crate::Region::write_notify)). The bytes
/// can be seen by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification {
    /// The writer's number.
    pub tag: u32,
    /// Where the bytes begin. The writer says so; they lie in the region.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
    /// The writer's host; `None`: the region's own.
    pub from: Option<IpAddr>,
}

/// What the owner is to be told next.
#[derive(Debug, Clone)]
pub(super) enum Note {
    Told(Notification),
    /// The daemon has ended, and may have had more.
    Lost,
}

#[derive(Debug)]
struct Ring {
    conn: Arc<Conn>,
    /// Which daemon of the session fills it.
    daemon: u64,
    /// Nothing more comes out of it.
    is_over: bool,
}

#[derive(Debug, Default)]
struct Inner {
    notes: VecDeque<Note>,
    ring: Option<Ring>,
    /// Why no ring could be opened for a task.
    #[cfg(feature = "tokio")]
    failed: Option<RegionError>,
}

impl Inner {
    /// Takes notices out of the ring, at most so many.
    fn drain(&mut self, most: usize) {
        let Some(ring) = self.ring.as_mut().filter(|ring| !ring.is_over) else { return };
        for _ in 0..most {
            let Ok(lent) = ring.conn.look_loan() else {
                // Its daemon has ended, or has taken it away.
                ring.is_over = true;
                return;
            };
            let Some(mut lent) = lent else { return };
            let Ok((Notice { tag, offset, bytes, from }, taken)) = lent.rx.notice(lent.bytes) else {
                tracing::warn!("a daemon writes what is no notice into a ring of notices");
                ring.is_over = true;
                self.notes.push_back(Note::Lost);
                return;
            };
            ring.conn.consume(&mut lent.rx, taken);
            self.notes.push_back(Note::Told(Notification { tag, offset, bytes, from }));
        }
    }
}

/// Who waits.
#[derive(Debug, Default)]
struct Waiters {
    parkers: Mutex<Vec<Arc<Parker>>>,
    poller: Poller,
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let parkers = lock(&self.parkers).clone();
        for parker in &parkers {
            parker.notify();
        }
        self.poller.tell();
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Notes {
    inner: Mutex<Inner>,
    waiters: Arc<Waiters>,
    waker: Waker,
    opening: Mutex<()>,
    #[cfg(feature = "tokio")]
    opens_later: Arc<AtomicBool>,
}

impl Default for Notes {
    fn default() -> Self {
        let waiters = Arc::<Waiters>::default();
        let waker = Waker::from(Arc::clone(&waiters));
        Self {
            inner: Mutex::default(),
            waiters,
            waker,
            opening: Mutex::default(),
            #[cfg(feature = "tokio")]
            opens_later: Arc::default(),
        }
    }
}

impl Notes {
    /// The daemon has ended: what it said before is kept. The caller wakes those who wait.
    pub(super) fn lose(&self) {
        let mut inner = lock(&self.inner);
        inner.drain(usize::MAX);
        if let Some(ring) = &mut inner.ring {
            ring.is_over = true;
        }
        if !matches!(inner.notes.back(), Some(Note::Lost)) {
            inner.notes.push_back(Note::Lost);
        }
    }

    /// The next.
    pub(super) fn pop(&self) -> Option<Note> {
        let mut inner = lock(&self.inner);
        if inner.notes.is_empty() {
            inner.drain(TAKEN_MAX);
        }
        inner.notes.pop_front()
    }

    /// Whether [`Self::pop`] would find something, or that the ring is over.
    pub(super) fn has_news(&self) -> bool {
        let inner = lock(&self.inner);
        let has_more = |ring: &Ring| !ring.is_over && !matches!(ring.conn.look_loan(), Ok(None));
        !inner.notes.is_empty() || inner.ring.as_ref().is_some_and(has_more)
    }

    // ---- the ring

    /// Whether this daemon of the session has a ring to fill.
    pub(super) fn has_ring(&self, daemon: u64) -> bool {
        lock(&self.inner).ring.as_ref().is_some_and(|ring| ring.daemon == daemon && !ring.is_over)
    }

    /// One caller at a time opens a ring.
    pub(super) fn begin_opening(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening)
    }

    pub(super) fn set_ring(&self, conn: Arc<Conn>, daemon: u64) {
        let before = lock(&self.inner).ring.replace(Ring { conn, daemon, is_over: false });
        // Its end tells the daemon, so no lock is held.
        drop(before);
    }

    /// Has those who wait woken when something comes. Afterwards the caller looks.
    pub(super) fn listen(&self) {
        let ring = lock(&self.inner).ring.as_ref().filter(|ring| !ring.is_over).map(|ring| Arc::clone(&ring.conn));
        if let Some(ring) = ring {
            ring.listen(&self.waker);
        }
    }

    // ---- who waits

    /// Everybody who waits looks again.
    pub(super) fn wake(&self) {
        self.waiters.wake_by_ref();
    }

    /// A thread waits, until [`Self::leave`].
    pub(super) fn enter(&self) -> Arc<Parker> {
        let parker = Arc::new(Parker::default());
        lock(&self.waiters.parkers).push(Arc::clone(&parker));
        parker
    }

    pub(super) fn leave(&self, parker: &Arc<Parker>) {
        lock(&self.waiters.parkers).retain(|one| !Arc::ptr_eq(one, parker));
    }
}

/// For tasks, which do not wait for a ring to be opened.
#[cfg(feature = "tokio")]
impl Notes {
    pub(super) fn set_waker(&self, waker: &Waker) {
        self.waiters.poller.set_waker(raas_core::Side::Read, waker);
    }

    /// `None`: a thread opens one already.
    pub(super) fn try_begin_later(&self) -> Option<OpensLater> {
        let is_begun = self.opens_later.swap(true, Ordering::AcqRel);
        (!is_begun).then(|| OpensLater(Arc::clone(&self.opens_later)))
    }

    pub(super) fn fail(&self, error: RegionError) {
        lock(&self.inner).failed = Some(error);
    }

    /// Why a ring could not be opened; once.
    pub(super) fn take_failure(&self) -> Option<RegionError> {
        lock(&self.inner).failed.take()
    }
}

/// A thread is about to open a ring, until this is dropped.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(super) struct OpensLater(Arc<AtomicBool>);

#[cfg(feature = "tokio")]
impl Drop for OpensLater {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
