//! Handles that programs of other hosts have to regions of this one.
//!
//! Owns which peer has which region open, and when a registration may be given up: after each peer has said that
//! nothing of it is in flight, or its lane is gone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use control::{Reason, RegionAccess, RegionGrant, RegionMessage, RegionRefusal};
use verbs::Time;

use super::handles::Writer;
use super::{Directory, DirectoryAction, Entry, Lessee, RegionWish, Stage, TakeOver, too_many};
use crate::user_places::give_back;
use crate::{Party, RegionCommand};

/// Handles of one peer's programs to regions of this host, at most.
pub(crate) const HANDLES_PER_PEER_MAX: u32 = 65_536;

/// A handle of a program of another host.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteHandle {
    pub(super) region: u64,
    pub(super) access: RegionAccess,
    /// By which it was opened.
    pub(super) lease: Option<u64>,
    /// Its leased lane, which it may share with other handles of its program.
    pub(super) lane: Option<u32>,
    /// The term of the last take-over before it.
    pub(super) last_term: u64,
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
    pub(crate) fn handle_peer(&mut self, now: Time, peer: IpAddr, message: &RegionMessage) -> bool {
        match message {
            RegionMessage::Open { open, uid, name, key, access, lease, lane } => {
                let wish = RegionWish { name: name.clone(), key: *key, access: *access, lease: *lease };
                self.handle_peer_open(peer, (*open, *lane), *uid, &wish);
            }
            RegionMessage::TakeOver { open, uid, name, key, lane, term } => {
                let wish = TakeOver { name: name.clone(), key: *key, term: *term };
                self.handle_peer_take_over(peer, (*open, *lane), *uid, &wish);
            }
            RegionMessage::Closed { open } => self.handle_peer_closed(peer, *open),
            RegionMessage::Stopped { region, epoch } => self.handle_stopped(now, peer, *region, *epoch),
            RegionMessage::LoansBack { lease, key, loans } => {
                self.handle_loans_back(Lessee::Host(peer), *lease, key, *loans);
            }
            RegionMessage::Opened { .. } | RegionMessage::Stop { .. } | RegionMessage::Superseded { .. } => {
                return false;
            }
        }
        true
    }

    fn handle_peer_open(&mut self, peer: IpAddr, (open, lane): (u64, Option<u32>), uid: u32, wish: &RegionWish) {
        let checked = self.check_peer_open(peer, open, uid, wish);
        match checked.and_then(|region| self.check_lane(peer, lane, None).map(|()| region)) {
            Ok(region) => {
                let last_term = self.entries.get(&region).map_or(0, |entry| entry.term);
                let handle = RemoteHandle { region, access: wish.access, lease: wish.lease, lane, last_term };
                self.join_lane(peer, lane);
                self.grant(peer, open, handle, None);
            }
            Err(why) => self.tell(peer, RegionMessage::Opened { open, result: Err(why) }),
        }
    }

    /// Lets a peer, whose handle [has its lane](Self::join_lane), reach a region: as its `writer` with a registration of its
    /// own, or as all others do.
    pub(super) fn grant(&mut self, peer: IpAddr, open: u64, handle: RemoteHandle, writer: Option<RegionAccess>) {
        let RemoteHandle { region, lease, lane, .. } = handle;
        self.peers.entry(peer).or_default().insert(open, handle);
        let Some(entry) = self.entries.get_mut(&region) else { return };
        entry.open_by_lease(lease);
        *entry.remote.entry(peer).or_insert(0) += 1;
        let register = (!std::mem::replace(&mut entry.is_registered, true)).then_some(entry.opened_access());
        let epoch = entry.epoch;
        let grant = RegionCommand::Grant { region, epoch, register, writer, peer, open, lane };
        self.actions.push_back(DirectoryAction::Engine(grant));
    }

    /// Whether a peer's handle may have a leased lane, if it wants one. That of the writer of `taken` ends, if it is for
    /// nothing else.
    pub(super) fn check_lane(&self, peer: IpAddr, lane: Option<u32>, taken: Option<u64>) -> Result<(), RegionRefusal> {
        let is_new = |lane: &u32| !self.lanes.contains_key(&(peer, *lane));
        if lane.filter(is_new).is_none() {
            return Ok(());
        }
        let of_writer = taken.and_then(|region| match self.entries.get(&region)?.writer? {
            Writer::Far { peer, open } => Some((peer, self.peers.get(&peer)?.get(&open)?.lane?)),
            Writer::Here { .. } => None,
        });
        let ends = of_writer.is_some_and(|lane| self.lanes.get(&lane) == Some(&1));
        if self.lanes.len() - usize::from(ends) >= self.config.leased_lanes_max as usize {
            return Err(too_many("leased lanes to regions of that host", self.config.leased_lanes_max));
        }
        Ok(())
    }

    /// Peers that use a region over the shared lane: nothing but their word says when that has ended.
    pub(super) fn sharers(&self, region: u64, peers: impl IntoIterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
        let shares = |handle: &RemoteHandle| handle.region == region && handle.lane.is_none();
        let is_sharer = |peer: &IpAddr| self.peers.get(peer).is_some_and(|held| held.values().any(shares));
        peers.into_iter().filter(is_sharer).collect()
    }

    /// A handle has this leased lane, if it has one.
    pub(super) fn join_lane(&mut self, peer: IpAddr, lane: Option<u32>) {
        lane.into_iter().for_each(|lane| *self.lanes.entry((peer, lane)).or_default() += 1);
    }

    /// A handle has its leased lane, if it has one, no more. One that no other handle has ends.
    fn leave_lane(&mut self, peer: IpAddr, lane: Option<u32>, reason: Reason) {
        let Some(lane) = lane else { return };
        give_back(&mut self.lanes, (peer, lane));
        if !self.lanes.contains_key(&(peer, lane)) {
            self.actions.push_back(DirectoryAction::Engine(RegionCommand::EndLane { peer, lane, reason }));
        }
    }

    fn check_peer_open(&self, peer: IpAddr, open: u64, uid: u32, wish: &RegionWish) -> Result<u64, RegionRefusal> {
        // Programs of this host are counted by `check_open`; one of another host has no number here.
        let party = Party { client: crate::ClientId(u64::MAX), pid: 0, uid };
        let region = self.check_open(party, Lessee::Host(peer), wish)?;
        self.check_peer_handle(peer, open)?;
        let is_live = self.entries.get(&region).is_some_and(|entry| matches!(entry.stage, Stage::Live));
        if is_live { Ok(region) } else { Err(RegionRefusal::Busy) }
    }

    /// Whether a peer may have one more handle, by this number.
    pub(super) fn check_peer_handle(&self, peer: IpAddr, open: u64) -> Result<(), RegionRefusal> {
        let of_peer = self.peers.get(&peer);
        if of_peer.is_some_and(|held| held.contains_key(&open) || held.len() >= HANDLES_PER_PEER_MAX as usize) {
            return Err(too_many("handles of that host", HANDLES_PER_PEER_MAX));
        }
        Ok(())
    }

    /// The engine could not register a region as [`RegionCommand::Grant`] said: the next grant tries again.
    pub(crate) fn on_not_registered(&mut self, region: u64) {
        if let Some(entry) = self.entries.get_mut(&region) {
            entry.is_registered = false;
        }
    }

    /// The engine's answer to [`RegionCommand::Grant`].
    pub(crate) fn on_granted(&mut self, peer: IpAddr, open: u64, result: Result<RegionGrant, RegionRefusal>) {
        let Some(handle) = self.peers.get(&peer).and_then(|held| held.get(&open)).copied() else {
            // The peer gave it up, or the region was revoked meanwhile. The peer does not know yet of which region it
            // is, so this alone is an answer to it.
            let why = result.map_or_else(std::convert::identity, |grant| {
                self.ungrant_if_last(grant.region, peer);
                match self.entries.get(&grant.region).filter(|entry| entry.epoch == grant.epoch) {
                    Some(&Entry { term, .. }) if term > 0 => RegionRefusal::Superseded { term },
                    _ => RegionRefusal::Revoked { held: grant.epoch, current: grant.epoch + 1 },
                }
            });
            return self.tell(peer, RegionMessage::Opened { open, result: Err(why) });
        };
        if result.is_err() {
            self.handle_peer_closed(peer, open);
        }
        let line = self.entries.get(&handle.region).map(|entry| entry.line);
        let result = result.and_then(|grant| {
            let line = line.ok_or(RegionRefusal::Unknown)?;
            Ok((RegionGrant { access: handle.access, last_term: handle.last_term, ..grant }, line))
        });
        self.tell(peer, RegionMessage::Opened { open, result });
    }

    fn handle_peer_closed(&mut self, peer: IpAddr, open: u64) {
        self.close_peer_handle(peer, open, Reason::Closed);
    }

    /// A handle of a peer's is over, and its lane, if it alone has one, ends.
    pub(super) fn close_peer_handle(&mut self, peer: IpAddr, open: u64, reason: Reason) {
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
        self.leave_lane(peer, handle.lane, reason);
        self.forget_far_writer(handle.region, peer, open);
        if let Some(lease) = handle.lease {
            self.close_by_lease(handle.region, lease);
        }
    }

    fn ungrant_if_last(&mut self, region: u64, peer: IpAddr) {
        let has_more = self.entries.get(&region).is_some_and(|entry| entry.remote.contains_key(&peer));
        if !has_more {
            self.actions.push_back(DirectoryAction::Engine(RegionCommand::Ungrant { region, peer }));
        }
    }

    /// All peers that have a region open must stop. None has: it is done already. Leased lanes end at once, whatever the
    /// peer does.
    pub(super) fn stop_peers(&mut self, region: u64, epoch: u64, peers: &BTreeSet<IpAddr>, why: &RegionRefusal) {
        for &peer in peers {
            let (mut leases, mut lanes) = (Vec::new(), Vec::new());
            if let Some(held) = self.peers.get_mut(&peer) {
                for handle in held.values().filter(|handle| handle.region == region) {
                    leases.extend(handle.lease);
                    lanes.push(handle.lane);
                }
                held.retain(|_, handle| handle.region != region);
                if held.is_empty() {
                    self.peers.remove(&peer);
                }
            }
            leases.into_iter().for_each(|lease| self.close_by_lease(region, lease));
            let is_writer =
                |entry: &&mut Entry| matches!(entry.writer, Some(Writer::Far { peer: of, .. }) if of == peer);
            let writes = self.entries.get_mut(&region).filter(is_writer).map(|entry| entry.writer = None).is_some();
            // The peer hears why before its lane ends.
            self.tell(peer, RegionMessage::Stop { region, epoch, why: why.clone() });
            lanes.into_iter().for_each(|lane| self.leave_lane(peer, lane, Reason::LaneRevoked));
            // Its lane may be there for other regions, so its registration goes at once.
            if writes {
                self.fence(region);
            }
        }
    }

    /// A region ended that was registered.
    pub(super) fn end_registered(&mut self, region: u64, epoch: u64, peers: BTreeSet<IpAddr>, why: &RegionRefusal) {
        let sharers = self.sharers(region, peers.iter().copied());
        self.stop_peers(region, epoch, &peers, why);
        let peers = sharers;
        let deadline = self.now + self.config.answer;
        self.ending.insert(region, Ending { epoch, peers, deadline });
        self.go_on_ending(region);
    }

    fn go_on_ending(&mut self, region: u64) {
        if let Some(Ending { epoch, .. }) = self.ending.get(&region).filter(|ending| ending.peers.is_empty()) {
            self.actions.push_back(DirectoryAction::Engine(RegionCommand::Deregister { region, epoch: *epoch }));
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
    pub(crate) fn handle_peer_gone(&mut self, now: Time, peer: IpAddr) {
        self.now = now;
        let held = self.peers.remove(&peer).unwrap_or_default();
        for (open, RemoteHandle { region, lease, lane, .. }) in held {
            self.forget_far_writer(region, peer, open);
            lease.into_iter().for_each(|lease| self.close_by_lease(region, lease));
            self.leave_lane(peer, lane, Reason::PeerLost);
        }
        self.end_leases_to(peer);
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

    pub(super) fn tell(&mut self, peer: IpAddr, message: RegionMessage) {
        self.actions.push_back(DirectoryAction::Tell { peer, message });
    }
}
