//! Programs that use regions of other hosts, the regions themselves, and revokes.
//!
//! The daemons' directory is one table here: what it says comes to both hosts at once, and only while the lane between
//! them is up at both ends. It must never let a revoke end before every host that had the region open has said that
//! nothing of it is in flight, or has lost its lane.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::{Reason, RegionAccess};
use engine::{AppId, Attach, LaneAt, OperationsOpen, TenantPlace};
use rand::RngExt;
use rand::rngs::StdRng;
use shm::{Session, SessionShape};
use verbs::Region;

use super::{Event, World};
use crate::address::{At, address, is_shared};
use crate::host::Driven;
use crate::user::{Opened, User, WORDS};

/// Bytes of a region.
const REGION_BYTES: usize = 4096;
/// Longest pause between two looks of a program.
const GAP_MAX: Duration = Duration::from_millis(20);
/// Slots of a program's session.
const SLOTS: u32 = 64;
/// Numbers of their queues, beyond those that the control plane gives.
const QUEUES: u64 = 1 << 40;
/// Their number as a user.
const UID: u32 = 1;

/// A region, as its host's daemon knows it.
#[derive(Debug)]
struct Place {
    number: u64,
    memory: Region,
    /// Hosts that have it open, and in which of their lives they opened it.
    peers: BTreeMap<usize, u32>,
    /// Leased lanes by which it is open, by host and handle there.
    leased: BTreeMap<(usize, u32), u32>,
    is_revoked: bool,
}

/// What was in a region when its revoke ended.
#[derive(Debug)]
struct Left {
    number: u64,
    memory: Region,
    words: Vec<u64>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Users {
    rng: StdRng,
    next_region: u64,
    places: BTreeMap<usize, Place>,
    left: Vec<Left>,
    /// By plan.
    live: BTreeMap<usize, User>,
    done: BTreeMap<usize, u32>,
    is_over: bool,
}

impl Users {
    pub(super) fn new(rng: StdRng) -> Self {
        let (places, live, done) = Default::default();
        Self { rng, next_region: 1, places, left: Vec::new(), live, done, is_over: false }
    }
}

fn words(memory: &Region) -> Vec<u64> {
    (0..WORDS).filter_map(|w| Some(memory.word64(w * 8).ok()?.load(std::sync::atomic::Ordering::SeqCst))).collect()
}

/// The engine of a host that has the regions and the operations: the first.
const fn of_regions(host: usize) -> At {
    At { host, engine: 0 }
}

impl World {
    fn region_engine(&mut self, host: usize) -> Option<&mut Driven> {
        self.driven(of_regions(host))
    }

    /// A host starts: its region is there, and its programs come.
    pub(super) fn start_users(&mut self, host: usize) {
        if self.plan.users.is_empty() || self.users.is_over {
            return;
        }
        self.make_region(host);
        let life = self.life(host);
        for user in 0..self.plan.users.len() {
            if self.plan.users[user].host == host {
                let at = self.now.max(self.plan.users[user].start);
                self.queue.push(at, Event::User { host, life, user });
            }
        }
    }

    fn make_region(&mut self, host: usize) {
        let number = self.users.next_region;
        self.users.next_region += 1;
        let Ok(memory) = Region::anonymous(REGION_BYTES) else { return };
        let Some(driven) = self.region_engine(host) else { return };
        let made = driven.engine.register_region(&mut driven.tap, number, number, memory.clone(), RegionAccess::ALL);
        if let Err(error) = made {
            return self.checks.fail(self.now, "set-up", format!("region {number} of host {host}: {error}"));
        }
        self.users
            .places
            .insert(host, Place { number, memory, peers: BTreeMap::new(), leased: BTreeMap::new(), is_revoked: false });
    }

    /// A host is dead: its region and its programs are gone.
    pub(super) fn end_users(&mut self, host: usize) {
        self.users.places.remove(&host);
        let plans = &self.plan.users;
        let done = &mut self.users.done;
        self.users.live.retain(|user, live| {
            let stays = plans[*user].host != host;
            if !stays {
                done.insert(*user, live.done);
            }
            stays
        });
    }

