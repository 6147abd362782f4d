//! Handles that programs of other hosts have to regions of this one.
//!
//! Owns which peer has which region open, and when a registration may be given up: after each peer has said that
//! nothing of it is in flight, or its lane is gone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use control::{RegionAccess, RegionGrant, RegionMessage, RegionRefusal};
use verbs::Time;

use super::{Directory, DirectoryAction, RegionWish, Stage, too_many};
use crate::Party;

/// Handles of one peer's programs to regions of this host, at most.
const HANDLES_PER_PEER_MAX: u32 = 65_536;

/// A handle of a program of another host.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteHandle {
    pub(super) region: u64,
    access: RegionAccess,
}

/// A region that ended while peers had it open: its memory stays registered until they have stopped.
#[derive(Debug)]
pub(super) struct Ending {
    epoch: u64,
    peers: BTreeSet<IpAddr>,
    deadline: Time,
}

impl Ending {
    pub(super) fn deadline(&self) -> Time {
        self.deadline
    }
}

impl Directory {
    /// A peer's daemon says something of regions of this host. False: it is about regions of the peer.
    pub fn handle_peer(&mut self, now: Time, peer: IpAddr, message: &RegionMessage) -> bool {
        match message {
            RegionMessage::Open { open, uid, name, key, access } => {
                let wish = RegionWish { name: name.clone(), key: *key, access: *access };
                self.handle_peer_open(peer, *open, *uid, &wish);
            }
            RegionMessage::Closed { open } => self.handle_peer_closed(peer, *open),
            RegionMessage::Stopped { region, epoch } => self.handle_stopped(now, peer, *region, *epoch),
            RegionMessage::Opened { .. } | RegionMessage::Stop { .. } => return false,
        }
        true
    }

    fn handle_peer_open(&mut self, peer: IpAddr, open: u64, uid: u32, wish: &RegionWish) {
        match self.check_peer_open(peer, open, uid, wish) {
            Ok(region) => {
                self.peers.entry(peer).or_default().insert(open, RemoteHandle { region, access: wish.access });
                let Some(entry) = self.entries.get_mut(&region) else { return };
                *entry.remote.entry(peer).or_insert(0) += 1;
                let register = !std::mem::replace(&mut entry.is_registered, true);
                let epoch = entry.epoch;
                self.actions.push_back(DirectoryAction::Grant { region, epoch, register, peer, open });
            }
            Err(why) => self.tell(peer, RegionMessage::Opened { open, result: Err(why) }),
        }
    }

    fn check_peer_open(&self, peer: IpAddr, open: u64, uid: u32, wish: &RegionWish) -> Result<u64, RegionRefusal> {
        // Programs of this host are counted by `check_open`; one of another host has no number here.
        let party = Party { client: crate::ClientId(u64::MAX), pid: 0, uid };
        let region = self.check_open(party, wish)?;
        let of_peer = self.peers.get(&peer);
        if of_peer.is_some_and(|held| held.contains_key(&open) || held.len() >= HANDLES_PER_PEER_MAX as usize) {
            return Err(too_many("handles of that host", HANDLES_PER_PEER_MAX));
        }
        let is_live = self.entries.get(&region).is_some_and(|entry| matches!(entry.stage, Stage::Live));
        if is_live { Ok(region) } else { Err(RegionRefusal::Busy) }
    }

    /// The engine's answer to [`DirectoryAction::Grant`].
    pub fn on_granted(&mut self, peer: IpAddr, open: u64, result: Result<RegionGrant, RegionRefusal>) {
        let Some(handle) = self.peers.get(&peer).and_then(|held| held.get(&open)).copied() else {
            // The peer gave it up, or the region was revoked meanwhile; then the peer was told, or will be.
            if let Ok(grant) = result {
                self.ungrant_if_last(grant.region, peer);
                let why = RegionRefusal::Revoked { held: grant.epoch, current: grant.epoch + 1 };
                self.tell(peer, RegionMessage::Opened { open, result: Err(why) });
            }
            return;
        };
        if result.is_err() {
            self.handle_peer_closed(peer, open);
        }
        let result = result.map(|grant| RegionGrant { access: handle.access, ..grant });
        self.tell(peer, RegionMessage::Opened { open, result });
    }

