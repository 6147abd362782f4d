//! The directory of a host's regions: names, keys, epochs, who has which region open, users' shares.
//!
//! Decides who may make, open and revoke a region, and when a revoke is done; no I/O. It must never answer a revoke
//! before nobody but the owner can reach the region's memory, and must give back every place that a program held when
//! that program is gone.
//!
//! The memory itself is the driver's: [`DirectoryAction`] says what is to be made, handed out and dropped. Each region
//! has a word of the host's stamp page. Programs look at it after each access to memory that they have mapped, so a
//! handle that was revoked fails also where nobody could take the mapping away.

mod access;
mod action;
mod adopt;
mod handles;
mod kept;
mod leases;
mod locals;
mod notifications;
mod remote;
mod revoke;
mod rows;
mod runs;
mod shares;
mod stamps;
mod writer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use control::{
    OpenedRegion, REGION_BYTES_MAX, REGION_NAME_BYTES_MAX, RegionAccess, RegionInfo, RegionKey, RegionLine, RegionPath,
    RegionRefusal, RegionSpec, Reply, region_stamp,
};
use verbs::Time;

use crate::{ClientId, MemoryCommand, Party, RegionCommand, UserPlaces};
pub(crate) use action::DirectoryAction;
pub use action::Handed;
use handles::{Handle, Handles, Writer};
pub(crate) use leases::Lessee;
use leases::{Lease, Leases};
use locals::Locals;
use notifications::Notifiers;
pub(crate) use remote::HANDLES_PER_PEER_MAX;
use remote::{Ending, RemoteHandle};
use revoke::Revoke;
use shares::Shares;
pub(crate) use shares::TenantShare;
use stamps::Stamps;

/// Opens of one region that wait for the end of a revoke, at most.
const WAITING_MAX: usize = 1024;

/// Bounds of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryConfig {
    /// Regions of the host.
    pub regions_max: u32,
    /// Those of one user.
    pub regions_per_user_max: u32,
    /// Bytes of all regions.
    pub bytes_max: u64,
    /// Bytes of one user's.
    pub bytes_per_user_max: u64,
    /// Handles of one program.
    pub handles_per_app_max: u32,
    /// Those of all programs to regions of this host, as many to those of other hosts, and as many leases.
    pub handles_max: u64,
    /// Those of one user's programs.
    pub handles_per_user_max: u64,
    /// Leased lanes of this host's programs, and as many of other hosts' programs to regions here.
    pub leased_lanes_max: u32,
    /// Those of one user's programs.
    pub leased_lanes_per_user_max: u32,
    /// Neither this user nor root is bounded by users' shares.
    pub owner_uid: u32,
    /// How long the owner may take to move a region of no bytes; a large one gets more.
    pub answer: Duration,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        Self {
            regions_max: 4096,
            regions_per_user_max: 1024,
            bytes_max: 64 << 30,
            bytes_per_user_max: 16 << 30,
            handles_per_app_max: 4096,
            handles_max: 1 << 18,
            handles_per_user_max: 1 << 16,
            leased_lanes_max: 16,
            leased_lanes_per_user_max: 4,
            owner_uid: 0,
            answer: Duration::from_secs(10),
        }
    }
}

/// A wish to open a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionWish {
    /// Its name on this host.
    pub name: String,
    /// The key that the program has.
    pub key: RegionKey,
    /// What the handle is for.
    pub access: RegionAccess,
    /// The lease by which it is opened; then the name does not count.
    pub lease: Option<u64>,
}

/// A wish to become the writer of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakeOver {
    /// Its name on its host.
    pub name: String,
    /// The key that the program has.
    pub key: RegionKey,
    /// Greater than that of every take-over before.
    pub term: u64,
}

/// Where a region is in its life.
#[derive(Debug)]
enum Stage {
    /// Its memory is being made; then the owner is told. One that a daemon before this one had `returns`.
    Making { client: ClientId, request: u64, returns: bool },
    /// The owner copies its bytes into it; nobody else has it yet.
    Returning,
    /// It can be opened.
    Live,
    /// All but the owner lose it.
    Revoking(Revoke),
}

