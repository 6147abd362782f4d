//! What a `Region` stands for: a handle, and after the end of a daemon the handle by which the region goes on
//! (docs/operate/restart.md).
//!
//! Owns which handle counts now, and when the region is opened again. It must never go on with another region, nor with one
//! that was revoked, and never do an operation again of which something may have been done.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use control::{RegionAccess, RegionRefusal};
use raas_core::{RegionTries, may_change};

use super::error::RegionError;
use super::handle::Handle;
use super::later::Backlog;
use super::pending::Pending;
use crate::error::SessionError;
use crate::park::{Parker, lock};

/// How a region was opened that can be opened again.
#[derive(Debug, Clone, Copy)]
struct Origin {
    host: IpAddr,
    access: RegionAccess,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct HandleSource {
    name: String,
    origin: Option<Origin>,
    /// The handle that was opened first, if it is of this host: while it counts, finding it takes no lock. Its memory stays
    /// mapped as long as this lives.
    first: Option<Arc<Handle>>,
    now: RwLock<Arc<Handle>>,
    /// `first` does not count any more.
    has_moved: AtomicBool,
    /// One opens it again at a time.
    opening: Mutex<()>,
    /// It could not be opened again.
    over: OnceLock<RegionError>,
    /// Batches that wait for the region.
    pub(super) backlog: Backlog<Pending>,
}

/// The handle that counts.
#[derive(Debug)]
pub(crate) enum CurrentHandle<'a> {
    First(&'a Arc<Handle>),
    Later(Arc<Handle>),
}

impl Deref for CurrentHandle<'_> {
    type Target = Arc<Handle>;

    #[inline]
    fn deref(&self) -> &Arc<Handle> {
        match self {
            Self::First(handle) => handle,
            Self::Later(handle) => handle,
        }
    }
}

impl HandleSource {
    /// Of a handle that is not opened again: its owner's, one of a lease, or one with a lane of its own.
    pub(super) fn once(handle: Arc<Handle>) -> Self {
        Self::new(handle, None)
    }

    /// Of a handle that was opened by host and name.
    pub(super) fn of_host(handle: Arc<Handle>, host: IpAddr, access: RegionAccess) -> Self {
        Self::new(handle, Some(Origin { host, access }))
    }

    fn new(handle: Arc<Handle>, origin: Option<Origin>) -> Self {
        Self {
            name: handle.name().to_owned(),
            origin,
            first: (handle.is_here() || origin.is_none()).then(|| Arc::clone(&handle)),
            now: RwLock::new(handle),
            has_moved: AtomicBool::new(false),
            opening: Mutex::default(),
            over: OnceLock::new(),
            backlog: Backlog::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The handle that counts now. It may be broken.
    #[inline]
    pub(super) fn now(&self) -> CurrentHandle<'_> {
        match &self.first {
            Some(first) if !self.has_moved.load(Ordering::Acquire) => CurrentHandle::First(first),
            _ => CurrentHandle::Later(Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))),
        }
    }

    /// Whether the handle must be opened again before it is of use.
    pub(super) fn is_broken(&self) -> bool {
        self.origin.is_some() && self.over.get().is_none() && self.now().is_broken()
    }

    /// A handle that is not broken, or was not a moment ago.
    pub(crate) fn settled(&self) -> Result<CurrentHandle<'_>, RegionError> {
        while self.is_broken() {
            let broken = Arc::clone(&self.now());
            let name = self.name.clone();
            self.go_on(&broken, RegionError::DaemonLost { name, may_have_landed: false })?;
        }
        self.over.get().map_or_else(|| Ok(self.now()), |over| Err(over.clone()))
    }

    /// Does an operation, and again by the next handle if it failed because its handle broke before anything was done.
    #[inline]
    pub(super) fn run<T>(
        &self,
        mut operation: impl FnMut(&Arc<Handle>) -> Result<T, RegionError>,
    ) -> Result<T, RegionError> {
        let handle = self.now();
        match operation(&handle) {
            Err(error) if self.origin.is_some() => self.run_on(&handle, error, &mut operation),
            result => result,
        }
    }

    #[cold]
    fn run_on<T>(
        &self,
        failed: &Arc<Handle>,
        error: RegionError,
        operation: &mut dyn FnMut(&Arc<Handle>) -> Result<T, RegionError>,
    ) -> Result<T, RegionError> {
        let (mut failed, mut error) = (Arc::clone(failed), error);
        while failed.is_broken_by(&error) {
            self.go_on(&failed, error)?;
            failed = Arc::clone(&self.now());
            match operation(&failed) {
                Err(again) => error = again,
                Ok(done) => return Ok(done),
            }
        }
        Err(error)
    }

    /// Opens the region again in the place of a handle that is broken; `error` is what its caller is told if that cannot
    /// be.
    fn go_on(&self, broken: &Arc<Handle>, error: RegionError) -> Result<(), RegionError> {
        let Some(origin) = self.origin else { return Err(error) };
        let attachment = broken.attachment();
        attachment.check_fork()?;
        let _turn = lock(&self.opening);
        if let Some(over) = self.over.get() {
            return Err(over.clone());
        }
        if !Arc::ptr_eq(broken, &self.now()) {
            // Another thread has done it.
            return Ok(());
        }
        let new = self.open_again(broken, origin, error).inspect_err(|error| {
            tracing::warn!(region = self.name, %error, "a handle to a region does not go on");
            let _ = self.over.set(error.clone());
        })?;
        tracing::info!(region = self.name, epoch = new.epoch(), "a handle to a region goes on");
        let old = std::mem::replace(&mut *self.now.write().unwrap_or_else(PoisonError::into_inner), new);
        self.has_moved.store(true, Ordering::Release);
        drop(old);
        Ok(())
    }

    /// Tries until there is an answer that lasts. Without one it gives up when it has been refused for as long as a
    /// session waits for a daemon; while the region is on its way it waits longer, which the region's daemon bounds, and here
    /// the longest time of an honest one.
    fn open_again(
        &self,
        broken: &Arc<Handle>,
        Origin { host, access }: Origin,
        error: RegionError,
    ) -> Result<Arc<Handle>, RegionError> {
        let attachment = broken.attachment();
        let (mut first, mut tries) = (None, RegionTries::new(broken.bytes()));
        let parker = Arc::new(Parker::default());
        loop {
            let refused = match broken.open_again(host, access) {
                Err(refused) if may_pass(&refused) => refused,
                result => return result,
            };
            let now = Instant::now();
            let since = now.duration_since(*first.get_or_insert(now));
            let is_moving = refused.refusal() == Some(&RegionRefusal::Busy);
            let Some(pause) = tries.pause(since, attachment.config.daemon_wait, is_moving) else {
                tracing::debug!(region = self.name, %refused, "it is not there in time");
                return Err(error);
            };
            let next = now + pause;
            while Instant::now() < next {
                attachment.block(&parker, Some(next), &mut || false)?;
            }
        }
    }
}

/// Whether a refusal is for now: the owner, or a daemon, may be on its way.
fn may_pass(error: &RegionError) -> bool {
    match error {
        RegionError::Refused { why, .. } => may_change(why),
        // The daemon that opened it ended before the handle was there, or the wait for its answer did.
        RegionError::DaemonLost { .. } | RegionError::Session(SessionError::Silent { .. }) => true,
        _ => false,
    }
}