    fn handle_peer_closed(&mut self, peer: IpAddr, open: u64) {
        let Some(held) = self.peers.get_mut(&peer) else { return };
        let Some(handle) = held.remove(&open) else { return };
        if held.is_empty() {
            self.peers.remove(&peer);
        }
        if let Some(entry) = self.entries.get_mut(&handle.region)
            && let Some(count) = entry.remote.get_mut(&peer)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                entry.remote.remove(&peer);
            }
        }
        self.ungrant_if_last(handle.region, peer);
    }

    fn ungrant_if_last(&mut self, region: u64, peer: IpAddr) {
        let has_more = self.entries.get(&region).is_some_and(|entry| entry.remote.contains_key(&peer));
        if !has_more {
            self.actions.push_back(DirectoryAction::Ungrant { region, peer });
        }
    }

    /// All peers that have a region open must stop. None has: it is done already.
    pub(super) fn stop_peers(&mut self, region: u64, epoch: u64, peers: &BTreeSet<IpAddr>, why: &RegionRefusal) {
        for &peer in peers {
            if let Some(held) = self.peers.get_mut(&peer) {
                held.retain(|_, handle| handle.region != region);
                if held.is_empty() {
                    self.peers.remove(&peer);
                }
            }
            self.tell(peer, RegionMessage::Stop { region, epoch, why: why.clone() });
        }
    }

    /// A region ended that was registered.
    pub(super) fn end_registered(&mut self, region: u64, epoch: u64, peers: BTreeSet<IpAddr>, why: &RegionRefusal) {
        self.stop_peers(region, epoch, &peers, why);
        let deadline = self.now + self.config.answer;
        self.ending.insert(region, Ending { epoch, peers, deadline });
        self.go_on_ending(region);
    }

    fn go_on_ending(&mut self, region: u64) {
        if let Some(Ending { epoch, .. }) = self.ending.get(&region).filter(|ending| ending.peers.is_empty()) {
            self.actions.push_back(DirectoryAction::Deregister { region, epoch: *epoch });
            self.ending.remove(&region);
        }
    }

    fn handle_stopped(&mut self, now: Time, peer: IpAddr, region: u64, epoch: u64) {
        self.now = now;
        if let Some(ending) = self.ending.get_mut(&region).filter(|ending| ending.epoch == epoch) {
            ending.peers.remove(&peer);
            self.go_on_ending(region);
        } else if self.entries.get(&region).is_some_and(|entry| entry.epoch == epoch) {
            self.on_peer_stopped(region, peer);
        }
    }

    /// The link or the lane to a peer is gone, and the engine knows: nothing of it can land any more.
    pub fn handle_peer_gone(&mut self, now: Time, peer: IpAddr) {
        self.now = now;
        self.peers.remove(&peer);
        let regions: Vec<u64> = self.entries.keys().copied().collect();
        for region in regions {
            if let Some(entry) = self.entries.get_mut(&region) {
                entry.remote.remove(&peer);
            }
            self.on_peer_stopped(region, peer);
        }
        let ending: Vec<u64> = self.ending.keys().copied().collect();
        for region in ending {
            if let Some(ending) = self.ending.get_mut(&region) {
                ending.peers.remove(&peer);
            }
            self.go_on_ending(region);
        }
    }

    /// Peers that did not stop in time lose their links, and with them their lanes.
    pub(super) fn drop_late_peers(&mut self, now: Time) {
        let late = self.ending.values().filter(|ending| ending.deadline <= now);
        let mut peers: BTreeSet<IpAddr> = late.flat_map(|ending| ending.peers.iter().copied()).collect();
        for (region, _) in self.moving.iter().filter(|(_, at)| **at <= now) {
            if let Some(Stage::Revoking(revoke)) = self.entries.get(region).map(|entry| &entry.stage) {
                peers.extend(revoke.stopping());
            }
        }
        for ending in self.ending.values_mut().filter(|ending| ending.deadline <= now) {
            // Until the end of the link is known.
            ending.deadline = now + self.config.answer;
        }
        self.actions.extend(peers.into_iter().map(|peer| DirectoryAction::DropPeer { peer }));
    }

    /// A program of another host wrote, and its engine wants the owner told.
    pub fn on_remote_notification(&mut self, region: u64, tag: u32) {
        match self.entries.get_mut(&region).filter(|entry| entry.owner.is_some()) {
            // The engine bounds how many of these there are.
            Some(entry) => {
                entry.tags.push_back((tag, true));
                self.pump_tags(region);
            }
            None => self.actions.push_back(DirectoryAction::NotificationsTaken { region, count: 1 }),
        }
    }

    fn tell(&mut self, peer: IpAddr, message: RegionMessage) {
        self.actions.push_back(DirectoryAction::Tell { peer, message });
    }
}
