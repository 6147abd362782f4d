//! Chunks that left a pool: their pages go back to the system in parts, before they are deregistered.
//!
//! Owns how much of a chunk was given back; no part may be given back twice.

use verbs::MrId;

/// A chunk that left the pool and is to be deregistered.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) number: u32,
    pub(crate) mr: MrId,
    /// The registration by which peers read it.
    pub(crate) lent: Option<MrId>,
    pub(crate) bytes: u64,
    /// So many of them were given back to the system.
    pub(super) emptied: u64,
}

/// A part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) mr: MrId,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Retired {
    /// The next part of at most `max` bytes that has pages. `None`: all were given back.
    pub(crate) fn next_slice(&self, max: u64) -> Option<Slice> {
        let bytes = max.min(self.bytes - self.emptied);
        (bytes > 0).then_some(Slice { mr: self.mr, offset: self.emptied, bytes })
    }

    /// So many bytes more were given back.
    pub(crate) fn on_emptied(&mut self, bytes: u64) {
        self.emptied += bytes;
    }
}
