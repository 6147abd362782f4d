//! A program of a polite user that asks a daemon again and again, whatever is done to it.
//!
//! Owns the count of answers and the slowest of them, which is told and not judged: the machine may be busy.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::host::eventually;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    worst_us: AtomicU64,
    ends: AtomicBool,
}

impl Pulse {
    /// Asks until [`Self::end`].
    pub(crate) fn beat(&self, socket: &Path) {
        while !self.ends.load(Ordering::Acquire) {
            let start = Instant::now();
            if raas::inspect::stat(Some(socket)).is_ok() {
                self.beats.fetch_add(1, Ordering::Relaxed);
                let took = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.worst_us.fetch_max(took, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Waits until it was answered twice more: the second of these was asked afterwards.
    pub(crate) fn goes_on(&self) -> Result<()> {
        let before = self.beats.load(Ordering::Relaxed);
        eventually("the daemon answers others", || {
            let beats = self.beats.load(Ordering::Relaxed);
            Ok(if beats >= before + 2 { Ok(()) } else { Err(beats) })
        })
    }

    /// How many answers there were, and the slowest.
    pub(crate) fn said(&self) -> Result<String> {
        let worst = Duration::from_micros(self.worst_us.load(Ordering::Relaxed));
        let beats = self.beats.load(Ordering::Relaxed);
        ensure!(beats > 0, "none");
        Ok(format!("{beats} answers, the slowest in {worst:?}"))
    }
}