/// The program that made a region.
#[derive(Debug, Clone, Copy)]
struct Owner {
    client: ClientId,
    pid: u32,
    open: u64,
}

/// A region.
#[derive(Debug)]
struct Entry {
    spec: RegionSpec,
    uid: u32,
    /// The tenant whose program made it.
    tenant: Arc<str>,
    owner: Option<Owner>,
    epoch: u64,
    line: RegionLine,
    stamp: u64,
    word: u32,
    stage: Stage,
    /// The term of the last take-over that was granted; 0: none.
    term: u64,
    /// Who took it over and has it still.
    writer: Option<Writer>,
    /// Handles of programs of this host but the owner's.
    handles: Handles,
    /// Handles of programs of other hosts, by peer.
    remote: BTreeMap<IpAddr, u32>,
    /// What lenders of its slices gave to the other ends of their connections.
    leases: BTreeMap<u64, Lease>,
    /// The engine has the memory of this epoch registered, or is about to.
    is_registered: bool,
    /// The engine may run kernels of this host's programs at the memory of this epoch.
    has_runs: bool,
    /// Opens that wait for the end of a revoke: request and wish.
    waiting: VecDeque<(Party, u64, RegionWish)>,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Directory {
    config: DirectoryConfig,
    entries: BTreeMap<u64, Entry>,
    names: BTreeMap<String, u64>,
    /// Handles of each program, the owners' included: number to region.
    programs: BTreeMap<ClientId, BTreeMap<u64, u64>>,
    /// Users of these programs, and how many handles each has.
    uids: BTreeMap<ClientId, u32>,
    user_handles: UserPlaces,
    leases: Leases,
    shares: Shares,
    stamps: Stamps,
    /// Regions that are being revoked, and when peers must have stopped, or the owner have moved.
    moving: BTreeMap<u64, Time>,
    /// Handles of writers of this host that the engine is to open: their regions, and the terms before theirs.
    takers: BTreeMap<u64, (u64, u64)>,
    notifiers: Notifiers,
    /// Regions that programs use as local memory.
    locals: Locals,
    /// Handles of each peer.
    peers: BTreeMap<IpAddr, BTreeMap<u64, RemoteHandle>>,
    /// Leased lanes of peers, and how many of these handles each has.
    lanes: BTreeMap<(IpAddr, u32), usize>,
    /// Regions that ended while peers had them open.
    ending: BTreeMap<u64, Ending>,
    /// As last told.
    now: Time,
    /// Number of the last region and of the last handle.
    last_region: u64,
    /// Identity of the last region that was made.
    last_id: u64,
    last_open: u64,
    actions: VecDeque<DirectoryAction>,
}

impl Directory {
    /// No region is there yet.
    pub(crate) fn new(config: DirectoryConfig) -> Self {
        Self {
            entries: BTreeMap::new(),
            names: BTreeMap::new(),
            programs: BTreeMap::new(),
            uids: BTreeMap::new(),
            user_handles: UserPlaces::new(config.handles_max, config.handles_per_user_max, config.owner_uid),
            leases: Leases::new(&config),
            shares: Shares::default(),
            stamps: Stamps::new(config.regions_max),
            moving: BTreeMap::new(),
            takers: BTreeMap::new(),
            notifiers: Notifiers::default(),
            locals: Locals::default(),
            peers: BTreeMap::new(),
            lanes: BTreeMap::new(),
            ending: BTreeMap::new(),
            now: Time::ZERO,
            last_region: 0,
            last_id: 0,
            last_open: 0,
            actions: VecDeque::new(),
            config,
        }
    }

    /// Regions that are made get identities behind this one, which the driver draws at random. So a region of another daemon
    /// does not pass for one of this.
    pub fn draw_from(&mut self, id: u64) {
        self.last_id = id;
    }

    /// Handles, leases and local memory get numbers behind this one, so that what a program says of those of a daemon before
    /// this one is of none.
    pub(crate) fn begin_after(&mut self, number: u64) {
        self.last_open = number;
        self.leases.begin_after(number);
        self.locals.begin_after(number);
    }

    /// What time it is, for what others then do. Every call with a time says it too.
    pub(crate) fn see(&mut self, now: Time) {
        self.now = now;
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self) -> Option<DirectoryAction> {
        self.actions.pop_front()
    }