    // ---- a program

    pub(super) fn on_user(&mut self, host: usize, life: u32, user: usize) {
        if self.life(host) != life || self.up(host).is_none() || self.users.is_over {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::User { host, life, user });
        }
        if !self.users.live.contains_key(&user) {
            self.attach_user(host, user);
        }
        let Some(mut live) = self.users.live.remove(&user) else { return };
        let plan = self.plan.users[user].clone();
        let mut has_news = live.collect(&mut self.checks.histories).unwrap_or_else(|what| {
            self.checks.fail(self.now, "operations", format!("program {user} on host {host}: {what}"));
            false
        });
        let may_go_on = !self.quiet;
        if live.opened.is_none() && live.has_queue() && may_go_on {
            live.opened = self.open_for(host, live.app, plan.is_leased);
        }
        for handle in std::mem::take(&mut live.over) {
            if let Some(driven) = self.region_engine(host) {
                driven.engine.close_region(live.app, handle);
            }
        }
        let count = if may_go_on { plan.count } else { 0 };
        has_news |= live.submit(plan.depth, count, &mut self.users.rng, &mut self.checks.histories);
        if has_news {
            // Also because room was made.
            live.ring();
            self.wake_engine(of_regions(host));
        }
        live.idle_looks = if has_news { 0 } else { live.idle_looks + 1 };
        let (looks, is_done) = (live.idle_looks, live.in_flight() == 0 && live.done >= count);
        let dies = may_go_on && plan.dies_after.is_some_and(|after| live.done >= after && live.in_flight() > 0);
        if dies {
            self.users.done.insert(user, live.done);
            let now = self.now;
            if let Some(driven) = self.region_engine(host) {
                driven.engine.detach(now, &mut driven.tap, live.app, Reason::PeerAppDied);
            }
            self.plan.users[user].dies_after = None;
            self.after_command(of_regions(host));
        } else {
            self.users.live.insert(user, live);
        }
        if is_done && !dies {
            return;
        }
        // A program whose host or peer stands still looks more and more rarely.
        let gap = 1 + self.users.rng.random_range(0..=plan.gap_max.as_nanos() as u64);
        let gap = Duration::from_nanos(gap << looks.min(10)).min(GAP_MAX);
        self.queue.push(self.now + gap, Event::User { host, life, user });
    }

    fn attach_user(&mut self, host: usize, user: usize) {
        let now = self.now;
        let done = self.users.done.get(&user).copied().unwrap_or(0);
        let Some(driven) = self.region_engine(host) else { return };
        let shape = SessionShape::for_engines(1, SLOTS);
        let session = Region::anonymous(Session::bytes(shape) as usize).ok();
        let Some(session) = session.and_then(|region| Session::format(region, shape, 1).ok()) else { return };
        let attach = Attach {
            pid: 1,
            uid: UID,
            name: format!("user{user}"),
            session: session.clone(),
            connect_to: None,
            tenant: TenantPlace::default(),
        };
        // The table may be full of those that died.
        let Ok(app) = driven.engine.attach(attach) else { return };
        driven.engine.open_operations(app, 1, OperationsOpen { queue: QUEUES + user as u64, ring_bytes: 4096 });
        self.trace.note(now, "program {} on {} uses regions", &[user as u64, host as u64]);
        let mut made = User::new(app, session);
        made.done = done;
        self.users.live.insert(user, made);
        self.after_command(of_regions(host));
    }

