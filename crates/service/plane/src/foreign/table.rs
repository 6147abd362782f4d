//! The handles, and where they are found.
//!
//! Owns what is counted of whom. Whatever a program or a peer says of one handle must cost no more where others have
//! many: each is found by its number, its program's request, its region, or the engine's name for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use control::RegionRefusal;

use super::lanes::{LaneWish, Lanes, OfLane};
use super::{Open, State};
use crate::directory::{DirectoryConfig, HANDLES_PER_PEER_MAX};
use crate::user_places::{NoPlace, UserPlaces, give_back};
use crate::{ClientId, Party};

/// Handles of one user's programs to regions of one other host: a quarter of what that host gives to all of this one.
pub(super) const OF_USER_AT_PEER_MAX: usize = HANDLES_PER_PEER_MAX as usize / 4;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Table {
    opens: BTreeMap<u64, Open>,
    /// By request; a program may give one number to several.
    of_programs: BTreeMap<ClientId, BTreeSet<(u64, u64)>>,
    of_regions: BTreeSet<(IpAddr, u64, u64)>,
    of_engine: BTreeMap<(IpAddr, u32), u64>,
    users: UserPlaces,
    at_peers: BTreeMap<(u32, IpAddr), usize>,
    lanes: Lanes,
    of_program_max: u32,
    owner: u32,
}

fn too_many(what: &str, used: u64, max: u64) -> RegionRefusal {
    RegionRefusal::TooMany { what: what.into(), used, max }
}

/// A share of handles or of leased lanes is full.
fn no_room(what: &str, NoPlace { of, used, max }: NoPlace) -> RegionRefusal {
    let whose = if of.is_some() { "user" } else { "host" };
    too_many(&format!("{what} of this {whose}"), used, max)
}

impl Table {
    pub(super) fn new(config: &DirectoryConfig) -> Self {
        let (of_user, owner) = (config.leased_lanes_per_user_max.into(), config.owner_uid);
        Self {
            opens: BTreeMap::new(),
            of_programs: BTreeMap::new(),
            of_regions: BTreeSet::new(),
            of_engine: BTreeMap::new(),
            at_peers: BTreeMap::new(),
            owner,
            users: UserPlaces::new(config.handles_max, config.handles_per_user_max, owner),
            lanes: Lanes::new(UserPlaces::new(config.leased_lanes_max.into(), of_user, owner)),
            of_program_max: config.handles_per_app_max,
        }
    }

    /// Whether there is room for one more of a program.
    pub(super) fn check(&self, party: Party, peer: IpAddr, wish: LaneWish) -> Result<(), RegionRefusal> {
        let Party { client, uid, .. } = party;
        let (used, max) = (self.of_programs.get(&client).map_or(0, BTreeSet::len) as u64, self.of_program_max.into());
        if used >= max {
            return Err(too_many("handles of this program", used, max));
        }
        self.users.check(uid, 1).map_err(|full| no_room("handles", full))?;
        let at_peer = self.at_peers.get(&(uid, peer)).copied().unwrap_or(0);
        if at_peer >= OF_USER_AT_PEER_MAX && uid != 0 && uid != self.owner {
            return Err(too_many("handles of this user to that host", at_peer as u64, OF_USER_AT_PEER_MAX as u64));
        }
        self.lanes.check(OfLane { client, uid, peer, wish }).map_err(|full| no_room("leased lanes", full))
    }

    /// One more, for which there is room.
    pub(super) fn insert(&mut self, number: u64, open: Open) {
        // The caller has checked.
        _ = self.users.try_take(open.uid, 1);
        self.lanes.insert(open.of_lane());
        *self.at_peers.entry((open.uid, open.peer)).or_default() += 1;
        self.of_programs.entry(open.client).or_default().insert((open.request, number));
        self.opens.insert(number, open);
    }

    /// Forgets a handle. With it: the leased lane that is over with it.
    pub(super) fn remove(&mut self, number: u64) -> Option<(Open, Option<u32>)> {
        let open = self.opens.remove(&number)?;
        let is_over = self.lanes.remove(number, open.of_lane(), open.lane);
        let over = open.lane.filter(|_| is_over);
        self.users.give_back(open.uid, 1);
        give_back(&mut self.at_peers, (open.uid, open.peer));
        if let Some(own) = self.of_programs.get_mut(&open.client) {
            own.remove(&(open.request, number));
            if own.is_empty() {
                self.of_programs.remove(&open.client);
            }
        }
        if let Some(region) = open.region {
            self.of_regions.remove(&(open.peer, region, number));
        }
        if let State::Open { handle, .. } | State::Closing { handle } = open.state {
            self.of_engine.remove(&(open.peer, handle));
        }
        Some((open, over))
    }

    pub(super) fn get(&self, number: u64) -> Option<&Open> {
        self.opens.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Open> {
        self.opens.get_mut(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.opens.len()
    }

    /// The owner's daemon has said which region a handle is to.
    pub(super) fn is_of_region(&mut self, number: u64, region: u64) {
        let Some(open) = self.opens.get_mut(&number) else { return };
        open.region = Some(region);
        self.of_regions.insert((open.peer, region, number));
    }

    /// The engine has named a handle, which gets this state.
    pub(super) fn is_of_engine(&mut self, number: u64, handle: u32, state: State) {
        let Some(open) = self.opens.get_mut(&number) else { return };
        open.state = state;
        self.of_engine.insert((open.peer, handle), number);
    }

    pub(super) fn of_engine(&self, peer: IpAddr, handle: u32) -> Option<u64> {
        self.of_engine.get(&(peer, handle)).copied()
    }

    pub(super) fn of_request(&self, client: ClientId, request: u64) -> impl Iterator<Item = u64> {
        let own = self.of_programs.get(&client);
        own.into_iter().flat_map(move |own| own.range((request, 0)..=(request, u64::MAX))).map(|(_, number)| *number)
    }

    pub(super) fn of_program(&self, client: ClientId) -> Vec<u64> {
        self.of_programs.get(&client).into_iter().flatten().map(|(_, number)| *number).collect()
    }

    pub(super) fn of_region(&self, peer: IpAddr, region: u64) -> Vec<u64> {
        let of_region = self.of_regions.range((peer, region, 0)..=(peer, region, u64::MAX));
        of_region.map(|(_, _, number)| *number).collect()
    }

    /// The leased lane that a handle is to be on, if its program has it already.
    pub(super) fn lane_of_writers(&self, number: u64) -> Option<u32> {
        self.lanes.of_writers(self.opens.get(&number)?.of_lane())
    }

    /// A handle is on a leased lane from here on.
    pub(super) fn is_on_lane(&mut self, number: u64, lane: u32) {
        let Some(open) = self.opens.get_mut(&number) else { return };
        open.lane = Some(lane);
        self.lanes.is_on(number, open.of_lane(), lane);
    }

    /// A leased lane was lost. Which handles were on it.
    pub(super) fn lose_lane(&mut self, peer: IpAddr, lane: u32) -> Vec<u64> {
        let numbers = self.lanes.on(peer, lane);
        // They are of one program.
        if let Some(open) = numbers.first().and_then(|number| self.opens.get(number)) {
            self.lanes.lost(open.of_lane(), lane);
        }
        numbers
    }

    /// All of a peer: it is gone.
    pub(super) fn of_peer(&self, peer: IpAddr) -> Vec<u64> {
        self.opens.iter().filter(|(_, open)| open.peer == peer).map(|(number, _)| *number).collect()
    }
}
