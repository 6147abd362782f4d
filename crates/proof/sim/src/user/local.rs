//! A region of its own host that a program's operations read into and write from: one that it makes, or another program's.
//!
//! Owns when the program makes, opens, registers, moves and gives up that region, in the order in which the client library
//! does. What bytes came with an operation it takes from the memory that was registered when the operation began.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering::SeqCst;

use control::{OpenedRegion, RegionAccess, RegionKey, RegionPath, Reply, Request};
use raas_core::{RegionMade, RegionPlace};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use shm::{LocalSegment, OperationStatus};
use verbs::Region;

use crate::plan::LocalPlan;
use crate::regions::{NAME, REGION_BYTES, Shared, region_spec};

/// Words of a region that programs have for themselves, behind those that all use, and how many one has.
const BLOCKS: u64 = 28;
const BLOCK_WORDS: u64 = 16;
const FIRST_WORD: u64 = 64;
/// What a region is in, and what it has left while operations go on there.
const PER_HANDLE_MAX: u64 = 2;
/// Of so many looks at its region one has the program do each of these.
const LOOKS_PER_DETACH: u32 = 12;
const LOOKS_PER_REVOKE: u32 = 10;
const LOOKS_PER_CLOSE: u32 = 40;
/// The same for a move that it was asked for, and for asking for a region.
const LOOKS_PER_MOVE: u32 = 3;

/// Registered memory.
#[derive(Debug, Clone)]
struct Registered {
    number: u32,
    memory: Region,
}

/// Memory that an operation under way names.
#[derive(Debug, Clone)]
pub(crate) struct Used {
    registered: Registered,
    at: u64,
    /// What a WRITE takes from there.
    value: Option<u64>,
    /// Its number is of a daemon before this one.
    is_stale: bool,
}

#[derive(Debug)]
struct Held {
    open: u64,
    place: RegionPlace,
    /// As of the place's epoch.
    registered: Option<Registered>,
    /// The request that is to register it, and what.
    attaching: Option<(u64, Region)>,
    moving: Option<(RegionMade, Region)>,
    is_revoking: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Local {
    key: Option<RegionKey>,
    asked: Option<u64>,
    held: Option<Held>,
    /// What a daemon before this one had registered.
    before: Option<Registered>,
    block: u64,
}

impl Local {
    fn is_own(&self) -> bool {
        self.key.is_some()
    }

    /// The first daemon calls the program so: others have other words.
    pub(super) fn of(client: u64) -> Self {
        Self { block: client % BLOCKS, ..Self::default() }
    }

    /// The region is over.
    fn end(&mut self) {
        *self = Self { before: self.before.take(), ..Self::of(self.block) };
    }

    /// The daemon has ended.
    pub(super) fn part(&mut self) {
        let registered = self.held.take().and_then(|held| held.registered);
        self.before = registered.or(self.before.take());
        self.end();
    }

    /// What the program asks its daemon for. `next`: numbers for requests; `hosts`: what opens its host's region.
    pub(super) fn ask(
        &mut self,
        plan: LocalPlan,
        user: usize,
        hosts: Option<(IpAddr, RegionKey)>,
        mut next: impl FnMut() -> u64,
        rng: &mut StdRng,
    ) -> Option<Request> {
        let name = format!("of {user}");
        let Some(held) = &mut self.held else {
            if self.asked.is_some() || !rng.random_ratio(1, LOOKS_PER_MOVE) {
                return None;
            }
            let request = next();
            let asks = match (plan, hosts) {
                (LocalPlan::Own, _) => {
                    let mut key = [0; 16];
                    rng.fill(&mut key[..]);
                    self.key = Some(RegionKey::new(key));
                    Request::RegionCreate { request, spec: region_spec(name, RegionKey::new(key), false) }
                }
                (LocalPlan::Hosts, Some((host, key))) => {
                    let (name, access, lease, leased_lane) = (NAME.into(), RegionAccess::ALL, None, false);
                    Request::RegionOpen { request, host, name, key, access, lease, leased_lane }
                }
                _ => return None,
            };
            self.asked = Some(request);
            return Some(asks);
        };
        let (is_own, open) = (self.key.is_some(), held.open);
        if held.moving.is_some() && rng.random_ratio(1, LOOKS_PER_MOVE) {
            let (made, memory) = held.moving.take()?;
            // A move between two daemons is none: this region ends with its own.
            _ = held.place.move_to((memory, None), REGION_BYTES as u64, made);
            held.registered = None;
            return Some(Request::RegionMoved { open, epoch: made.epoch });
        }
        if rng.random_ratio(1, LOOKS_PER_CLOSE) {
            self.end();
            return Some(Request::RegionClose { open, delete: is_own });
        }
        if held.registered.is_none() && held.attaching.is_none() && held.place.check(is_own).is_ok() {
            let request = next();
            held.attaching = Some((request, held.place.memory.clone()));
            return Some(Request::RegionAttach { request, open, epoch: held.place.epoch });
        }
        if let (Some(key), false) = (self.key, held.is_revoking)
            && rng.random_ratio(1, LOOKS_PER_REVOKE)
        {
            held.is_revoking = true;
            return Some(Request::RegionRevoke { request: next(), name, key, new_key: None });
        }
        let detached = held.registered.take_if(|_| rng.random_ratio(1, LOOKS_PER_DETACH))?;
        Some(Request::RegionDetach { number: detached.number })
    }

