//! Registered memory of one lane, for bytes of operations that travel in the rings.
//!
//! Owns which slot is in use. It must never give a slot out while the device may touch it.

use shm::{OPERATION_INLINE_MAX, Region};
use verbs::{Access, Lkey, MrId, Provider, Sge, VerbsError};

use crate::limits::OPERATION_BUFFERS;
use crate::numbers::index;

/// The slots.
#[derive(Debug)]
pub(crate) struct Buffers {
    region: Region,
    lkey: Lkey,
    pub(crate) mr: MrId,
    free: Vec<u16>,
}

impl Buffers {
    /// Makes and registers them. Their pages exist when they are used.
    pub(crate) fn new<P: Provider>(nic: &mut P) -> Result<Self, VerbsError> {
        let bytes = u64::from(OPERATION_BUFFERS) * u64::from(OPERATION_INLINE_MAX);
        let region = Region::anonymous(index(bytes))
            .map_err(|e| VerbsError::Os { call: "mmap", errno: e.raw_os_error().unwrap_or(0) })?;
        let mr = nic.reg_mr(&region, 0, bytes, Access::LOCAL_WRITE)?;
        Ok(Self { region, lkey: mr.lkey, mr: mr.id, free: (0..OPERATION_BUFFERS).rev().collect() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.region.len()
    }

    /// A slot, the one that was used last first.
    pub(crate) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn put_back(&mut self, slot: u16) {
        debug_assert!(!self.free.contains(&slot), "slot {slot} is free already");
        self.free.push(slot);
    }

    fn at(slot: u16) -> u64 {
        u64::from(slot) * u64::from(OPERATION_INLINE_MAX)
    }

    /// Puts bytes into a slot. False: they do not fit, which the limit of submissions excludes.
    pub(crate) fn fill(&self, slot: u16, bytes: &[u8]) -> bool {
        bytes.len() <= OPERATION_INLINE_MAX as usize && self.region.write(Self::at(slot), bytes).is_ok()
    }

    /// Copies bytes out of a slot.
    pub(crate) fn read(&self, slot: u16, out: &mut [u8]) -> bool {
        out.len() <= OPERATION_INLINE_MAX as usize && self.region.read(Self::at(slot), out).is_ok()
    }

    pub(crate) fn sge(&self, slot: u16, skipped: u32, len: u32) -> Sge {
        Sge { addr: Self::at(slot) + u64::from(skipped), len, lkey: self.lkey }
    }
}
