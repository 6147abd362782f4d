//! The owners of regions: on each host a program that makes one, uses it, moves it when it is revoked, and brings it to
//! the next daemon (docs/operate/restart.md). What it does with its memory and with the daemons' answers the client core decides.
//!
//! Owns the order in which an owner does things, as the client library's threads have it, and how long each takes.

mod leases;
mod near;

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{OpenedRegion, RegionKey, RegionPath, RegionRefusal, Reply, Request};
use histories::Act;
use plane::ClientId;
use raas_core::{NewRegion, RegionBrought, RegionKnown, RegionMade, RegionPlace, RegionReturn};
use rand::{Rng, RngExt};
use shm::AtomicOp;
use verbs::{Region, Time};

use super::event::OwnerStep;
use super::{Event, World};
use crate::regions::{NAME, REGION_BYTES, Shared, UID, region_spec};
use crate::user::WORDS;
pub(super) use leases::Lent;
pub(super) use near::Near;

/// Longest time until an owner copies its region; one of a few is slow.
const COPY_MAX: Duration = Duration::from_millis(3);
const SLOW_COPY_MAX: Duration = Duration::from_millis(400);
const COPIES_PER_SLOW: u32 = 5;
/// Until an owner asks again that was told to wait.
const AGAIN: Duration = Duration::from_millis(1);
/// Of so many regions that are to be revoked, one is given up by its owner, which makes another one.
const REVOKES_PER_END: u32 = 4;
/// Longest time between two accesses of an owner to its memory, and how many there are.
const TOUCH_GAP_MAX: Duration = Duration::from_millis(20);
const TOUCHES: u32 = 60;

/// What was in memory when its owner had left it.
#[derive(Debug)]
pub(super) struct Left {
    region: u64,
    memory: Region,
    words: Vec<u64>,
}

/// A region, as its owner has it.
#[derive(Debug)]
struct Held {
    open: u64,
    known: RegionKnown,
    place: RegionPlace,
}

/// Memory that the region is to move to.
#[derive(Debug)]
struct Move {
    /// Which region.
    id: u64,
    open: u64,
    made: RegionMade,
    key: RegionKey,
    memory: Region,
}

/// An owner.
#[derive(Debug)]
pub(super) struct Owner {
    /// Which one: what the first daemon called it.
    id: u64,
    /// As the daemon calls it.
    pub(super) client: ClientId,
    /// The key with which the region is made.
    key: RegionKey,
    held: Option<Held>,
    moving: Option<Move>,
    /// What the next daemon has made, and the epoch in which the region was brought.
    following: Option<(NewRegion, u64)>,
    /// The epoch in which the region was brought, until the daemon has answered.
    brought: Option<u64>,
    /// The region is not yet with the daemon.
    is_away: bool,
    /// A revoke that was not answered.
    revoking: Option<u64>,
    /// Which life of its host's daemon it is attached in.
    life: u32,
    /// How many daemons there were before.
    daemons: u64,
    touches: u32,
    next_request: u64,
    /// Requests up to this one were for regions that it has given up: what answers them comes too late.
    given_up: u64,
}

impl Owner {
    /// What opens the region, as the owner tells everybody.
    pub(super) fn key(&self) -> RegionKey {
        self.held.as_ref().map_or(self.key, |held| held.known.key)
    }

    fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }
}

/// The words of a region.
fn words(memory: &Region) -> Vec<u64> {
    (0..WORDS).filter_map(|w| Some(memory.word64(w * 8).ok()?.load(Ordering::SeqCst))).collect()
}

impl World {
    // ---- a region is made

    /// A daemon starts: the owner of the host's region comes, or finds it.
    pub(super) fn start_owner(&mut self, host: usize) {
        if let Some(owner) = self.users.owners.get(&host) {
            let (id, client) = (owner.id, owner.client);
            let at = self.return_at(client);
            return self.put_off(host, id, OwnerStep::Return, at);
        }
        let client = self.users.next_client();
        let id = client.0;
        let owner = Owner {
            id,
            client,
            key: self.fresh_key(),
            held: None,
            moving: None,
            following: None,
            brought: None,
            is_away: false,
            revoking: None,
            life: self.life(host),
            daemons: 0,
            touches: 0,
            next_request: 0,
            given_up: 0,
        };
        self.users.owners.insert(host, owner);
        if !self.take_program(host, (client, UID), None, None) {
            return self.checks.fail(self.now, "set-up", format!("host {host} does not take its owner in"));
        }
        self.make_region(host);
        self.listen_for_borrowers(host);
        self.touch_later(host, id);
    }

    fn fresh_key(&mut self) -> RegionKey {
        let mut key = [0; 16];
        self.users.rng.fill(&mut key[..]);
        RegionKey::new(key)
    }

