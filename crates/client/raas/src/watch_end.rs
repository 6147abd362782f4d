//! The end of a session's watcher before that of the session.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct WatchEnd {
    pub(crate) is_due: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}