    /// Opens the region of another host, if both ends of the lane say that it is up.
    fn open_for(&mut self, host: usize, app: AppId, is_leased: bool) -> Option<Opened> {
        let owner = self.users.rng.random_range(0..self.hosts.len());
        let number = self.users.places.get(&owner).filter(|p| !p.is_revoked && owner != host)?.number;
        if !self.is_joined(host, owner) || self.paused(owner).is_some() {
            return None;
        }
        let lane = match is_leased {
            true => Some(self.up(host)?.control.peers.lane_number(address(owner))?),
            false => None,
        };
        let driven = self.region_engine(owner)?;
        if lane.is_some_and(|lane| !driven.engine.expect_leased_lane(address(host), lane)) {
            return None;
        }
        let grant = driven.engine.grant_region(&mut driven.tap, number, address(host))?;
        let driven = self.region_engine(host)?;
        let at = LaneAt { peer: address(owner), leased: lane };
        let handle = driven.engine.open_region(&mut driven.tap, app, at, grant);
        let life = self.life(host);
        let place = self.users.places.get_mut(&owner)?;
        match (handle, lane) {
            (Ok(_), None) => {
                place.peers.insert(host, life);
            }
            (Ok(handle), Some(lane)) => {
                place.leased.insert((host, handle), lane);
            }
            (Err(_), _) => {
                self.end_lane(owner, host, lane, Reason::Closed);
                return None;
            }
        }
        self.after_command(of_regions(host));
        Some(Opened { handle: handle.ok()?, region: number, epoch: grant.epoch, is_leased })
    }

    /// The owner's engine gives a leased lane up, if there is one.
    fn end_lane(&mut self, owner: usize, host: usize, lane: Option<u32>, reason: Reason) {
        let now = self.now;
        if let (Some(driven), Some(lane)) = (self.region_engine(owner), lane) {
            driven.tap.now = now;
            driven.engine.end_leased_lane(now, &mut driven.tap, LaneAt::new(address(host), lane), reason);
            self.after_command(of_regions(owner));
        }
    }

    /// The owner's daemon hears that a handle of another host is closed.
    fn on_handle_closed(&mut self, owner: usize, host: usize, handle: u32) {
        let Some(place) = self.users.places.get_mut(&owner) else { return };
        let Some(lane) = place.leased.remove(&(host, handle)) else { return };
        self.end_lane(owner, host, Some(lane), Reason::Closed);
        self.ungrant_if_last(owner, host);
    }

    fn ungrant_if_last(&mut self, owner: usize, host: usize) {
        let Some(place) = self.users.places.get(&owner) else { return };
        let number = place.number;
        let has_more = place.peers.contains_key(&host) || place.leased.keys().any(|(of, _)| *of == host);
        if let Some(driven) = self.region_engine(owner).filter(|_| !has_more) {
            driven.engine.ungrant_region(number, address(host));
        }
    }

    fn is_joined(&self, a: usize, b: usize) -> bool {
        let row = |at: usize, to: usize| {
            let engine = &self.hosts[at].running.as_ref()?.engines.first()?.engine;
            engine.lanes().into_iter().find(|l| is_shared(l) && l.peer.ip() == address(to) && l.state == "up")
        };
        let (Some(a), Some(b)) = (row(a, b), row(b, a)) else { return false };
        a.qpn.is_some() && a.peer_qpn == b.qpn && b.peer_qpn == a.qpn
    }

    // ---- what the engine says