    fn make_region(&mut self, host: usize) {
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let spec = region_spec(NAME.into(), owner.key, self.plan.has_writers);
        let (client, request) = (owner.client, owner.request());
        self.ask_of_regions(host, client, Request::RegionCreate { request, spec });
    }

    fn put_off(&mut self, host: usize, owner: u64, step: OwnerStep, at: Time) {
        self.queue.push(at, Event::Owner { host, owner, step });
    }

    fn copy_later(&mut self, host: usize, owner: u64, step: OwnerStep) {
        let is_slow = self.users.rng.random_ratio(1, COPIES_PER_SLOW);
        let at = self.now + self.some(if is_slow { SLOW_COPY_MAX } else { COPY_MAX });
        self.put_off(host, owner, step, at);
    }

    /// The owner does what it has put off.
    pub(super) fn on_owner(&mut self, host: usize, id: u64, step: OwnerStep) {
        if let Some(until) = self.stalled(host) {
            return self.put_off(host, id, step, until);
        }
        if self.users.owners.get(&host).is_none_or(|owner| owner.id != id) {
            return;
        }
        match step {
            OwnerStep::Move => self.move_region(host),
            OwnerStep::Follow => self.follow_region(host, false),
            OwnerStep::Revoke => self.revoke(host),
            OwnerStep::Return => self.return_owner(host),
            OwnerStep::Touch => self.touch_region(host),
        }
    }

    /// The owner of a host's region hears its daemon.
    pub(super) fn on_owner_reply(&mut self, host: usize, reply: Reply, memory: Option<Shared>) {
        let now = self.now;
        let Some(client) = self.users.owners.get(&host).map(|owner| owner.client) else { return };
        if self.hear_of_near(host, client, &reply) {
            return;
        }
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        match reply {
            Reply::RegionOpened { result, .. } => match owner.brought.take() {
                None => self.on_region_there(host, result, memory),
                Some(epoch) => self.on_region_brought(host, epoch, result, memory),
            },
            Reply::RegionMove { open, epoch, stamp, key } => {
                let Some(Shared { memory, .. }) = memory else { return };
                let made = RegionMade { stamp, epoch, daemon: owner.daemons };
                let Some(held) = owner.held.as_ref().filter(|held| held.open == open) else { return };
                owner.moving = Some(Move { id: held.known.line.id, open, made, key, memory });
                let id = owner.id;
                self.copy_later(host, id, OwnerStep::Move);
            }
            Reply::RegionRevoked { request, result } => self.on_revoked(host, request, result),
            Reply::RegionEnded { open, why } => {
                let detail = format!("the owner on {host} lost its region {open}: {why}");
                self.checks.fail(now, "unexplained", detail);
            }
            of_lease => self.hear_of_leases(host, of_lease),
        }
    }

    fn on_region_there(&mut self, host: usize, result: Result<OpenedRegion, RegionRefusal>, memory: Option<Shared>) {
        let now = self.now;
        let mapping = result.as_ref().ok().and_then(|opened| memory?.map(&opened.path));
        match (result, mapping) {
            (Ok(OpenedRegion { open, info, path: RegionPath::Local { stamp, .. } }), Some(mapping)) => {
                let Some(owner) = self.users.owners.get_mut(&host) else { return };
                let made = RegionMade { stamp, epoch: info.epoch, daemon: owner.daemons };
                let known = RegionKnown { key: owner.key, line: info.line };
                owner.held = Some(Held { open, known, place: RegionPlace::new(mapping, made) });
                self.trace.note(now, "region {} of host {} is there", &[info.line.id, host as u64]);
            }
            (result, _) => self.checks.fail(now, "set-up", format!("host {host} has no region: {result:?}")),
        }
        if self.users.is_over {
            self.revoke(host);
        }
    }

    // ---- the owner uses it

    fn touch_later(&mut self, host: usize, id: u64) {
        let at = self.now + self.some(TOUCH_GAP_MAX);
        self.put_off(host, id, OwnerStep::Touch, at);
    }

    /// The owner's accesses wait for no daemon, and none is under way while it copies.
    fn touch_region(&mut self, host: usize) {
        let Some(owner) = self.users.owners.get_mut(&host).filter(|_| !self.quiet) else { return };
        owner.touches += 1;
        let (id, is_last) = (owner.id, owner.touches >= TOUCHES);
        let rng = &mut self.users.rng;
        if let Some(Held { known, place, .. }) = &owner.held
            && place.check(true).is_ok()
        {
            let (word, value) = (rng.random_range(0..WORDS), rng.next_u64() >> 8);
            let change = match rng.random_range(0..4) {
                0 => AtomicOp::CompareSwap { expected: 0, new: value },
                1 => AtomicOp::Swap(value),
                _ => AtomicOp::Add(1),
            };
            let call = self.checks.histories.on_asked(known.line.id, word, Act::Change(change));
            match place.memory.atomic64(word * 8, change) {
                Ok(found) => self.checks.histories.on_ended(call, Some(found)),
                Err(error) => self.checks.fail(self.now, "set-up", format!("region of host {host}: {error}")),
            }
        }
        self.tend_leases(host);
        if !is_last {
            self.touch_later(host, id);
        }
    }

