//! A region of this host, as a program has it mapped.
//!
//! Owns the lock that keeps an owner's accesses and its move to new memory apart ([`RegionPlace`] has the checks and the copy). It must never
//! let an access count as done whose bytes a revoke may have left behind.
//!
//! **A revoke and an access at the same time.** The daemon stores a new stamp, and then has the owner copy the region.
//! An access by another program stores its bytes, then looks at the stamp, with a sequentially consistent fence
//! between. Either it finds the new stamp, and fails, or its bytes were there before the copy and are in it. A look that
//! follows loads alone needs no such fence. The owner's own accesses are excluded from the copy by a lock, so that none
//! of them is lost; what others have open never moves, and they take none.
//!
//! **The daemon's death** takes the same way. The kernel stores the end to the word of the daemon's life ([`shm::Life`]),
//! before the owner can find its daemon gone. From then on accesses by others fail, and the owner copies the region to
//! memory of the next daemon.

use std::ops::Deref;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use raas_core::{RegionMade, RegionMapping, RegionOver, RegionPlace};

#[derive(Debug)]
enum Mapping {
    Owned(RwLock<RegionPlace>),
    Opened(RegionPlace),
}

/// The memory, which does not move while this lives.
#[derive(Debug)]
pub(super) enum PinnedMapping<'a> {
    Owned(RwLockReadGuard<'a, RegionPlace>),
    Opened(&'a RegionPlace),
}

impl Deref for PinnedMapping<'_> {
    type Target = RegionPlace;

    #[inline]
    fn deref(&self) -> &RegionPlace {
        match self {
            Self::Owned(place) => place,
            Self::Opened(place) => place,
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Local {
    held: Mapping,
}

impl Local {
    pub(super) fn new(mut mapping: RegionMapping, made: RegionMade, is_owner: bool) -> Self {
        // It keeps a descriptor, and only an owner moves.
        mapping.extents = mapping.extents.filter(|_| is_owner);
        let place = RegionPlace::new(mapping, made);
        let held = if is_owner { Mapping::Owned(RwLock::new(place)) } else { Mapping::Opened(place) };
        Self { held }
    }

    /// The memory; it does not move while the result lives.
    #[inline]
    pub(super) fn place(&self) -> PinnedMapping<'_> {
        match &self.held {
            Mapping::Owned(place) => PinnedMapping::Owned(place.read().unwrap_or_else(PoisonError::into_inner)),
            Mapping::Opened(place) => PinnedMapping::Opened(place),
        }
    }

    /// As [`RegionPlace::check`].
    #[inline]
    pub(super) fn check(&self, place: &RegionPlace) -> Result<(), RegionOver> {
        place.check(self.is_owners())
    }

    /// As [`RegionPlace::check_behind_changes`].
    pub(super) fn check_behind_changes(&self, place: &RegionPlace) -> Result<(), RegionOver> {
        place.check_behind_changes(self.is_owners())
    }

    #[inline]
    fn is_owners(&self) -> bool {
        matches!(self.held, Mapping::Owned(_))
    }

    /// Moves the owner. No access of its is under way meanwhile, and none sees the new place before `change` is done.
    /// None: it is not an owner's.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut RegionPlace) -> T) -> Option<T> {
        let Mapping::Owned(place) = &self.held else { return None };
        Some(change(&mut place.write().unwrap_or_else(PoisonError::into_inner)))
    }
}