    /// The daemon said something: whether it was about this region. An error is what it had no reason for.
    pub(super) fn hear(&mut self, reply: &Reply, memory: Option<&Shared>) -> Result<bool, String> {
        let is_own = self.is_own();
        match reply {
            Reply::RegionOpened { request, result } => {
                if self.asked.take_if(|asked| asked == request).is_none() {
                    return Ok(false);
                }
                match result {
                    Ok(OpenedRegion { open, info, path: path @ RegionPath::Local { stamp, .. } }) => {
                        let mapping = memory.cloned().and_then(|shared| shared.map(path)).ok_or("it has no memory")?;
                        let made = RegionMade { stamp: *stamp, epoch: info.epoch, daemon: 0 };
                        let place = RegionPlace::new(mapping, made);
                        let (registered, attaching, moving) = (None, None, None);
                        let is_revoking = false;
                        self.held = Some(Held { open: *open, place, registered, attaching, moving, is_revoking });
                    }
                    Ok(opened) => return Err(format!("a region of its own host is {opened:?}")),
                    Err(why) if is_own => return Err(format!("it may not make a region: {why}")),
                    Err(_) => {}
                }
                Ok(true)
            }
            Reply::RegionAttached { request, result } => {
                let Some(held) = &mut self.held else { return Ok(true) };
                let Some((_, memory)) = held.attaching.take_if(|(asked, _)| asked == request) else { return Ok(true) };
                let is_newest = memory.as_ptr() == held.place.memory.as_ptr();
                match result {
                    // It was moved between the two looks: it is registered anew.
                    Ok(number) if is_newest => held.registered = Some(Registered { number: *number, memory }),
                    Ok(_) => {}
                    Err(why) if is_own && held.place.check(true).is_ok() => {
                        return Err(format!("a region of its own is not registered: {why}"));
                    }
                    Err(_) => {}
                }
                Ok(true)
            }
            _ => Ok(self.hear_of_handle(reply, memory)),
        }
    }

    fn hear_of_handle(&mut self, reply: &Reply, memory: Option<&Shared>) -> bool {
        let Some(held) = &mut self.held else { return false };
        match reply {
            Reply::RegionMove { open, epoch, stamp, .. } if *open == held.open => {
                let made = RegionMade { stamp: *stamp, epoch: *epoch, daemon: 0 };
                held.moving = memory.map(|shared| (made, shared.memory.clone()));
            }
            Reply::RegionRevoked { .. } => held.is_revoking = false,
            Reply::RegionEnded { open, .. } if *open == held.open => {
                self.end();
            }
            _ => return false,
        }
        true
    }

    /// Memory for an operation of 8 bytes, if there is some: a word that holds what a WRITE takes, or something that no region
    /// has.
    pub(super) fn take(
        &mut self,
        value: Option<u64>,
        in_use: impl Iterator<Item = u64>,
        rng: &mut StdRng,
    ) -> Option<(Used, LocalSegment)> {
        let registered = self.held.as_ref().and_then(|held| held.registered.as_ref());
        let is_stale = self.before.is_some() && rng.random_ratio(1, 6);
        let registered = if is_stale { self.before.as_ref() } else { registered }?.clone();
        let in_use: BTreeSet<u64> = in_use.collect();
        let words = (0..BLOCK_WORDS).map(|word| (FIRST_WORD + self.block * BLOCK_WORDS + word) * 8);
        let at = words.into_iter().find(|at| !in_use.contains(at))?;
        let number = registered.number;
        registered.memory.word64(at).ok()?.store(value.unwrap_or(!rng.next_u64() | 1 << 63), SeqCst);
        let segment = LocalSegment { region: number, bytes: 8, offset: at };
        Some((Used { registered, at, value, is_stale }, segment))
    }

    /// An operation on such memory has ended: what a READ found.
    pub(super) fn judge(&self, used: &Used, status: OperationStatus) -> Result<Option<u64>, String> {
        let Used { registered, at, value, is_stale } = used;
        let found = registered.memory.word64(*at).map_err(|e| e.to_string())?.load(SeqCst);
        if value.is_some_and(|value| value != found) {
            return Err(format!("local memory that was written from has {found:#x} now"));
        }
        match status {
            OperationStatus::Ok if *is_stale => Err("local memory of a daemon before this one is there".into()),
            OperationStatus::NoLocalRegion if !is_stale && self.has(registered.number) => {
                Err(format!("local memory {} is not there, and the program has it", registered.number))
            }
            _ => Ok(value.is_none().then_some(found)),
        }
    }

    /// How much local memory the engine may have for the program.
    pub(super) fn most(&self) -> u64 {
        if self.held.is_some() { PER_HANDLE_MAX } else { 0 }
    }

    /// Whether the program has such memory, as far as its region's stamp says.
    fn has(&self, number: u32) -> bool {
        let of = |held: &&Held| held.registered.as_ref().is_some_and(|of| of.number == number);
        self.held.as_ref().filter(of).is_some_and(|held| held.place.check(self.is_own()).is_ok())
    }
}

impl Used {
    pub(super) fn at(&self) -> u64 {
        self.at
    }
}