    /// Words of the stamp page.
    pub fn stamp_words(&self) -> u32 {
        self.config.regions_max
    }

    // ---- making

    /// A program wants a region made.
    pub(crate) fn handle_create(&mut self, party: Party, request: u64, spec: RegionSpec, tenant: TenantShare) {
        self.last_id = self.last_id.wrapping_add(1);
        let line = RegionLine { id: self.last_id, uid: party.uid, revokes: 0 };
        if let Err(why) = self.try_create(party, request, spec, tenant, (0, line)) {
            self.opened(party.client, request, Err(why), None);
        }
    }

    /// A program makes the region again that it had from a daemon before this one, in the epoch after `epoch`. It is
    /// judged as any region that is to be made. Which one it was, `line`, is the program's word but for the user.
    pub(crate) fn handle_return(
        &mut self,
        party: Party,
        request: u64,
        (spec, epoch, line): (RegionSpec, u64, RegionLine),
        tenant: TenantShare,
    ) {
        let line = RegionLine { uid: party.uid, ..line };
        if let Err(why) = self.try_create(party, request, spec, tenant, (epoch, line)) {
            self.opened(party.client, request, Err(why), None);
        }
    }

    fn try_create(
        &mut self,
        party: Party,
        request: u64,
        spec: RegionSpec,
        tenant: TenantShare,
        // Epoch 0: it is a new one.
        (epoch, line): (u64, RegionLine),
    ) -> Result<(), RegionRefusal> {
        check_name(&spec.name)?;
        if spec.bytes == 0 || spec.bytes > REGION_BYTES_MAX {
            return Err(RegionRefusal::BadSize { bytes: spec.bytes, max: REGION_BYTES_MAX });
        }
        writer::check_spec(&spec)?;
        if let Some(taken) = self.named(&spec.name) {
            let uid = self.may_see(party.uid, taken).then_some(taken.uid);
            return Err(RegionRefusal::NameTaken { uid });
        }
        self.check_handles(party)?;
        self.shares.check(&self.config, (party.uid, &tenant), spec.bytes)?;
        let word = self.stamps.take_word().ok_or_else(|| too_many("regions", self.config.regions_max))?;
        self.shares.add((party.uid, &tenant.name), spec.bytes);
        self.last_region += 1;
        let (region, open) = (self.last_region, self.next_open());
        let Party { client, pid, .. } = party;
        self.names.insert(spec.name.clone(), region);
        self.add_handle(party, open, region);
        self.actions.push_back(DirectoryAction::Memory(MemoryCommand::Make {
            region,
            bytes: spec.bytes,
            huge_pages: spec.huge_pages,
        }));
        let stage = Stage::Making { client, request, returns: epoch > 0 };
        let time = (epoch.saturating_add(1), self.stamps.next_stamp(), word);
        let owner = Some(Owner { client, pid, open });
        let entry = Entry { owner, ..Entry::unowned(spec, (line, tenant.name), time, stage) };
        self.entries.insert(region, entry);
        Ok(())
    }

    /// The memory of [`MemoryCommand::Make`] is there, or why not.
    pub(crate) fn on_made(&mut self, now: Time, region: u64, result: Result<(), RegionRefusal>) {
        let Some(entry) = self.entries.get_mut(&region) else {
            // It ended meanwhile.
            return self.drop_memory(region);
        };
        match (&entry.stage, result) {
            (&Stage::Making { client, request, returns }, Ok(())) => {
                entry.stage = if returns { Stage::Returning } else { Stage::Live };
                if returns {
                    self.moving.insert(region, now + self.config.answer + revoke::copying(entry.spec.bytes));
                }
                let (stamp, word) = (entry.stamp, entry.word);
                self.actions.push_back(DirectoryAction::Memory(MemoryCommand::Use { region }));
                self.stamp(word, region_stamp::of(stamp, region_stamp::LIVE));
                self.hand_to_owner(client, request, region);
            }
            (&Stage::Making { client, request, .. }, Err(why)) => {
                if let Some(owner) = entry.owner.take() {
                    self.forget_handle(owner.client, owner.open);
                }
                self.opened(client, request, Err(why), None);
                self.end(region, region_stamp::OWNER_GONE);
            }
            (Stage::Revoking(_), result) => self.on_next_made(now, region, result),
            (Stage::Live | Stage::Returning, _) => {}
        }
    }

