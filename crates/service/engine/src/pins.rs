//! Registrations of memory that programs bring: kept, made in pieces, and given up later, in batches.
//!
//! Owns the four ways of keeping the cost of pinning away from transfers (docs/inside/lanes.md, "Registrations"), and the
//! bounds of what is pinned. It must never give up a registration that somebody uses, never take one memory for another,
//! and never have more registered than its limits.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use verbs::{Access, Lkey, Mr, MrId, Provider, Region, Time, VerbsError};

use crate::ids::AppId;
use crate::numbers::{count, few};

/// Longest piece that is registered in one step: a device that pins takes about as long for it as for sending it.
const PIECE_BYTES: u64 = 4 << 20;
/// A registration that nobody uses is kept for so long: programs use the same memory again.
const KEPT: Duration = Duration::from_secs(1);
/// Registrations given up in one round.
const BATCH: usize = 16;
/// From so many unused ones on the engine does not wait for a round without other work.
const UNUSED_MAX: usize = 64;

/// What of the memory that programs bring may be registered, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinLimits {
    /// Of one application.
    pub app_bytes_max: u64,
    /// Of all together.
    pub bytes_max: u64,
    /// Longest piece that is registered in one step; 0: as the device needs it, 4 MiB where it pins and the whole where
    /// it does not.
    pub piece_bytes: u64,
}

impl Default for PinLimits {
    fn default() -> Self {
        Self { app_bytes_max: 16 << 30, bytes_max: 64 << 30, piece_bytes: 0 }
    }
}

/// What of the memory that the programs of one tenant bring may be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TenantPins {
    /// The programs.
    pub(crate) apps: Vec<AppId>,
    /// Bytes that theirs may have.
    pub(crate) bytes_max: u64,
    /// The tenant's bound, of which other memory has the rest: for people.
    pub(crate) limit: u64,
}

/// What a [`VerbsError::Full`] names if the tenant's bound is met.
pub const TENANT_PINNED: &str = "registered memory of the tenant (`pinned_bytes_max` of the policy)";

/// Names a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PinId(u64);

/// A part of registered memory that has one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) lkey: Lkey,
    /// Offset into what the key names.
    pub(crate) addr: u64,
    pub(crate) bytes: u32,
}

/// Why a range cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uncovered {
    /// It is registered in one of the next rounds.
    NotYet,
    /// It is beyond the memory, or the device refused it.
    Never,
}

/// Which memory, for whom, and what the device may do with it.
type Key = (AppId, (u64, u64), u64, u32);

#[derive(Debug)]
struct Pinned {
    key: Key,
    region: Region,
    access: Access,
    piece_bytes: u64,
    pieces: Vec<Mr>,
    users: u32,
    was_refused: bool,
}

impl Pinned {
    fn app(&self) -> AppId {
        self.key.0
    }

    fn is_whole(&self) -> bool {
        self.pieces.len() as u64 * self.piece_bytes >= self.region.len()
    }
}

/// How often which way was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PinCounters {
    /// Memory that was registered still, or already.
    pub(crate) hits: u64,
    /// Pieces that were registered while those before them could be used.
    pub(crate) pipelined: u64,
    /// Registrations given up later than nobody used them.
    pub(crate) deferred: u64,
    /// Rounds in which some were.
    pub(crate) batches: u64,
    /// Memory registered as a whole, on a device that pins nothing.
    pub(crate) unpinned: u64,
    /// Unused registrations given up at once, to make room.
    pub(crate) evicted: u64,
    /// Memory that was not registered: beyond the limits, or the device's.
    pub(crate) refused: u64,
}

impl PinCounters {
    pub(crate) fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("pin_hits", self.hits),
            ("pin_pipelined", self.pipelined),
            ("pin_deferred", self.deferred),
            ("pin_batches", self.batches),
            ("pin_none", self.unpinned),
            ("pin_evicted", self.evicted),
            ("pin_refused", self.refused),
        ]
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Pins {
    /// Longest piece; `None`: the device pins nothing, and registers the whole.
    piece_bytes: Option<u64>,
    limits: PinLimits,
    table: BTreeMap<PinId, Pinned>,
    by_key: BTreeMap<Key, PinId>,
    next: u64,
    /// Those of which pieces are missing, the oldest first.
    growing: VecDeque<PinId>,
    /// Those that nobody uses, and since when, the oldest first.
    unused: VecDeque<(Time, PinId)>,
    app_bytes: BTreeMap<AppId, u64>,
    bytes: u64,
    counters: PinCounters,
}

