//! The memory translation and protection table: keys, bounds and rights of registered regions (IBTA 10.6).
//!
//! Owns every access to registered memory: copies in and out and 8-byte atomics, each after its check. Nothing here
//! keeps a reference into a region.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use rand::Rng;
use verbs::{Access, Lkey, Mr, MrId, MrInit, PdId, Region, Rkey, Sge, VerbsError};

use crate::limits::{MAX_MR, RECENT_KEYS};
use crate::number_hash::NumberHasher;

/// A key, bound or right does not hold, and nothing was touched; or the memory is gone, and a part may have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFault {
    /// No region has that key.
    Key,
    /// The range does not lie in the region, or in the list.
    Bounds,
    /// The region was not registered for that use.
    Rights,
    /// The program that registered its memory has unmapped it, or protects it against that use.
    Unmapped,
}

/// A checked piece of a registered region: the place of its bytes for somebody who moves them himself, such as the kernel
/// in a gathered send. It keeps the memory mapped. Whether the registration still holds is asked again for each move.
#[derive(Debug, Clone)]
pub struct MemoryRange {
    /// The region.
    pub region: Region,
    /// Offset into the region.
    pub offset: u64,
    /// Bytes; they lie in the region.
    pub len: u64,
}

/// An 8-byte operation on a peer's behalf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Swaps if the value is `compare`.
    CompareSwap {
        /// What the value has to be.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds modulo 2^64.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

#[derive(Debug)]
struct Registration {
    pd: PdId,
    region: Region,
    offset: u64,
    /// The address of its first byte.
    iova: u64,
    len: u64,
    access: Access,
}

/// Registered regions by key: 32 random bits, the same number for lkey and rkey of a region; rights decide what it is
/// good for.
#[derive(Debug)]
pub struct MrTable {
    /// `None`: the key was given up lately.
    by_key: HashMap<u32, Option<Registration>, BuildHasherDefault<NumberHasher>>,
    /// Keys that were given up, oldest first.
    recent: VecDeque<u32>,
    limit: u32,
}

/// The table as QPs of one protection domain see it: regions of others are none (IBTA 10.2.3).
#[derive(Debug, Clone, Copy)]
pub struct Domain<'a> {
    table: &'a MrTable,
    pd: PdId,
}

impl MrTable {
    /// An empty table of so many regions, at most [`MAX_MR`].
    pub fn new(limit: u32) -> Self {
        Self { by_key: HashMap::default(), recent: VecDeque::new(), limit: limit.min(MAX_MR) }
    }

    /// Registers a piece of a region under a key that no other region has or had recently.
    pub fn register(&mut self, init: &MrInit<'_>, entropy: &mut impl Rng) -> Result<Mr, VerbsError> {
        let MrInit { pd, region, offset, len, iova, access } = *init;
        let max = region.len().saturating_sub(offset);
        if len == 0 || len > max {
            return Err(VerbsError::OutOfRange { what: "length of the memory region", value: len, min: 1, max });
        }
        if iova.checked_add(len).is_none() {
            let max = u64::MAX - len;
            return Err(VerbsError::OutOfRange { what: "address of the memory region", value: iova, min: 0, max });
        }
        if self.by_key.len() - self.recent.len() >= self.limit as usize {
            return Err(VerbsError::Full { what: "the memory region table", limit: self.limit.into() });
        }
        let key = loop {
            let key = entropy.next_u32();
            // Small numbers are what a stranger tries first.
            if key >> 16 != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        self.by_key.insert(key, Some(Registration { pd, region: region.clone(), offset, iova, len, access }));
        Ok(Mr { id: MrId(key), lkey: Lkey(key), rkey: Rkey(key), len })
    }

    /// Forgets a region. No later operation reaches it.
    pub fn deregister(&mut self, mr: MrId) -> Result<(), VerbsError> {
        let registered = self.by_key.get_mut(&mr.0).filter(|slot| slot.is_some());
        *registered.ok_or(VerbsError::NoSuch("memory region"))? = None;
        self.recent.push_back(mr.0);
        if self.recent.len() > RECENT_KEYS
            && let Some(oldest) = self.recent.pop_front()
        {
            self.by_key.remove(&oldest);
        }
        Ok(())
    }

    /// Zeroes a range and gives its whole pages back.
    pub fn discard(&self, mr: MrId, addr: u64, len: u64) -> Result<(), VerbsError> {
        let missing = |_: KeyFault| VerbsError::NoSuch("memory region with such a range");
        let r = self.at(mr.0).map_err(missing)?;
        let (r, at) = self.of(r.pd).registered(mr.0, addr, len, Access::empty()).map_err(missing)?;
        r.region.discard(at, len).map_err(|_| VerbsError::NoSuch("memory region whose pages may be given back"))
    }

    fn at(&self, key: u32) -> Result<&Registration, KeyFault> {
        self.by_key.get(&key).and_then(Option::as_ref).ok_or(KeyFault::Key)
    }

    /// Whether a region is in that domain.
    pub fn has_of(&self, pd: PdId) -> bool {
        self.by_key.values().flatten().any(|registered| registered.pd == pd)
    }

    /// The table as QPs of a domain see it.
    pub const fn of(&self, pd: PdId) -> Domain<'_> {
        Domain { table: self, pd }
    }
}

impl<'a> Domain<'a> {
    /// The registration and the offset into its region, if key, domain, rights and bounds hold.
    fn registered(self, key: u32, addr: u64, len: u64, need: Access) -> Result<(&'a Registration, u64), KeyFault> {
        let registration = self.table.at(key)?;
        if registration.pd != self.pd {
            return Err(KeyFault::Key);
        }
        let addr = addr.checked_sub(registration.iova).ok_or(KeyFault::Bounds)?;
        let end = addr.checked_add(len).ok_or(KeyFault::Bounds)?;
        if !registration.access.contains(need) {
            return Err(KeyFault::Rights);
        }
        if end > registration.len {
            return Err(KeyFault::Bounds);
        }
        Ok((registration, registration.offset + addr))
    }