    /// The owner looks at its region.
    fn see(&mut self, host: usize) {
        let held = self.users.owners.get(&host).and_then(|owner| owner.held.as_ref());
        let Some(Held { known, place, .. }) = held else { return };
        for (word, value) in (0..).zip(words(&place.memory)) {
            self.checks.histories.on_seen(known.line.id, word, value);
        }
    }

    // ---- revokes

    /// The owner takes its region back from all others, or gives it up and makes another one.
    pub(super) fn revoke(&mut self, host: usize) {
        let new_key = self.users.rng.random_bool(0.5).then(|| self.fresh_key());
        let ends = !self.users.is_over && self.users.rng.random_ratio(1, REVOKES_PER_END);
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let Some(held) = owner.held.as_ref().filter(|_| owner.revoking.is_none() && !owner.is_away) else { return };
        let (client, key, open, region) = (owner.client, held.known.key, held.open, held.known.line.id);
        if ends {
            self.trace.note(self.now, "the owner on {} gives region {} up", &[host as u64, region]);
            (owner.held, owner.moving) = (None, None);
            owner.given_up = owner.next_request;
            self.users.lent.retain(|lent| !lent.is_of(host));
            self.ask_of_regions(host, client, Request::RegionClose { open, delete: true });
            return self.make_region(host);
        }
        let request = owner.request();
        owner.revoking = Some(request);
        self.trace.note(self.now, "the owner on {} revokes region {}", &[host as u64, region]);
        let revoke = Request::RegionRevoke { request, name: NAME.into(), key, new_key };
        self.ask_of_regions(host, client, revoke);
    }

    fn move_region(&mut self, host: usize) {
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let client = owner.client;
        let Some(Move { id, open, made, key, memory }) = owner.moving.take() else { return };
        let Some(held) = owner.held.as_mut().filter(|held| held.known.line.id == id) else { return };
        let before = held.place.memory.clone();
        let found = words(&before);
        match held.place.move_to((memory, None), REGION_BYTES as u64, made) {
            Ok(true) => held.known.on_moved(key),
            // It is with another daemon by now.
            Ok(false) => return,
            Err(error) => {
                let detail = format!("host {host} cannot copy its region: {error}");
                return self.checks.fail(self.now, "set-up", detail);
            }
        }
        let region = held.known.line.id;
        *self.users.ended.revokes.entry(region).or_default() += 1;
        self.users.left.push(Left { region, memory: before, words: found });
        self.see(host);
        self.ask_of_regions(host, client, Request::RegionMoved { open, epoch: made.epoch });
    }

    fn on_revoked(&mut self, host: usize, request: u64, result: Result<u64, RegionRefusal>) {
        let (now, is_over) = (self.now, self.users.is_over);
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        if owner.revoking.take_if(|asked| *asked == request).is_none() {
            return;
        }
        let (id, client) = (owner.id, owner.client);
        match result {
            Ok(_) => {
                let open = owner.held.as_ref().map_or(0, |held| held.open);
                self.trace.note(now, "revoke {} of the region of host {} is done", &[request, host as u64]);
                self.see(host);
                if is_over {
                    self.users.owners.remove(&host);
                    self.ask_of_regions(host, client, Request::RegionClose { open, delete: true });
                }
            }
            Err(RegionRefusal::Busy) => self.put_off(host, id, OwnerStep::Revoke, now + AGAIN),
            Err(why) => self.checks.fail(now, "unexplained", format!("host {host} cannot revoke its region: {why}")),
        }
    }

    // ---- the next daemon

    /// The owner has heard all that its daemon said, and finds the next one. What it asked and was not answered is lost.
    fn return_owner(&mut self, host: usize) {
        let life = self.life(host);
        if self.up(host).is_none() || self.users.owners.get(&host).is_none_or(|owner| owner.life == life) {
            return;
        }
        // One thread brings regions back: what it does for the daemon before is done first.
        self.follow_region(host, true);
        let client = self.users.next_client();
        if !self.take_program(host, (client, UID), None, None) {
            return self.checks.fail(self.now, "set-up", format!("host {host} does not take its owner in"));
        }
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let before = std::mem::replace(&mut owner.client, client);
        owner.daemons += 1;
        owner.life = life;
        (owner.revoking, owner.brought) = (None, None);
        owner.is_away = owner.held.is_some();
        let has_region = owner.is_away;
        self.users.forget(before);
        self.end_leases(host);
        self.trace.note(self.now, "the owner on {} comes back", &[host as u64]);
        self.listen_for_borrowers(host);
        if has_region { self.bring_region(host) } else { self.make_region(host) }
    }

