//! Regions of this host that others may use: registered once for all peers, and who of them has which open.
//!
//! Owns what a peer's record may reach. It must never execute anything for a peer that has not the region open, or
//! outside of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use control::{RegionAccess, RegionGrant};
use kernels::View;
use shm::OperationStatus;
use verbs::{Access, Mr, MrId, Provider, Region, VerbsError};

use crate::limits::REGIONS_REGISTERED_MAX;
use crate::numbers::count;

use super::Outcome;
use crate::ask::Ask;

/// What a peer asked for that it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegionBreach {
    #[error("an operation on region key {0:#x}, which the peer has not open")]
    NotOpen(u32),
    #[error("an operation at offset {offset} of region {region}, which has {bytes} bytes")]
    OutOfBounds { region: u64, offset: u64, bytes: u64 },
    #[error("an atomic at offset {offset} of region {region}, which is not a multiple of 8")]
    Misaligned { region: u64, offset: u64 },
    #[error("an operation on region {region}, which allows {allowed}")]
    Access { region: u64, allowed: RegionAccess },
}

#[derive(Debug)]
struct Owned {
    epoch: u64,
    access: RegionAccess,
    memory: Region,
    mr: Mr,
    /// Who has it open.
    peers: BTreeSet<IpAddr>,
    /// Those of them who lose it: nothing of theirs runs any more.
    halted: BTreeSet<IpAddr>,
    writer: Option<Writer>,
}

/// Who alone may write it, by a registration of its own.
#[derive(Debug, Clone, Copy)]
struct Writer {
    peer: IpAddr,
    access: RegionAccess,
    mr: Mr,
}

impl Owned {
    /// What a peer may do that names the region by this key; none: it has it not open by that.
    fn allowed(&self, peer: IpAddr, key: u32) -> Option<RegionAccess> {
        match &self.writer {
            Some(writer) if writer.mr.rkey.0 == key => (writer.peer == peer).then_some(writer.access),
            _ => self.peers.contains(&peer).then_some(self.access),
        }
    }
}

fn rights_of(access: RegionAccess) -> Access {
    let mut rights = Access::empty();
    rights.set(Access::REMOTE_READ, access.contains(RegionAccess::READ));
    // IBTA 10.6.3.1: what peers may write, the device may.
    rights.set(Access::REMOTE_WRITE | Access::LOCAL_WRITE, access.contains(RegionAccess::WRITE));
    rights
}

/// Keys of writers that were fenced off, which a writer who has not heard of it may still name: oldest first.
#[derive(Debug, Default)]
struct Fenced {
    of: BTreeMap<u32, (IpAddr, u64)>,
    oldest: VecDeque<u32>,
}

impl Fenced {
    fn insert(&mut self, key: u32, of: (IpAddr, u64)) {
        self.of.insert(key, of);
        self.oldest.push_back(key);
        if self.oldest.len() > REGIONS_REGISTERED_MAX {
            self.oldest.pop_front().into_iter().for_each(|key| _ = self.of.remove(&key));
        }
    }

    /// The region that a peer wrote by this key.
    fn region(&self, peer: IpAddr, key: u32) -> Option<u64> {
        self.of.get(&key).filter(|(of, _)| *of == peer).map(|(_, region)| *region)
    }
}

/// A region of this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) number: u64,
    epoch: u64,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct OwnedRegions {
    table: BTreeMap<u64, Owned>,
    by_key: BTreeMap<u32, u64>,
    fenced: Fenced,
    bytes: u64,
}

impl OwnedRegions {
    pub(crate) fn len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Registrations and their bytes.
    pub(crate) fn registered(&self) -> (u32, u64) {
        (count(self.by_key.len()), self.bytes)
    }