    // ---- opening

    /// A program of this host wants to open a region of this host.
    pub(crate) fn handle_open(&mut self, party: Party, request: u64, wish: RegionWish) {
        let region = match self.check_open(party, Lessee::Program(party.client), &wish) {
            Ok(region) => region,
            Err(why) => return self.opened(party.client, request, Err(why), None),
        };
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if !matches!(entry.stage, Stage::Live) {
            if entry.waiting.len() < WAITING_MAX {
                entry.waiting.push_back((party, request, wish));
            } else {
                self.opened(party.client, request, Err(RegionRefusal::Busy), None);
            }
            return;
        }
        let open = self.next_open();
        let Some(entry) = self.entries.get_mut(&region) else { return };
        entry.handles.insert(open, Handle { client: party.client, access: wish.access, lease: wish.lease });
        entry.open_by_lease(wish.lease);
        let info = RegionInfo { access: wish.access, ..info_of(region, entry) };
        let path = RegionPath::Local { stamp: entry.stamp, word: entry.word, words: self.config.regions_max };
        self.add_handle(party, open, region);
        let handed = Handed { region, writable: wish.access.changes(), with_stamps: true };
        self.opened(party.client, request, Ok(OpenedRegion { open, info, path }), Some(handed));
    }

    // ---- ending

    /// A program does not need a handle any more. One that is not there was ended meanwhile.
    pub(crate) fn handle_close(&mut self, client: ClientId, open: u64, delete: bool) {
        let Some(region) = self.forget_handle(client, open) else { return };
        self.end_leases_of(region, client, Some(open));
        self.forget_writer_here(region, open);
        self.close_handle(region, open);
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if entry.owner.is_some_and(|owner| owner.open == open && owner.client == client) {
            self.on_owner_gone(region, delete);
        }
    }

    /// A program has left, or was detached.
    pub(crate) fn handle_left(&mut self, client: ClientId) {
        for entry in self.entries.values_mut() {
            entry.waiting.retain(|(party, ..)| party.client != client);
        }
        let held = self.programs.remove(&client).unwrap_or_default();
        self.give_back_handles(client, held.len());
        self.locals.forget_program(client);
        self.notifiers.forget_program(client);
        for (open, region) in held {
            self.end_leases_of(region, client, None);
            self.forget_writer_here(region, open);
            self.close_handle(region, open);
            let Some(entry) = self.entries.get_mut(&region) else { continue };
            if entry.owner.is_some_and(|owner| owner.client == client && owner.open == open) {
                self.on_owner_gone(region, false);
            }
        }
    }

    fn close_handle(&mut self, region: u64, open: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if let Some(lease) = entry.handles.remove(open).and_then(|handle| handle.lease) {
            self.close_by_lease(region, lease);
        }
    }

    fn on_owner_gone(&mut self, region: u64, delete: bool) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let stays = entry.spec.outlives && !delete && matches!(entry.stage, Stage::Live);
        entry.owner = None;
        if stays {
            self.keep(region);
        } else {
            self.end(region, region_stamp::OWNER_GONE);
        }
    }