    /// Whether an event is about one of these programs, or a region.
    pub(super) fn on_user_event(&mut self, at: At, event: &engine::Event) -> bool {
        let host = at.host;
        if at != of_regions(host) {
            return false;
        }
        let of = |users: &Users, app: AppId, plans: &[crate::plan::UserPlan]| {
            users.live.iter().find(|(user, u)| u.app == app && plans[**user].host == host).map(|(user, _)| *user)
        };
        let is_process = |world: &mut Self, app: &AppId| world.driven(at).is_some_and(|d| d.uids.contains_key(app));
        match event {
            engine::Event::ChunksWanted { app, .. }
            | engine::Event::Connected { app, .. }
            | engine::Event::SocketOver { app, .. }
            | engine::Event::AppGone { app }
            | engine::Event::ChunkGone { app, .. }
                if is_process(self, app) =>
            {
                return false;
            }
            engine::Event::ChunksWanted { app, size, rings } => {
                let user = of(&self.users, *app, &self.plan.users);
                let bytes = size.grown as usize * *rings as usize;
                let (Ok(tx), Ok(rx)) = (Region::anonymous(bytes), Region::anonymous(bytes)) else { return true };
                let Some(running) = self.up(host) else { return true };
                let first = running.next_chunk;
                running.next_chunk += 2;
                let Some(driven) = running.engine(at.engine) else { return true };
                let (engine, tap) = (&mut driven.engine, &mut driven.tap);
                let _ = engine.add_chunk(tap, *app, first + 1, control::ChunkKind::Rx, *size, rx.clone());
                let _ = engine.add_chunk(tap, *app, first, control::ChunkKind::Tx, *size, tx.clone());
                if let Some(user) = user.and_then(|user| self.users.live.get_mut(&user)) {
                    user.chunks.extend([(first, tx), (first + 1, rx)]);
                }
                self.after_command(of_regions(host));
            }
            engine::Event::Connected { app, result, .. } => {
                let user = of(&self.users, *app, &self.plan.users);
                if let (Some(user), Ok(connection)) = (user.and_then(|u| self.users.live.get_mut(&u)), result) {
                    let _ = user.on_queue(connection);
                }
            }
            engine::Event::SocketOver { .. } | engine::Event::AppGone { .. } | engine::Event::ChunkGone { .. } => {}
            engine::Event::RegionClosed { peer, handle, .. } => {
                if let Some(owner) = self.host_at(*peer) {
                    self.on_handle_closed(owner, host, *handle);
                }
            }
            engine::Event::RegionStopped { peer, region, .. } => {
                // Without a link the word does not get to the owner, who has what the host sent unread perhaps, and
                // learns of the end by its own lane's.
                if let Some(owner) = self.host_at(*peer)
                    && self.has_link(host, owner)
                {
                    self.on_let_go(owner, host, Some(*region));
                }
            }
            _ => return false,
        }
        true
    }

    fn has_link(&mut self, host: usize, other: usize) -> bool {
        let links = self.up(host).map(|running| running.control.links.values());
        links.is_some_and(|mut links| links.any(|link| link.peer == other && link.seal.is_some()))
    }

    /// A host lost its lane to another one, which had regions open over it.
    pub(super) fn on_region_lane_lost(&mut self, at: At, other: usize) {
        if at != of_regions(at.host) {
            return;
        }
        self.end_leases(at.host, |host| host == other, Reason::PeerLost);
        self.on_let_go(at.host, other, None);
    }

    /// Leased lanes to a region end at once, whatever their holders do.
    fn end_leases(&mut self, owner: usize, which: impl Fn(usize) -> bool, reason: Reason) {
        let Some(place) = self.users.places.get_mut(&owner) else { return };
        let all = std::mem::take(&mut place.leased).into_iter();
        let (ended, kept): (Vec<_>, Vec<_>) = all.partition(|((host, _), _)| which(*host));
        place.leased = kept.into_iter().collect();
        for ((host, _), lane) in ended {
            self.end_lane(owner, host, Some(lane), reason);
            self.ungrant_if_last(owner, host);
        }
    }

    /// A host has a region of another one open no more, or none of them (`None`).
    fn on_let_go(&mut self, owner: usize, host: usize, region: Option<u64>) {
        let Some(place) = self.users.places.get_mut(&owner) else { return };
        if region.is_some_and(|region| region != place.number) || place.peers.remove(&host).is_none() {
            return;
        }
        self.ungrant_if_last(owner, host);
        self.settle_revoke(owner);
    }

    // ---- revokes