    pub(crate) fn register<P: Provider>(
        &mut self,
        nic: &mut P,
        (number, epoch): (u64, u64),
        memory: Region,
        access: RegionAccess,
    ) -> Result<(), VerbsError> {
        if self.table.contains_key(&number) {
            return Err(VerbsError::Busy("number of the region"));
        }
        if self.table.len() >= REGIONS_REGISTERED_MAX {
            return Err(VerbsError::Full { what: "list of regions", limit: REGIONS_REGISTERED_MAX as u64 });
        }
        let mr = nic.reg_mr(&memory, 0, memory.len(), rights_of(access))?;
        self.bytes += memory.len();
        self.name(mr.rkey.0, number);
        let (peers, halted) = (BTreeSet::new(), BTreeSet::new());
        let owned = Owned { epoch, access, memory, mr, peers, halted, writer: None };
        self.table.insert(number, owned);
        Ok(())
    }

    /// Registers a region once more, for the one peer that writes it. The writer before was [taken](Self::take_writer).
    pub(crate) fn register_writer<P: Provider>(
        &mut self,
        nic: &mut P,
        number: u64,
        peer: IpAddr,
        access: RegionAccess,
    ) -> Result<Mr, VerbsError> {
        let owned = self.table.get_mut(&number).ok_or(VerbsError::NoSuch("region"))?;
        if owned.writer.is_some() {
            return Err(VerbsError::Busy("writer of the region"));
        }
        let mr = nic.reg_mr(&owned.memory, 0, owned.memory.len(), rights_of(access))?;
        owned.writer = Some(Writer { peer, access, mr });
        self.bytes += owned.memory.len();
        self.name(mr.rkey.0, number);
        Ok(mr)
    }

    /// A key names a region from here on. A device may give one again that a fenced writer had.
    fn name(&mut self, key: u32, number: u64) {
        self.fenced.of.remove(&key);
        self.by_key.insert(key, number);
    }

    /// The registration of a region's writer, whose key names nothing from here on.
    pub(crate) fn take_writer(&mut self, number: u64) -> Option<MrId> {
        let owned = self.table.get_mut(&number)?;
        let writer = owned.writer.take()?;
        self.bytes -= owned.memory.len();
        self.by_key.remove(&writer.mr.rkey.0);
        self.fenced.insert(writer.mr.rkey.0, (writer.peer, number));
        Some(writer.mr.id)
    }

    /// What a peer needs to know of a region, which it has open from then on. With it: whether that is new.
    pub(crate) fn grant(&mut self, number: u64, peer: IpAddr) -> Option<(RegionGrant, bool)> {
        let owned = self.table.get_mut(&number)?;
        let is_new = owned.peers.insert(peer);
        owned.halted.remove(&peer);
        let grant = RegionGrant {
            region: number,
            epoch: owned.epoch,
            bytes: owned.memory.len(),
            access: owned.access,
            rkey: owned.mr.rkey.0,
            addr: 0,
            last_term: 0,
        };
        Some((grant, is_new))
    }

    /// A peer has a region open no more. Whether it had.
    pub(crate) fn ungrant(&mut self, number: u64, peer: IpAddr) -> bool {
        self.table.get_mut(&number).is_some_and(|owned| owned.peers.remove(&peer))
    }

    /// A peer has none open any more. How many it had.
    pub(crate) fn ungrant_all(&mut self, peer: IpAddr) -> usize {
        self.table.values_mut().filter_map(|owned| owned.peers.remove(&peer).then_some(())).count()
    }

    /// Takes a region of this epoch out: its registration, and who still had it open.
    pub(crate) fn remove(&mut self, number: u64, epoch: u64) -> Option<(MrId, BTreeSet<IpAddr>)> {
        if self.table.get(&number).is_none_or(|owned| owned.epoch != epoch) {
            return None;
        }
        let owned = self.table.remove(&number)?;
        self.by_key.remove(&owned.mr.rkey.0);
        self.bytes -= owned.memory.len();
        Some((owned.mr.id, owned.peers))
    }

    /// Nothing of a peer's runs at a region any more, until it opens it again.
    pub(crate) fn halt(&mut self, number: u64, peer: IpAddr) {
        if let Some(owned) = self.table.get_mut(&number) {
            owned.halted.insert(peer);
        }
    }

