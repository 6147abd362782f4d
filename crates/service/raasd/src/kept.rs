//! Descriptors that somebody keeps while there is no daemon: for systemd its descriptor store (sd_notify(3), `FDSTORE=1`).
//!
//! Owns what was kept for this daemon until it is taken. Who keeps it is the program's that runs the daemon: this crate
//! knows no service manager.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// First words of the names: memory of a region, and what it is.
pub(crate) const MEMORY: &str = "raas-region-";
pub(crate) const RECORD: &str = "raas-record-";

/// Who keeps descriptors over the end of the daemon.
pub trait DescriptorStore: fmt::Debug + Send + Sync {
    /// Keeps a copy of a descriptor under a name: at most 255 printable ASCII characters, none of them a colon.
    fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Keeps nothing of this name any more.
    fn forget(&self, name: &str) -> io::Result<()>;
}

/// What is kept, and by whom.
#[derive(Debug)]
pub struct Kept {
    store: Box<dyn DescriptorStore>,
    given: Mutex<Vec<(String, OwnedFd)>>,
}

impl Kept {
    /// `given` was kept, by name, for the daemon that starts now.
    pub fn new(store: Box<dyn DescriptorStore>, given: Vec<(String, OwnedFd)>) -> Self {
        Self { store, given: Mutex::new(given) }
    }

    /// Whether the daemon had something kept under such a name.
    pub fn is_name(name: &str) -> bool {
        name.starts_with(MEMORY) || name.starts_with(RECORD)
    }

    pub(crate) fn store(&self) -> &dyn DescriptorStore {
        self.store.as_ref()
    }

    /// What was kept for this daemon, once.
    pub(crate) fn take_given(&self) -> Vec<(String, OwnedFd)> {
        std::mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
