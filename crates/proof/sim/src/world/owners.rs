//! The owners of regions: on each host a program that makes one, moves it when it is revoked, and sees what is in it.
//!
//! Owns what the client library does for an owner, and how long the owner takes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{OpenedRegion, RegionAccess, RegionKey, RegionPath, RegionRefusal, RegionSpec, Reply, Request};
use plane::ClientId;
use raas_core::{RegionKnown, RegionMade, RegionPlace};
use rand::RngExt;
use verbs::Region;

use super::{Event, World};
use crate::regions::Shared;
use crate::user::WORDS;

/// Bytes of a region.
const REGION_BYTES: usize = 4096;
/// Longest time until an owner copies its region.
const COPY_MAX: Duration = Duration::from_millis(3);
/// Until an owner asks again that was told to wait.
const AGAIN: Duration = Duration::from_millis(1);
/// Of so many regions that are to be revoked, one is given up by its owner, which makes another one.
const REVOKES_PER_END: u32 = 4;

/// The name of each host's region.
pub(super) const NAME: &str = "words";

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
    /// Key and identity.
    known: RegionKnown,
    place: RegionPlace,
}

/// Memory that the region is to move to.
#[derive(Debug)]
struct Move {
    open: u64,
    made: RegionMade,
    key: RegionKey,
    memory: Region,
}

/// An owner.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) client: ClientId,
    /// What opens the region.
    pub(super) key: RegionKey,
    held: Option<Held>,
    moving: Option<Move>,
    /// A revoke that was not answered: its number, and the key from then on.
    revoking: Option<(u64, RegionKey)>,
    next_request: u64,
}

/// The words of a region.
fn words(memory: &Region) -> Vec<u64> {
    (0..WORDS).filter_map(|w| Some(memory.word64(w * 8).ok()?.load(Ordering::SeqCst))).collect()
}

impl World {
    /// A host starts: its region is made.
    pub(super) fn start_owner(&mut self, host: usize) {
        let client = self.users.next_client();
        let key = self.fresh_key();
        let owner = Owner { client, key, held: None, moving: None, revoking: None, next_request: 1 };
        self.users.owners.insert(host, owner);
        if let Some(regions) = self.regions(host) {
            regions.attach(client, None);
        }
        self.make_region(host);
    }

    fn fresh_key(&mut self) -> RegionKey {
        let mut key = [0; 16];
        self.users.rng.fill(&mut key[..]);
        RegionKey::new(key)
    }

    fn make_region(&mut self, host: usize) {
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let spec = RegionSpec {
            name: NAME.into(),
            bytes: REGION_BYTES as u64,
            access: RegionAccess::ALL,
            key: owner.key,
            huge_pages: false,
            outlives: false,
            other_users: false,
        };
        let (client, request) = (owner.client, owner.next_request);
        owner.next_request += 1;
        self.ask_of_regions(host, client, Request::RegionCreate { request, spec });
    }

    /// The owner takes its region back from all others, or gives it up and makes another one.
    pub(super) fn revoke(&mut self, host: usize) {
        let new_key = self.users.rng.random_bool(0.5).then(|| self.fresh_key());
        let ends = !self.users.is_over && self.users.rng.random_ratio(1, REVOKES_PER_END);
        let Some(owner) = self.users.owners.get_mut(&host).filter(|owner| owner.revoking.is_none()) else { return };
        let Some(held) = &owner.held else { return };
        let (client, key, open, id) = (owner.client, owner.key, held.open, held.known.line.id);
        if ends {
            self.trace.note(self.now, "the owner on {} gives region {} up", &[host as u64, id]);
            (owner.held, owner.moving) = (None, None);
            self.ask_of_regions(host, client, Request::RegionClose { open, delete: true });
            return self.make_region(host);
        }
        let request = owner.next_request;
        owner.next_request += 1;
        owner.revoking = Some((request, new_key.unwrap_or(key)));
        self.trace.note(self.now, "the owner on {} revokes region {}", &[host as u64, id]);
        let revoke = Request::RegionRevoke { request, name: NAME.into(), key, new_key };
        self.ask_of_regions(host, client, revoke);
    }

