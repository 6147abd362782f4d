//! What the users of the host share: places on the control socket, and the daemon's own memory, by kind.
//!
//! Owns that each share is given back when what it was taken for is dropped, on whatever thread that is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::UserShare;
use plane::{NoPlace, UserPlaces};

use crate::limits::DaemonLimits;

/// One kind, of which every user may have a part.
#[derive(Debug, Clone)]
pub(crate) struct Shares(Arc<Mutex<UserPlaces>>);

/// A part of it. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Share {
    of: Shares,
    uid: u32,
    amount: u64,
}

impl Shares {
    pub(crate) fn new(max: u64, of_user: UserShare) -> Self {
        let places = UserPlaces::new(max, of_user.of(max), rustix::process::geteuid().as_raw());
        Self(Arc::new(Mutex::new(places)))
    }

    fn lock(&self) -> MutexGuard<'_, UserPlaces> {
        // The counts are consistent between statements, whichever thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_take(&self, uid: u32, amount: u64) -> Result<Share, NoPlace> {
        self.lock().try_take(uid, amount)?;
        Ok(Share { of: self.clone(), uid, amount })
    }

    /// What all users have.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.lock().give_back(self.uid, self.amount);
    }
}

/// The kinds of the daemon's own memory whose size programs decide. What has a size of its own is bounded by number, by
/// other limits. docs/operate/memory.md is the table of all.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// Modules of user kernels, translated and on their way.
    pub(crate) kernels: Shares,
    /// Messages that programs have not read.
    pub(crate) unread: Shares,
}

impl Memory {
    pub(crate) fn new(limits: &DaemonLimits) -> Self {
        Self {
            kernels: Shares::new(limits.kernel_bytes_max, limits.user_share()),
            unread: Shares::new(limits.client_queue_bytes_max, limits.user_share()),
        }
    }

    /// What there is of each, for `raas stat`.
    pub(crate) fn taken(&self) -> [(&'static str, u64); 2] {
        [("kernel_bytes", self.kernels.taken()), ("client_queue_bytes", self.unread.taken())]
    }
}