    /// The region of a key and the offset into it, if key, rights and bounds hold.
    pub fn resolve(self, key: u32, addr: u64, len: u64, need: Access) -> Result<(&'a Region, u64), KeyFault> {
        self.registered(key, addr, len, need).map(|(r, at)| (&r.region, at))
    }

    /// Checks a peer's whole range without touching it.
    pub fn check_remote(self, rkey: Rkey, addr: u64, len: u64, need: Access) -> Result<(), KeyFault> {
        self.registered(rkey.0, addr, len, need).map(|_| ())
    }

    /// The place of a peer's whole range, after the check of [`Self::check_remote`].
    pub fn remote_range(self, rkey: Rkey, addr: u64, len: u64, need: Access) -> Result<MemoryRange, KeyFault> {
        let (r, offset) = self.registered(rkey.0, addr, len, need)?;
        Ok(MemoryRange { region: r.region.clone(), offset, len })
    }

    /// The places of `len` bytes from `offset` of a local list, in order; `need` is [`Access::LOCAL_WRITE`] to fill them.
    pub fn local_ranges(
        self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        need: Access,
        mut each: impl FnMut(MemoryRange),
    ) -> Result<(), KeyFault> {
        each_piece(sges, offset, len, |sge, addr, len| {
            let len = len as u64;
            let (r, offset) = self.registered(sge.lkey.0, addr, len, need)?;
            each(MemoryRange { region: r.region.clone(), offset, len });
            Ok(())
        })
    }

    /// Copies out for a peer's READ.
    pub fn read_remote(self, rkey: Rkey, addr: u64, dst: &mut [u8]) -> Result<(), KeyFault> {
        let (r, at) = self.registered(rkey.0, addr, dst.len() as u64, Access::REMOTE_READ)?;
        r.region.read(at, dst).map_err(|_| KeyFault::Unmapped)
    }

    /// Copies in for a peer's WRITE.
    pub fn write_remote(self, rkey: Rkey, addr: u64, src: &[u8]) -> Result<(), KeyFault> {
        let (r, at) = self.registered(rkey.0, addr, src.len() as u64, Access::REMOTE_WRITE)?;
        r.region.write(at, src).map_err(|_| KeyFault::Unmapped)
    }

    /// Runs an atomic for a peer and gives the value before. The word holds a number in host order, and is atomic with
    /// local accesses, but to a program's own memory with other operations of the device alone.
    pub fn atomic_remote(self, rkey: Rkey, addr: u64, op: AtomicOp) -> Result<u64, KeyFault> {
        let (r, at) = self.registered(rkey.0, addr, 8, Access::REMOTE_ATOMIC)?;
        if !at.is_multiple_of(8) {
            return Err(KeyFault::Bounds);
        }
        let op = match op {
            AtomicOp::FetchAdd { add } => verbs::AtomicOp::Add(add),
            AtomicOp::CompareSwap { compare, swap } => verbs::AtomicOp::CompareSwap { expected: compare, new: swap },
        };
        r.region.atomic64(at, op).map_err(|_| KeyFault::Unmapped)
    }

    /// Copies the bytes from `offset` of a gather list out.
    pub fn gather(self, sges: &[Sge], offset: u64, dst: &mut [u8]) -> Result<(), KeyFault> {
        let mut done = 0;
        each_piece(sges, offset, dst.len(), |sge, addr, len| {
            let (r, at) = self.registered(sge.lkey.0, addr, len as u64, Access::empty())?;
            r.region.read(at, &mut dst[done..done + len]).map_err(|_| KeyFault::Unmapped)?;
            done += len;
            Ok(())
        })
    }

    /// Copies bytes in at `offset` of a scatter list.
    pub fn scatter(self, sges: &[Sge], offset: u64, src: &[u8]) -> Result<(), KeyFault> {
        let mut done = 0;
        each_piece(sges, offset, src.len(), |sge, addr, len| {
            let (r, at) = self.registered(sge.lkey.0, addr, len as u64, Access::LOCAL_WRITE)?;
            r.region.write(at, &src[done..done + len]).map_err(|_| KeyFault::Unmapped)?;
            done += len;
            Ok(())
        })
    }

    /// Checks all entries of a scatter list, as a READ does before it asks for data.
    pub fn check_scatter(self, sges: &[Sge]) -> Result<(), KeyFault> {
        sges.iter()
            .filter(|s| s.len > 0)
            .try_for_each(|s| self.registered(s.lkey.0, s.addr, s.len.into(), Access::LOCAL_WRITE).map(|_| ()))
    }
}

/// Calls `f(entry, address, bytes)` for each piece of `len` bytes from `offset` of a list; [`KeyFault::Bounds`] if the
/// list is shorter.
pub fn each_piece(
    sges: &[Sge],
    mut offset: u64,
    mut len: usize,
    mut f: impl FnMut(&Sge, u64, usize) -> Result<(), KeyFault>,
) -> Result<(), KeyFault> {
    for sge in sges {
        if len == 0 {
            break;
        }
        let sge_len = u64::from(sge.len);
        if offset >= sge_len {
            offset -= sge_len;
            continue;
        }
        let piece = usize::try_from(sge_len - offset).map_or(len, |left| left.min(len));
        f(sge, sge.addr.checked_add(offset).ok_or(KeyFault::Bounds)?, piece)?;
        len -= piece;
        offset = 0;
    }
    if len == 0 { Ok(()) } else { Err(KeyFault::Bounds) }
}

#[cfg(test)]
mod tests;
