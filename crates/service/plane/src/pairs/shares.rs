//! What each user has of the host's pairs and their segments.
//!
//! Owns the counts. A pair is charged to the user who connected first, and a segment to the user for whose connect it
//! was made. So no user can use up another's share. It must never bound root or the daemon's user, and must forget a
//! user who has nothing.

use std::collections::BTreeMap;

use control::Reason;

use super::PairLimits;

/// What a user or the host has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pairs: usize,
    segments: usize,
}

pub(super) const ONE_PAIR: Usage = Usage { pairs: 1, segments: 0 };
pub(super) const ONE_SEGMENT: Usage = Usage { pairs: 0, segments: 1 };

impl Usage {
    fn with(self, more: Self) -> Self {
        Self { pairs: self.pairs + more.pairs, segments: self.segments + more.segments }
    }

    fn without(self, less: Self) -> Self {
        let (pairs, segments) = (self.pairs.saturating_sub(less.pairs), self.segments.saturating_sub(less.segments));
        Self { pairs, segments }
    }

    fn is_within(self, pairs_max: usize, segments_max: usize) -> bool {
        self.pairs <= pairs_max && self.segments <= segments_max
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Shares {
    limits: PairLimits,
    all: Usage,
    users: BTreeMap<u32, Usage>,
}

impl Shares {
    pub(super) fn new(limits: PairLimits) -> Self {
        Self { limits, all: Usage::default(), users: BTreeMap::new() }
    }

    /// Whether the host, and a user, may have so much more.
    pub(super) fn check(&self, uid: u32, more: Usage) -> Result<(), Reason> {
        let limits = &self.limits;
        if !self.all.with(more).is_within(limits.pairs_max, limits.segments_max) {
            return Err(Reason::LocalLimit);
        }
        let own = self.users.get(&uid).copied().unwrap_or_default().with(more);
        let unbounded = uid == 0 || uid == limits.owner_uid;
        if unbounded || own.is_within(limits.pairs_per_user_max, limits.segments_per_user_max) {
            Ok(())
        } else {
            Err(Reason::UserPairs)
        }
    }

    pub(super) fn take(&mut self, uid: u32, more: Usage) {
        self.all = self.all.with(more);
        let own = self.users.entry(uid).or_default();
        *own = own.with(more);
    }

    pub(super) fn give_back(&mut self, uid: u32, less: Usage) {
        self.all = self.all.without(less);
        if let Some(own) = self.users.get_mut(&uid) {
            *own = own.without(less);
            if *own == Usage::default() {
                self.users.remove(&uid);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.all == Usage::default()
    }
}
