//! Counts of connections by path and reason, for the line that `raas run --summary` says at the end.
//!
//! Owns the page that all processes of the program share with `raas run`: 32-bit counts, by path and by the reason's
//! number. A connection is counted when it is first used, and counted anew when it moves, so that no process needs to
//! end in order.

use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use raas::{PathKind, Reason};

use crate::shared_page::SharedPage;

/// Where `raas run` says which file it is.
const VARIABLE: &str = "RAAS_RUN_SUMMARY";
/// Paths, in this order: shared memory, a lane, kernel TCP.
const PATHS: usize = 3;
/// Reasons with numbers below.
const REASONS: usize = 128;

static PAGE: OnceLock<SharedPage> = OnceLock::new();

/// To be called when the library is loaded.
pub(crate) fn join() {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { return };
    let len = PATHS * REASONS * size_of::<u32>();
    if file.metadata().is_ok_and(|about| about.len() >= len as u64)
        && let Some(page) = SharedPage::of_file(file.as_raw_fd(), len)
    {
        let _is_first = PAGE.set(page);
    }
}

/// Where a connection is counted.
#[derive(Debug, Default)]
pub(crate) struct Counted(AtomicU32);

impl Counted {
    /// It is counted here from now on.
    pub(crate) fn set(&self, path: PathKind, reason: Reason) {
        let Some(page) = PAGE.get() else { return };
        let row = match path {
            PathKind::Shm => 0,
            PathKind::Tcp => 2,
            _ => 1,
        };
        let place = row * REASONS + Some(reason.code() as usize).filter(|code| *code < REASONS).unwrap_or(0);
        // 0: nowhere.
        let before = self.0.swap(place as u32 + 1, Ordering::AcqRel);
        if let Some(count) = before.checked_sub(1).and_then(|place| page.words().get(place as usize)) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(count) = page.words().get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