    /// The same of all peers.
    pub(crate) fn halt_all(&mut self, number: u64) {
        if let Some(owned) = self.table.get_mut(&number) {
            owned.halted.clone_from(&owned.peers);
        }
    }

    /// A region that a peer names by its key, and what of `asked` it allows.
    pub(crate) fn for_kernel(
        &self,
        peer: IpAddr,
        key: u32,
        asked: RegionAccess,
    ) -> Result<(Whole, RegionAccess), RegionBreach> {
        if let Some(number) = self.fenced.region(peer, key) {
            // No region has that epoch, so it cannot be viewed.
            return Ok((Whole { number, epoch: u64::MAX }, asked));
        }
        let not_open = RegionBreach::NotOpen(key);
        let number = *self.by_key.get(&key).ok_or(not_open)?;
        let owned = self.table.get(&number).ok_or(not_open)?;
        let access = asked & owned.allowed(peer, key).ok_or(not_open)?;
        Ok((Whole { number, epoch: owned.epoch }, access))
    }

    /// A region as a kernel of a peer's may touch it. `None`: not any more.
    pub(crate) fn view(&self, peer: IpAddr, whole: Whole, access: RegionAccess) -> Option<View> {
        let owned = self.table.get(&whole.number).filter(|o| o.epoch == whole.epoch)?;
        let is_open = owned.peers.contains(&peer) && !owned.halted.contains(&peer);
        let may = |right| access.contains(right);
        is_open.then(|| View::new(owned.memory.clone(), may(RegionAccess::READ), may(RegionAccess::WRITE)))
    }

    /// The region of which a peer may tell the owner that it wrote these bytes. `None`: not any more.
    pub(crate) fn may_notify(
        &self,
        peer: IpAddr,
        key: u32,
        offset: u64,
        bytes: u32,
    ) -> Result<Option<u64>, RegionBreach> {
        if self.fenced.region(peer, key).is_some() {
            return Ok(None);
        }
        let not_open = RegionBreach::NotOpen(key);
        let region = *self.by_key.get(&key).ok_or(not_open)?;
        let owned = self.table.get(&region).ok_or(not_open)?;
        let allowed = owned.allowed(peer, key).ok_or(not_open)?;
        if !allowed.contains(RegionAccess::WRITE) {
            return Err(RegionBreach::Access { region, allowed });
        }
        if offset.checked_add(bytes.into()).is_none_or(|end| end > owned.memory.len()) {
            return Err(RegionBreach::OutOfBounds { region, offset, bytes: owned.memory.len() });
        }
        Ok((!owned.halted.contains(&peer)).then_some(region))
    }

    /// Does what a peer asks for, in the region's own bytes; nothing for a writer that was fenced off.
    pub(crate) fn execute(&mut self, peer: IpAddr, key: u32, offset: u64, ask: Ask) -> Result<Outcome, RegionBreach> {
        if self.fenced.region(peer, key).is_some() {
            return Ok(Outcome::of(OperationStatus::Revoked, 0));
        }
        let not_open = RegionBreach::NotOpen(key);
        let number = *self.by_key.get(&key).ok_or(not_open)?;
        let owned = self.table.get_mut(&number).ok_or(not_open)?;
        let allowed = owned.allowed(peer, key).ok_or(not_open)?;
        let denied = RegionBreach::Access { region: number, allowed };
        match ask {
            // A kernel has a record of its own; `Ask::from_parts` knows it not. A notice does nothing to the bytes.
            Ask::Run | Ask::Notify { .. } => Err(denied),
            Ask::Confirm => Ok(Outcome::DONE),
            Ask::Atomic(_) if !allowed.contains(RegionAccess::ATOMIC) => Err(denied),
            Ask::Atomic(atomic) => match owned.memory.atomic64(offset, atomic) {
                Ok(value) => Ok(Outcome { value, ..Outcome::DONE }),
                Err(shm::RegionError::Misaligned { .. }) => Err(RegionBreach::Misaligned { region: number, offset }),
                Err(_) => Err(RegionBreach::OutOfBounds { region: number, offset, bytes: owned.memory.len() }),
            },
        }
    }
}
