//! How many records the keys of an encrypted connection have protected, wherever they are made and opened, and when its
//! owner is told that another connection has to take its place.
//!
//! The kernel counts its records; each look at that count is a system call. So what was sent and received since the last
//! look bounds how many there may be, and a look is due when that bound comes near a number that matters. Owns these
//! numbers. It must never let a record leave, nor what is in one reach the queue pair, that is one more than a key may
//! protect.

use records::{RECORD_BYTES_MAX, RecordLimit};

use crate::Sealed;

/// Fewest bytes that a record of the kernel has within one call, but for its last two: it fills records to
/// [`RECORD_BYTES_MAX`] unless it runs out of pages for one.
const KERNEL_RECORD_BYTES_MIN: u64 = 1024;
/// The owner is told once for each such part of the records that are left.
const TELLINGS: u64 = 8;

/// It is told for the first time at this part of the records until the keys are worn.
const EARLY_PART: u64 = 4;

/// What the owner is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// The keys were used for long.
    Early,
    /// Another connection has to take this one's place.
    Due,
}

/// Records of one direction that the kernel makes or opens.
#[derive(Debug, Default)]
struct InKernel {
    /// So many at the last look.
    known: u64,
    /// No more than these by now.
    at_most: u64,
    /// Bytes that came, ever.
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct KeyUse {
    limit: RecordLimit,
    /// The owner is told when this many are used.
    tell_at: u64,
    /// It was told nothing so far, and is told first that the keys were used for long.
    is_early: bool,
    sealed: InKernel,
    opened: InKernel,
}

impl KeyUse {
    /// Of keys that have protected nothing so far.
    pub fn new(limit: RecordLimit) -> Self {
        Self {
            limit,
            tell_at: limit.until_worn() / EARLY_PART,
            is_early: true,
            sealed: InKernel::default(),
            opened: InKernel::default(),
        }
    }

    /// Whether so many bytes may be left to the kernel's TLS. `look`: how many records it has made, if it tells.
    pub fn may_send(&mut self, bytes: u64, look: impl FnOnce() -> Option<u64>) -> bool {
        let further = bytes / KERNEL_RECORD_BYTES_MIN + 2;
        let kernel = &mut self.sealed;
        kernel.at_most = kernel.at_most.saturating_add(further);
        if kernel.at_most >= self.tell_at.min(self.limit.most())
            && let Some(known) = look()
        {
            kernel.known = known;
            kernel.at_most = known.saturating_add(further);
        }
        kernel.at_most <= self.limit.most()
    }

    /// The kernel's TLS opened records of which so many bytes came. Whether these may be handed on. `look`: how many
    /// records it has opened, if it tells.
    pub fn may_take(&mut self, bytes: u64, look: impl FnOnce() -> Option<u64>) -> bool {
        let kernel = &mut self.opened;
        // A record has a byte at least; one more may be open of which nothing came yet.
        kernel.at_most = kernel.at_most.saturating_add(bytes + 1);
        kernel.bytes = kernel.bytes.saturating_add(bytes);
        if kernel.at_most >= self.tell_at.min(self.limit.most()) {
            // A kernel before 5.11 does not tell: at least so many there were, and the peer counts what it seals.
            kernel.known = look().unwrap_or(kernel.bytes / RECORD_BYTES_MAX as u64);
            kernel.at_most = kernel.known;
        }
        kernel.known <= self.limit.most()
    }

    /// What the owner is to be told now. `sealed`: what is not left to the kernel.
    pub fn telling(&mut self, sealed: Option<&Sealed>) -> Option<Telling> {
        let [seals, opens] = sealed.map_or([0; 2], Sealed::records);
        let used = self.sealed.known.max(self.opened.known).max(seals).max(opens);
        if used < self.tell_at {
            return None;
        }
        if std::mem::take(&mut self.is_early) {
            self.tell_at = self.limit.until_worn();
            return Some(Telling::Early);
        }
        let step = (self.limit.most() - self.limit.until_worn()) / TELLINGS;
        self.tell_at = used.saturating_add(step.max(1));
        Some(Telling::Due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that tells nothing.
    fn nothing() -> Option<u64> {
        None
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_bounded_by_the_bytes() {
        let mut used = KeyUse::new(RecordLimit::lowered_to(100, 1000));
        let calls = (0..).take_while(|_| used.may_send(2048, nothing)).count();
        assert_eq!(calls, 250, "each may have been four records");
        let mut used = KeyUse::new(RecordLimit::lowered_to(100, 1000));
        let full = (0..).take_while(|_| used.may_take(16 * 1024, nothing)).count();
        assert_eq!(full, 1000, "records of full length, and each was one at least");
        assert_eq!([0; 3].map(|_| used.telling(None)), [Some(Telling::Early), Some(Telling::Due), None]);
    }

    #[test]
    fn its_owner_is_told_again_while_it_does_nothing() {
        let mut used = KeyUse::new(RecordLimit::lowered_to(100, 180));
        let mut told = Vec::new();
        for record in 1..=180 {
            assert!(used.may_take(16 * 1024, nothing));
            told.extend(used.telling(None).map(|telling| (record, telling == Telling::Due)));
        }
        assert_eq!(told[..2], [(25, false), (100, true)]);
        let again: Vec<_> = (11..=18).map(|tens| (10 * tens, true)).collect();
        assert_eq!(told[2..], again);
    }
}
