//! Local regions: memory of applications that their operations copy from and to without a copy in between.
//!
//! Owns their use of registrations (`pins`). It must never give one up that a posted operation names.

use std::collections::BTreeMap;

use shm::{LocalSegment, Opcode, Submission};
use verbs::{Access, Lkey, Provider, Region, Sge, Time, VerbsError};

use crate::ids::AppId;
use crate::limits::LOCAL_REGIONS_PER_APP_MAX;
use crate::pins::{PinId, Pins, TenantPins, Uncovered};

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
    pin: PinId,
    /// A READ may put bytes there.
    writable: bool,
    uses: u32,
    is_detached: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Locals {
    table: BTreeMap<(AppId, u32), Local>,
    /// Detached, and not in use.
    unused: Vec<(AppId, u32)>,
    pins: Pins,
}

impl Locals {
    pub(crate) fn new(pins: Pins) -> Self {
        Self { table: BTreeMap::new(), unused: Vec::new(), pins }
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    pub(crate) fn pins_mut(&mut self) -> &mut Pins {
        &mut self.pins
    }

    pub(crate) fn len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Registers memory of an application under a number of the daemon's.
    pub(crate) fn attach<P: Provider>(
        &mut self,
        nic: &mut P,
        (app, number): (AppId, u32),
        tenant: Option<&TenantPins>,
        region: &Region,
        writable: bool,
    ) -> Result<(), VerbsError> {
        if self.table.contains_key(&(app, number)) {
            return Err(VerbsError::Busy("number of the local region"));
        }
        let limit = LOCAL_REGIONS_PER_APP_MAX;
        if self.table.range((app, 0)..=(app, u32::MAX)).count() >= limit {
            return Err(VerbsError::Full { what: "list of local regions", limit: limit as u64 });
        }
        let rights = if writable { Access::LOCAL_WRITE } else { Access::empty() };
        let pin = self.pins.attach(nic, app, tenant, region, rights)?;
        self.table.insert((app, number), Local { pin, writable, uses: 0, is_detached: false });
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

    /// The memory that the segments of a submission name, if it is there, may be used so, and has as many bytes
    /// together.
    pub(crate) fn resolve(
        &mut self,
        app: AppId,
        segments: &[LocalSegment],
        front: &Submission,
    ) -> Result<Vec<Piece>, Uncovered> {
        let writes = front.opcode == Opcode::Read;
        let mut pieces = Vec::with_capacity(segments.len());
        for segment in segments {
            let number = segment.region;
            let local = self.table.get(&(app, number)).filter(|l| !l.is_detached && (l.writable || !writes));
            let parts = self.pins.cover(local.ok_or(Uncovered::Never)?.pin, segment.offset, segment.bytes)?;
            pieces.extend(parts.into_iter().map(|p| Piece { lkey: p.lkey, addr: p.addr, bytes: p.bytes, number }));
        }
        let sum: u64 = pieces.iter().map(|p| u64::from(p.bytes)).sum();
        if sum != u64::from(front.bytes) {
            return Err(Uncovered::Never);
        }
        for piece in &pieces {
            if let Some(local) = self.table.get_mut(&(app, piece.number)) {
                local.uses += 1;
            }
        }
        Ok(pieces)
    }

    /// Local memory that an operation in a region of this host reads, or writes.
    pub(crate) fn memory(&self, app: AppId, number: u32, writes: bool) -> Option<&Region> {
        let local = self.table.get(&(app, number)).filter(|l| !l.is_detached && (l.writable || !writes))?;
        self.pins.memory(local.pin)
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

    /// The registrations of those are used no more.
    pub(crate) fn settle(&mut self, now: Time) {
        let Self { table, unused, pins } = self;
        for key in unused.drain(..) {
            if let Some(local) = table.remove(&key) {
                pins.detach(now, local.pin);
            }
        }
    }
}
