//! READs and WRITEs on a lane of which the peer hears nothing by themselves: those of operations, and READs of peers'
//! rings.
//!
//! Owns how many READs there may be at a time, and that ring data never follows loose WRITEs.

use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct OneSided {
    /// READs that are posted, by work request.
    reads: VecDeque<u64>,
    /// Most of these.
    reads_max: usize,
    /// Longest piece of a READ or WRITE.
    piece_bytes_max: u32,
    /// WRITEs were posted since the last message that takes a receive of the peer's.
    has_loose_writes: bool,
}

impl OneSided {
    /// The peer's offer was taken.
    pub(crate) fn on_accepted(&mut self, reads_max: u8, piece_bytes_max: u32) {
        (self.reads_max, self.piece_bytes_max) = (reads_max.into(), piece_bytes_max);
    }

    pub(crate) fn piece_bytes_max(&self) -> u32 {
        self.piece_bytes_max
    }

    pub(crate) fn may_read(&self) -> bool {
        self.reads.len() < self.reads_max
    }

    /// The device, or the peer's, takes no READs at all.
    pub(crate) fn takes_no_reads(&self) -> bool {
        self.reads_max == 0
    }

    pub(crate) fn on_read_posted(&mut self, wr: u64) {
        self.reads.push_back(wr);
    }

    pub(crate) fn on_write_posted(&mut self) {
        self.has_loose_writes = true;
    }

    /// Work requests up to this one are done.
    pub(crate) fn on_done(&mut self, wr: u64) {
        while self.reads.front().is_some_and(|read| *read <= wr) {
            self.reads.pop_front();
        }
    }

    /// A message that takes a receive was posted.
    pub(crate) fn on_parted(&mut self) {
        self.has_loose_writes = false;
    }

    /// Whether such a message must come before ring data.
    pub(crate) fn must_part(&self) -> bool {
        self.has_loose_writes
    }

    /// The queue pair is destroyed.
    pub(crate) fn forget(&mut self) {
        self.reads.clear();
        self.has_loose_writes = false;
    }
}