    fn bring_region(&mut self, host: usize) {
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let Some(Held { known, place, .. }) = &owner.held else { return };
        match known.bring(place, &region_spec(NAME.into(), owner.key, self.plan.has_writers)) {
            Ok(RegionBrought { spec, epoch, line }) => {
                owner.brought = Some(epoch);
                let (client, request) = (owner.client, owner.request());
                self.ask_of_regions(host, client, Request::RegionReturn { request, spec, epoch, line });
            }
            Err(why) => {
                self.checks.fail(self.now, "unexplained", format!("host {host} may not bring its region: {why}"))
            }
        }
    }

    fn on_region_brought(
        &mut self,
        host: usize,
        epoch: u64,
        result: Result<OpenedRegion, RegionRefusal>,
        memory: Option<Shared>,
    ) {
        let now = self.now;
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        match result {
            Ok(opened) => {
                let mapping = memory.and_then(|shared| shared.map(&opened.path));
                owner.following = Some((NewRegion { opened, mapping, daemon: owner.daemons }, epoch));
                let id = owner.id;
                self.copy_later(host, id, OwnerStep::Follow);
            }
            Err(why) => match RegionReturn::refused(why) {
                RegionReturn::There | RegionReturn::Again => self.bring_region(host),
                RegionReturn::Over(why) => {
                    self.checks.fail(now, "unexplained", format!("host {host} does not get its region back: {why}"));
                }
            },
        }
    }

    /// The owner copies its region to the memory that the next daemon has made, which `has_ended` by now perhaps.
    fn follow_region(&mut self, host: usize, has_ended: bool) {
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let client = owner.client;
        let Some((new, epoch)) = owner.following.take() else { return };
        let Some(held) = &mut owner.held else { return };
        let (open, next_epoch, region) = (new.opened.open, new.opened.info.epoch, held.known.line.id);
        let before = held.place.memory.clone();
        let found = words(&before);
        match RegionReturn::follow(&mut held.place, new, REGION_BYTES as u64, epoch) {
            RegionReturn::There => {
                held.open = open;
                owner.is_away = has_ended;
                self.users.left.push(Left { region, memory: before, words: found });
                self.trace.note(self.now, "region {} of host {} is back", &[region, host as u64]);
                self.see(host);
                if !has_ended {
                    self.checks.regions_returned += 1;
                    self.ask_of_regions(host, client, Request::RegionMoved { open, epoch: next_epoch });
                    if self.users.is_over {
                        self.revoke(host);
                    }
                }
            }
            RegionReturn::Again => {
                self.ask_of_regions(host, client, Request::RegionClose { open, delete: true });
                if !has_ended {
                    self.bring_region(host);
                }
            }
            RegionReturn::Over(why) => {
                self.checks.fail(self.now, "unexplained", format!("host {host} cannot follow its region: {why}"));
            }
        }
    }

    // ---- the end

    /// Owners take their regions back: from hosts that answer, or whose lane is lost. Then the regions end.
    pub(super) fn finish_owners(&mut self) {
        for host in self.users.owners.keys().copied().collect::<Vec<_>>() {
            self.revoke(host);
        }
    }

    /// A program of the host stored to memory, which its owner may have left: then its look at the stamp must say so.
    pub(super) fn on_stored(&mut self, memory: &Region) {
        if let Some(left) = self.users.left.iter_mut().find(|left| left.memory.as_ptr() == memory.as_ptr()) {
            left.words = words(memory);
        }
    }

    /// All regions are back, and no device wrote to memory that its owner had left.
    pub(super) fn judge_owners(&mut self) {
        for (host, owner) in std::mem::take(&mut self.users.owners) {
            let regions = self.up(host).map(|running| running.control.daemon.directory().rows(None, 0, 10));
            self.checks.fail(self.now, "liveness", format!("{owner:?} of host {host} has it still: {regions:?}"));
        }
        for Left { region, memory, words: left } in std::mem::take(&mut self.users.left) {
            let found = words(&memory);
            if found != left {
                let detail = format!("region {region}: {left:?} when its owner left it, {found:?} later");
                self.checks.fail(self.now, "late access", detail);
            }
        }
    }
}