    /// The region is not there any more: everybody who has it open, or waits for it, is told.
    fn end(&mut self, region: u64, kind: u64) {
        let Some(entry) = self.entries.get(&region) else { return };
        let why = match kind {
            region_stamp::REVOKED => RegionRefusal::Revoked { held: entry.epoch, current: entry.epoch + 1 },
            _ => RegionRefusal::OwnerGone,
        };
        self.end_writer_here(region, &why);
        let Some(entry) = self.entries.remove(&region) else { return };
        self.names.remove(&entry.spec.name);
        self.moving.remove(&region);
        self.shares.remove((entry.uid, &entry.tenant), entry.spec.bytes);
        self.stamp(entry.word, region_stamp::of(entry.stamp, kind));
        self.stamps.give_back(entry.word);
        self.end_leases(entry.leases);
        if let Some(Owner { client, open, .. }) = entry.owner {
            self.drop_handle(client, open, why.clone());
        }
        for (open, handle) in entry.handles.into_all() {
            self.drop_handle(handle.client, open, why.clone());
        }
        for (party, request, _) in entry.waiting {
            self.opened(party.client, request, Err(why.clone()), None);
        }
        if entry.is_registered {
            let peers: BTreeSet<IpAddr> = match &entry.stage {
                // They were told already.
                Stage::Revoking(revoke) => revoke.stopping().collect(),
                Stage::Making { .. } | Stage::Returning | Stage::Live => entry.remote.keys().copied().collect(),
            };
            self.end_registered(region, entry.epoch, peers, &why);
        }
        if let Stage::Revoking(revoke) = entry.stage {
            self.answer_revoke(revoke.asker, Err(why));
        }
        self.drop_memory(region);
    }

    /// A program's handle is over, and it is told.
    fn drop_handle(&mut self, client: ClientId, open: u64, why: RegionRefusal) {
        if self.forget_handle(client, open).is_some() {
            self.send(client, Reply::RegionEnded { open, why });
        }
    }

    /// Takes a handle out of its program's table; the region that it is of.
    fn forget_handle(&mut self, client: ClientId, open: u64) -> Option<u64> {
        let held = self.programs.get_mut(&client)?;
        let region = held.remove(&open);
        if held.is_empty() {
            self.programs.remove(&client);
        }
        self.give_back_handles(client, region.is_some().into());
        self.detach_of(client, open);
        self.end_notifier(open);
        region
    }

    /// The region of an owner's handle.
    pub fn owned_by(&self, client: ClientId, open: u64) -> Result<u64, RegionRefusal> {
        let region = self.programs.get(&client).and_then(|held| held.get(&open)).copied();
        let region = region.ok_or(RegionRefusal::Unknown)?;
        let owner = self.entries.get(&region).and_then(|entry| entry.owner.as_ref());
        let is_owner = owner.is_some_and(|owner| owner.client == client && owner.open == open);
        if is_owner { Ok(region) } else { Err(RegionRefusal::NotOwner) }
    }

    // ---- small parts

    fn named(&self, name: &str) -> Option<&Entry> {
        self.entries.get(self.names.get(name)?)
    }

    fn next_open(&mut self) -> u64 {
        self.last_open += 1;
        self.last_open
    }

    /// A region is over: its memory goes, and its kernels at the engine, which may run there, end.
    fn drop_memory(&mut self, region: u64) {
        self.actions.push_back(DirectoryAction::Memory(MemoryCommand::Drop { region }));
        self.actions.push_back(DirectoryAction::Engine(RegionCommand::Forget { region }));
    }

    fn stamp(&mut self, word: u32, value: u64) {
        self.actions.push_back(DirectoryAction::Memory(MemoryCommand::Stamp { word, value }));
    }

    fn send(&mut self, client: ClientId, reply: Reply) {
        self.actions.push_back(DirectoryAction::Send { client, reply, memory: None });
    }

    fn opened(
        &mut self,
        client: ClientId,
        request: u64,
        result: Result<OpenedRegion, RegionRefusal>,
        memory: Option<Handed>,
    ) {
        let reply = Reply::RegionOpened { request, result };
        self.actions.push_back(DirectoryAction::Send { client, reply, memory });
    }
}

fn info_of(region: u64, entry: &Entry) -> RegionInfo {
    RegionInfo {
        region,
        epoch: entry.epoch,
        bytes: entry.spec.bytes,
        access: entry.spec.access,
        line: entry.line,
        last_term: entry.term,
    }
}

fn check_name(name: &str) -> Result<(), RegionRefusal> {
    let is_good = (1..=REGION_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(control::is_plain);
    if is_good { Ok(()) } else { Err(RegionRefusal::BadName { bytes: name.len() as u64 }) }
}

fn too_many(what: &str, max: u32) -> RegionRefusal {
    RegionRefusal::TooMany { what: what.into(), used: u64::from(max), max: u64::from(max) }
}

#[cfg(test)]
mod tests;
