//! Local regions: memory of applications that their operations copy from and to without a copy in between.
//!
//! Owns their registration. It must never deregister one that a posted operation names.

use std::collections::BTreeMap;

use shm::LocalSegment;
use verbs::{Access, Lkey, MrId, Provider, Region, Sge, VerbsError};

use crate::ids::AppId;
use crate::limits::LOCAL_REGIONS_PER_APP_MAX;

/// A piece of a local region, as an operation uses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    lkey: Lkey,
    addr: u64,
    pub(crate) bytes: u32,
    number: u32,
}

impl Piece {
    pub(crate) fn sge(&self, skipped: u32, len: u32) -> Sge {
        Sge { addr: self.addr + u64::from(skipped), len, lkey: self.lkey }
    }
}

#[derive(Debug)]
struct Local {
    bytes: u64,
    lkey: Lkey,
    mr: MrId,
    uses: u32,
    is_detached: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    table: BTreeMap<(AppId, u32), Local>,
    /// Detached, and not in use.
    unused: Vec<(AppId, u32)>,
    registered: u64,
}

impl Locals {
    /// Registers memory of an application under a number of the daemon's.
    pub(crate) fn attach<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        number: u32,
        region: &Region,
    ) -> Result<(), VerbsError> {
        if self.table.contains_key(&(app, number)) {
            return Err(VerbsError::Busy("number of the local region"));
        }
        let limit = LOCAL_REGIONS_PER_APP_MAX;
        if self.table.range((app, 0)..=(app, u32::MAX)).count() >= limit {
            return Err(VerbsError::Full { what: "list of local regions", limit: limit as u64 });
        }
        let mr = nic.reg_mr(region, 0, region.len(), Access::LOCAL_WRITE)?;
        self.registered += region.len();
        let local = Local { bytes: region.len(), lkey: mr.lkey, mr: mr.id, uses: 0, is_detached: false };
        self.table.insert((app, number), local);
        Ok(())
    }

    /// It goes when no operation uses it any more.
    pub(crate) fn detach(&mut self, app: AppId, number: u32) {
        if let Some(local) = self.table.get_mut(&(app, number))
            && !std::mem::replace(&mut local.is_detached, true)
            && local.uses == 0
        {
            self.unused.push((app, number));
        }
    }

    /// An application is gone, and with it all that could use its memory.
    pub(crate) fn detach_all(&mut self, app: AppId) {
        let numbers: Vec<_> = self.table.range((app, 0)..=(app, u32::MAX)).map(|(key, _)| key.1).collect();
        numbers.into_iter().for_each(|number| self.detach(app, number));
    }

    /// The memory that segments name, if it is there, and has as many bytes together.
    pub(crate) fn resolve(&mut self, app: AppId, segments: &[LocalSegment], bytes: u32) -> Option<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(segments.len());
        for segment in segments {
            let local = self.table.get(&(app, segment.region)).filter(|l| !l.is_detached)?;
            let end = segment.offset.checked_add(segment.bytes.into())?;
            if end > local.bytes {
                return None;
            }
            let (lkey, addr) = (local.lkey, segment.offset);
            pieces.push(Piece { lkey, addr, bytes: segment.bytes, number: segment.region });
        }
        let sum: u64 = pieces.iter().map(|p| u64::from(p.bytes)).sum();
        if sum != u64::from(bytes) {
            return None;
        }
        for piece in &pieces {
            if let Some(local) = self.table.get_mut(&(app, piece.number)) {
                local.uses += 1;
            }
        }
        Some(pieces)
    }

    /// An operation that used these is over.
    pub(crate) fn release(&mut self, app: AppId, pieces: &[Piece]) {
        for piece in pieces {
            let Some(local) = self.table.get_mut(&(app, piece.number)) else { continue };
            local.uses = local.uses.saturating_sub(1);
            if local.uses == 0 && local.is_detached {
                self.unused.push((app, piece.number));
            }
        }
    }

    pub(crate) fn has_unused(&self) -> bool {
        !self.unused.is_empty()
    }

    /// Memory to be deregistered.
    pub(crate) fn take_unused(&mut self) -> Vec<MrId> {
        let Self { table, unused, registered } = self;
        let gone = unused.drain(..).filter_map(|key| {
            let local = table.remove(&key)?;
            *registered -= local.bytes;
            Some(local.mr)
        });
        gone.collect()
    }

    /// Registrations and their bytes.
    pub(crate) fn registered(&self) -> (u32, u64) {
        (self.table.len() as u32, self.registered)
    }
}