impl Pins {
    /// `pins`: the device pins what is registered.
    pub(crate) fn new(pins: bool, limits: PinLimits) -> Self {
        let piece_bytes = match limits.piece_bytes {
            0 => pins.then_some(PIECE_BYTES),
            bytes => Some(bytes),
        };
        Self {
            piece_bytes,
            limits,
            table: BTreeMap::new(),
            by_key: BTreeMap::new(),
            next: 0,
            growing: VecDeque::new(),
            unused: VecDeque::new(),
            app_bytes: BTreeMap::new(),
            bytes: 0,
            counters: PinCounters::default(),
        }
    }

    pub(crate) fn counters(&self) -> PinCounters {
        self.counters
    }

    /// Registrations and their bytes.
    pub(crate) fn registered(&self) -> (u32, u64) {
        (self.table.values().map(|pinned| count(pinned.pieces.len())).sum(), self.bytes)
    }

    /// Bytes of an application's memory that is registered.
    pub(crate) fn bytes_of(&self, app: AppId) -> u64 {
        self.app_bytes.get(&app).copied().unwrap_or(0)
    }

    /// Memory of an application is going to be used. Its first piece is registered when this returns; the others follow
    /// round by round.
    pub(crate) fn attach<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        tenant: Option<&TenantPins>,
        region: &Region,
        access: Access,
    ) -> Result<PinId, VerbsError> {
        let key = (app, region.identity(), region.len(), access.bits());
        if let Some(&id) = self.by_key.get(&key)
            && let Some(pinned) = self.table.get_mut(&id).filter(|pinned| !pinned.was_refused)
        {
            if pinned.users == 0 {
                self.unused.retain(|(_, other)| *other != id);
            }
            pinned.users += 1;
            self.counters.hits += 1;
            return Ok(id);
        }
        self.make_room(nic, app, tenant, region.len())?;
        let piece_bytes = self.piece_bytes.unwrap_or(u64::MAX).min(region.len());
        let mr = match nic.reg_mr(region, 0, piece_bytes, access) {
            Ok(mr) => mr,
            Err(e) => {
                self.counters.refused += 1;
                return Err(e);
            }
        };
        self.counters.unpinned += u64::from(self.piece_bytes.is_none());
        let id = PinId(self.next);
        self.next += 1;
        let pinned =
            Pinned { key, region: region.clone(), access, piece_bytes, pieces: vec![mr], users: 1, was_refused: false };
        if !pinned.is_whole() {
            self.growing.push_back(id);
        }
        self.bytes += region.len();
        *self.app_bytes.entry(app).or_default() += region.len();
        self.table.insert(id, pinned);
        self.by_key.insert(key, id);
        Ok(id)
    }

    /// Gives up what nobody uses until so many bytes more are within the limits.
    fn make_room<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        tenant: Option<&TenantPins>,
        bytes: u64,
    ) -> Result<(), VerbsError> {
        loop {
            let of_tenant = |tenant: &TenantPins| tenant.apps.iter().map(|app| self.bytes_of(*app)).sum::<u64>();
            let tenant_over = tenant.filter(|tenant| of_tenant(tenant).saturating_add(bytes) > tenant.bytes_max);
            let own = [app];
            let (what, limit, whose) = if self.bytes_of(app).saturating_add(bytes) > self.limits.app_bytes_max {
                ("registered memory of an application", self.limits.app_bytes_max, Some(&own[..]))
            } else if let Some(tenant) = tenant_over {
                (TENANT_PINNED, tenant.limit, Some(&tenant.apps[..]))
            } else if self.bytes.saturating_add(bytes) > self.limits.bytes_max {
                ("registered memory of applications", self.limits.bytes_max, None)
            } else {
                return Ok(());
            };
            let is_of = |id: &PinId, apps: &[AppId]| self.table.get(id).is_some_and(|p| apps.contains(&p.app()));
            let helps = |(_, id): &(Time, PinId)| whose.is_none_or(|apps| is_of(id, apps));
            let Some(place) = self.unused.iter().position(helps) else {
                self.counters.refused += 1;
                return Err(VerbsError::Full { what, limit });
            };
            if let Some((_, id)) = self.unused.remove(place) {
                self.give_up(nic, id);
                self.counters.evicted += 1;
            }
        }
    }

    /// The memory itself.
    pub(crate) fn memory(&self, id: PinId) -> Option<&Region> {
        self.table.get(&id).map(|pinned| &pinned.region)
    }

    /// The parts of a range, each with its key.
    pub(crate) fn cover(&self, id: PinId, offset: u64, bytes: u32) -> Result<Vec<Part>, Uncovered> {
        let pinned = self.table.get(&id).ok_or(Uncovered::Never)?;
        let end = offset.checked_add(bytes.into()).filter(|end| *end <= pinned.region.len()).ok_or(Uncovered::Never)?;
        let (mut at, mut parts) = (offset, Vec::new());
        while at < end {
            let index = at / pinned.piece_bytes;
            let missing = if pinned.was_refused { Uncovered::Never } else { Uncovered::NotYet };
            let mr = usize::try_from(index).ok().and_then(|index| pinned.pieces.get(index)).ok_or(missing)?;
            let until = end.min((index + 1) * pinned.piece_bytes);
            let addr = at - index * pinned.piece_bytes;
            parts.push(Part { lkey: mr.lkey, addr, bytes: few(until - at) });
            at = until;
        }
        Ok(parts)
    }

    /// One use is over. When it was the last, the registration is kept for a while.
    pub(crate) fn detach(&mut self, now: Time, id: PinId) {
        let Some(pinned) = self.table.get_mut(&id) else { return };
        pinned.users = pinned.users.saturating_sub(1);
        if pinned.users == 0 {
            // What was never pinned, or is not whole, is not worth keeping.
            let since = if self.piece_bytes.is_some() && pinned.is_whole() { now } else { Time::ZERO };
            self.unused.push_back((since, id));
        }
    }

    /// An application is gone: nothing of its is kept.
    pub(crate) fn forget(&mut self, app: AppId) {
        for (since, id) in &mut self.unused {
            if self.table.get(id).is_some_and(|pinned| pinned.app() == app) {
                *since = Time::ZERO;
            }
        }
    }

    /// Registers the next piece of what is not whole, and gives up what nobody used for a while: in batches, in rounds
    /// that had nothing else to do (`is_calm`) unless there are many. Says whether pieces came that somebody may wait for.
    pub(crate) fn run<P: Provider>(&mut self, now: Time, nic: &mut P, is_calm: bool) -> bool {
        if is_calm || self.unused.len() >= UNUSED_MAX {
            self.give_up_unused(now, nic);
        }
        let Some(&id) = self.growing.front() else { return false };
        let Some(pinned) = self.table.get_mut(&id) else {
            self.growing.pop_front();
            return false;
        };
        let at = pinned.pieces.len() as u64 * pinned.piece_bytes;
        let len = pinned.piece_bytes.min(pinned.region.len() - at);
        match nic.reg_mr(&pinned.region, at, len, pinned.access) {
            Ok(mr) => {
                pinned.pieces.push(mr);
                self.counters.pipelined += 1;
            }
            Err(_) => {
                pinned.was_refused = true;
                self.counters.refused += 1;
            }
        }
        if pinned.was_refused || pinned.is_whole() {
            self.growing.pop_front();
        }
        true
    }

    fn give_up_unused<P: Provider>(&mut self, now: Time, nic: &mut P) {
        let mut given = 0;
        let mut place = 0;
        while given < BATCH
            && let Some(&(since, id)) = self.unused.get(place)
        {
            if since != Time::ZERO && now.saturating_since(since) < KEPT {
                place += 1;
                continue;
            }
            self.unused.remove(place);
            self.give_up(nic, id);
            given += 1;
        }
        self.counters.deferred += given as u64;
        self.counters.batches += u64::from(given > 0);
    }

    fn give_up<P: Provider>(&mut self, nic: &mut P, id: PinId) {
        let Some(pinned) = self.table.remove(&id) else { return };
        if self.by_key.get(&pinned.key) == Some(&id) {
            self.by_key.remove(&pinned.key);
        }
        self.growing.retain(|other| *other != id);
        self.bytes -= pinned.region.len();
        if let Some(bytes) = self.app_bytes.get_mut(&pinned.key.0) {
            *bytes -= pinned.region.len();
            if *bytes == 0 {
                self.app_bytes.remove(&pinned.key.0);
            }
        }
        for mr in pinned.pieces {
            let given: MrId = mr.id;
            // A device that refuses it keeps what it keeps; nobody names the key any more.
            let _ = nic.dereg_mr(given);
        }
    }

    /// When [`Self::run`] is needed even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.growing.is_empty() {
            return Some(Time::ZERO);
        }
        self.unused.iter().map(|(since, _)| if *since == Time::ZERO { *since } else { *since + KEPT }).min()
    }
}

#[cfg(test)]
mod tests;
