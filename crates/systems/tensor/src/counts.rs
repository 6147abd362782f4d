//! What was done with the bytes of tensors.
//!
//! Owns the counters, which every copy and READ of a payload in this crate must pass.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a pool or a reader has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tensors that were got.
    pub gets: u64,
    /// Bytes of payload that the processor copied, because the caller asked for a copy.
    pub bytes_copied: u64,
    /// READs of payloads from other hosts, each straight into a block of a pool.
    pub reads: u64,
    /// Bytes of them.
    pub bytes_read: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    gets: AtomicU64,
    bytes_copied: AtomicU64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
}

impl Counting {
    pub(crate) fn got(&self) {
        self.gets.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn copied(&self, bytes: u64) {
        self.bytes_copied.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Counts {
        let [gets, bytes_copied, reads, bytes_read] =
            [&self.gets, &self.bytes_copied, &self.reads, &self.bytes_read].map(|count| count.load(Ordering::Relaxed));
        Counts { gets, bytes_copied, reads, bytes_read }
    }
}