    /// The owner takes its region back, and makes another one when that is done.
    pub(super) fn revoke(&mut self, owner: usize) {
        let Some(place) = self.users.places.get_mut(&owner).filter(|p| !p.is_revoked) else { return };
        place.is_revoked = true;
        let (number, peers) = (place.number, place.peers.keys().copied().collect::<Vec<_>>());
        let holders: BTreeSet<usize> = place.leased.keys().map(|(host, _)| *host).collect();
        self.trace.note(self.now, "host {} revokes region {}", &[owner as u64, number]);
        for peer in peers {
            self.on_stop(peer, owner, number);
        }
        for holder in holders {
            // One that stands still learns it by the end of its lane.
            let is_still = self.paused(holder).is_some();
            if let Some(driven) = self.region_engine(holder).filter(|_| !is_still) {
                driven.engine.stop_region(address(owner), number, number);
                self.after_command(of_regions(holder));
            }
        }
        self.end_leases(owner, |_| true, Reason::LaneRevoked);
        self.settle_revoke(owner);
    }

    /// A host hears that a region is revoked.
    pub(super) fn on_stop(&mut self, host: usize, owner: usize, number: u64) {
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::Stop { host, owner, number });
        }
        let opened_in = self.users.places.get(&owner).and_then(|place| place.peers.get(&host));
        if opened_in != Some(&self.life(host)) {
            // Nobody answers for a daemon that died: the loss of its lane does.
            return;
        }
        if let Some(driven) = self.region_engine(host) {
            driven.engine.stop_region(address(owner), number, number);
            self.after_command(of_regions(host));
        }
    }

    fn settle_revoke(&mut self, owner: usize) {
        let is_done = self.users.places.get(&owner).is_some_and(|p| p.is_revoked && p.peers.is_empty());
        let Some(place) = is_done.then(|| self.users.places.remove(&owner)).flatten() else { return };
        if let Some(driven) = self.region_engine(owner) {
            driven.engine.deregister_region(&mut driven.tap, place.number, place.number);
        }
        self.see(&place);
        let Place { number, memory, .. } = place;
        self.trace.note(self.now, "region {} of host {} is revoked", &[number, owner as u64]);
        self.users.left.push(Left { number, words: words(&memory), memory });
        if !self.users.is_over {
            self.make_region(owner);
        }
        self.after_command(of_regions(owner));
    }

    fn see(&mut self, place: &Place) {
        for (word, value) in words(&place.memory).into_iter().enumerate() {
            self.checks.histories.on_seen(place.number, word as u64, value);
        }
    }

    // ---- the end

    /// Whether no program waits for an operation.
    pub(super) fn users_idle(&self) -> bool {
        self.users.live.values().all(|user| user.in_flight() == 0)
    }

    /// Operations that programs wait for.
    pub(super) fn users_left(&self) -> usize {
        self.users.live.values().map(User::in_flight).sum()
    }

    /// The programs end, and the owners take their regions back: from hosts that answer, or whose lane is lost.
    pub(super) fn finish_users(&mut self) {
        self.users.is_over = true;
        let now = self.now;
        for (user, live) in std::mem::take(&mut self.users.live) {
            let host = self.plan.users[user].host;
            if let Some(driven) = self.region_engine(host) {
                driven.engine.detach(now, &mut driven.tap, live.app, Reason::PeerAppDied);
                self.after_command(of_regions(host));
            }
        }
        for owner in self.users.places.keys().copied().collect::<Vec<_>>() {
            self.revoke(owner);
        }
    }

    /// All regions are back: nothing was written to them since, and their histories are judged.
    pub(super) fn judge_users(&mut self) {
        for (owner, place) in std::mem::take(&mut self.users.places) {
            let detail = format!("region {} of host {owner}: hosts {:?} still have it open", place.number, place.peers);
            self.checks.fail(self.now, "liveness", detail);
        }
        for left in std::mem::take(&mut self.users.left) {
            let found = words(&left.memory);
            if found != left.words {
                let detail = format!("region {}: {:?} when its revoke ended, {found:?} later", left.number, left.words);
                self.checks.fail(self.now, "late access", detail);
            }
        }
        for wrong in self.checks.histories.judge() {
            self.checks.fail(self.now, "linearizability", wrong);
        }
    }
}
