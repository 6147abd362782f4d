//! Leased lanes of this host's programs: one for each handle that asked for its own, and one for all regions of another
//! host that a program writes.
//!
//! Owns which handle is on which lane, and each user's share of lanes. It must name a lane's end once, when its last
//! handle is over, and never give a lane that is over to a handle.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::ClientId;
use crate::user_places::{NoPlace, UserPlaces};

/// By which lane a handle's operations go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneWish {
    /// By the one that all programs share.
    Shared,
    /// By one of its own.
    Own,
    /// By the one of the program's handles that write regions of that host.
    Writers,
}

/// The lane of a program's writers to one host.
#[derive(Debug, Default)]
struct WritersLane {
    number: Option<u32>,
    /// Handles of which the owner's daemon knows that they are on it.
    told: usize,
    /// Handles that have no lane yet.
    coming: usize,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Lanes {
    of_users: UserPlaces,
    handles: BTreeMap<(IpAddr, u32), BTreeSet<u64>>,
    writers: BTreeMap<(ClientId, IpAddr), WritersLane>,
}

/// Whose handle it is, and what its lane is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfLane {
    pub(super) client: ClientId,
    pub(super) uid: u32,
    pub(super) peer: IpAddr,
    pub(super) wish: LaneWish,
}

impl Lanes {
    pub(super) fn new(of_users: UserPlaces) -> Self {
        Self { of_users, handles: BTreeMap::new(), writers: BTreeMap::new() }
    }

    /// Whether there is a lane for one more handle.
    pub(super) fn check(&self, of: OfLane) -> Result<(), NoPlace> {
        if self.takes_one(of) { self.of_users.check(of.uid, 1) } else { Ok(()) }
    }

    fn takes_one(&self, of: OfLane) -> bool {
        match of.wish {
            LaneWish::Shared => false,
            LaneWish::Own => true,
            LaneWish::Writers => !self.writers.contains_key(&(of.client, of.peer)),
        }
    }

    /// One more handle, for which there is room. It has no lane yet.
    pub(super) fn insert(&mut self, of: OfLane) {
        if self.takes_one(of) {
            // The caller has checked.
            _ = self.of_users.try_take(of.uid, 1);
        }
        if of.wish == LaneWish::Writers {
            self.writers.entry((of.client, of.peer)).or_default().coming += 1;
        }
    }

    /// The lane that the program's writers have already.
    pub(super) fn of_writers(&self, of: OfLane) -> Option<u32> {
        if of.wish != LaneWish::Writers {
            return None;
        }
        self.writers.get(&(of.client, of.peer))?.number
    }

    /// A handle's lane has this number, and the owner's daemon is told.
    pub(super) fn is_on(&mut self, handle: u64, of: OfLane, lane: u32) {
        self.handles.entry((of.peer, lane)).or_default().insert(handle);
        if of.wish == LaneWish::Writers
            && let Some(writers) = self.writers.get_mut(&(of.client, of.peer))
        {
            writers.coming = writers.coming.saturating_sub(1);
            writers.told += 1;
            writers.number = Some(lane);
        }
    }

    /// A handle is over. Whether its lane is, as its last one.
    pub(super) fn remove(&mut self, handle: u64, of: OfLane, lane: Option<u32>) -> bool {
        match of.wish {
            LaneWish::Shared => return false,
            LaneWish::Own => self.of_users.give_back(of.uid, 1),
            LaneWish::Writers => {
                if let Some(writers) = self.writers.get_mut(&(of.client, of.peer)) {
                    match lane {
                        None => writers.coming = writers.coming.saturating_sub(1),
                        Some(_) if lane == writers.number => writers.told = writers.told.saturating_sub(1),
                        // Of a lane before, that was lost.
                        Some(_) => {}
                    }
                }
                self.settle(of);
            }
        }
        let Some(key) = lane.map(|lane| (of.peer, lane)) else { return false };
        let Some(left) = self.handles.get_mut(&key) else { return false };
        left.remove(&handle);
        let is_over = left.is_empty();
        if is_over {
            self.handles.remove(&key);
        }
        is_over
    }

    /// A lane that nobody is known to be on is over: the owner's daemon ends it. What is still to come gets another.
    fn settle(&mut self, of: OfLane) {
        let Some(writers) = self.writers.get_mut(&(of.client, of.peer)) else { return };
        if writers.told == 0 {
            writers.number = None;
            if writers.coming == 0 {
                self.writers.remove(&(of.client, of.peer));
                self.of_users.give_back(of.uid, 1);
            }
        }
    }

    /// Handles on a lane.
    pub(super) fn on(&self, peer: IpAddr, lane: u32) -> Vec<u64> {
        self.handles.get(&(peer, lane)).into_iter().flatten().copied().collect()
    }

    /// A lane was lost. The handle is one that was on it.
    pub(super) fn lost(&mut self, of: OfLane, lane: u32) {
        self.handles.remove(&(of.peer, lane));
        if let Some(writers) = self.writers.get_mut(&(of.client, of.peer)).filter(|w| w.number == Some(lane)) {
            writers.told = 0;
            self.settle(of);
        }
    }
}