    /// The owner of a host's region hears its daemon.
    pub(super) fn on_owner_reply(&mut self, host: usize, client: ClientId, reply: Reply, memory: Option<Shared>) {
        let now = self.now;
        match reply {
            Reply::RegionOpened { result, .. } => self.on_region_there(host, result, memory),
            Reply::RegionMove { open, epoch, stamp, key } => {
                let Some(owner) = self.users.owners.get_mut(&host) else { return };
                let Some(Shared { memory, .. }) = memory else { return };
                let made = RegionMade { stamp, epoch, daemon: 0 };
                owner.moving = Some(Move { open, made, key, memory });
                let at = now + self.some(COPY_MAX);
                self.queue.push(at, Event::Owner { host, client });
            }
            Reply::RegionRevoked { request, result } => self.on_revoked(host, request, result),
            Reply::RegionEnded { open, why } => {
                let detail = format!("the owner on {host} lost its region {open}: {why}");
                self.checks.fail(now, "unexplained", detail);
            }
            _ => {}
        }
    }

    fn on_region_there(&mut self, host: usize, result: Result<OpenedRegion, RegionRefusal>, memory: Option<Shared>) {
        let now = self.now;
        match (result, memory) {
            (Ok(OpenedRegion { open, info, path: path @ RegionPath::Local { stamp, .. } }), Some(shared)) => {
                let Some(owner) = self.users.owners.get_mut(&host) else { return };
                let Some(mapping) = shared.map(&path) else { return };
                let id = info.line.id;
                let made = RegionMade { stamp, epoch: info.epoch, daemon: 0 };
                let known = RegionKnown { key: owner.key, line: info.line };
                owner.held = Some(Held { open, known, place: RegionPlace::new(mapping, made) });
                self.trace.note(now, "region {} of host {} is there", &[id, host as u64]);
            }
            (result, _) => self.checks.fail(now, "set-up", format!("host {host} has no region: {result:?}")),
        }
        if self.users.is_over {
            self.revoke(host);
        }
    }

    /// The owner does what it has put off: it copies its region, or revokes it again.
    pub(super) fn on_owner(&mut self, host: usize, client: ClientId) {
        if let Some(until) = self.stalled(host) {
            return self.queue.push(until, Event::Owner { host, client });
        }
        let Some(owner) = self.users.owners.get_mut(&host).filter(|owner| owner.client == client) else { return };
        let Some(Move { open, made, key, memory }) = owner.moving.take() else {
            if self.users.is_over {
                self.revoke(host);
            }
            return;
        };
        let Some(held) = owner.held.as_mut().filter(|held| held.open == open) else { return };
        let (region, before) = (held.known.line.id, held.place.memory.clone());
        let found = words(&before);
        match held.place.move_to(memory, REGION_BYTES as u64, made) {
            Ok(true) => held.known.on_moved(key),
            // It is with another daemon by now.
            Ok(false) => return,
            Err(error) => {
                let detail = format!("host {host} cannot copy its region: {error}");
                return self.checks.fail(self.now, "set-up", detail);
            }
        }
        self.users.left.push(Left { region, memory: before, words: found });
        self.see(host);
        self.ask_of_regions(host, client, Request::RegionMoved { open, epoch: made.epoch });
    }

    fn on_revoked(&mut self, host: usize, request: u64, result: Result<u64, RegionRefusal>) {
        let (now, is_over) = (self.now, self.users.is_over);
        let Some(owner) = self.users.owners.get_mut(&host) else { return };
        let Some((asked, key)) = owner.revoking.take_if(|(asked, _)| *asked == request) else { return };
        let client = owner.client;
        match result {
            Ok(_) => {
                owner.key = key;
                let open = owner.held.as_ref().map_or(0, |held| held.open);
                self.trace.note(now, "revoke {} of the region of host {} is done", &[asked, host as u64]);
                self.see(host);
                if is_over {
                    self.users.owners.remove(&host);
                    self.ask_of_regions(host, client, Request::RegionClose { open, delete: true });
                }
            }
            Err(RegionRefusal::Busy) => self.queue.push(now + AGAIN, Event::Owner { host, client }),
            Err(why) => self.checks.fail(now, "unexplained", format!("host {host} cannot revoke its region: {why}")),
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

    // ---- the end

    /// Owners take their regions back: from hosts that answer, or whose lane is lost. Then the regions end.
    pub(super) fn finish_owners(&mut self) {
        for host in self.users.owners.keys().copied().collect::<Vec<_>>() {
            self.revoke(host);
        }
    }

    /// All regions are back, and nothing was written to memory that its owner had left.
    pub(super) fn judge_owners(&mut self) {
        for (host, owner) in std::mem::take(&mut self.users.owners) {
            let regions = self.regions(host).map(|regions| regions.directory.rows(None, 0, 10));
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
