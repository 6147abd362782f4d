//! A region as a kernel may touch it: checked bounds, checked rights, paid accesses.

use shm::{AtomicOp, Region, RegionError};

use crate::Fuel;
use crate::failure::Failure;

/// One region of a run.
#[derive(Debug, Clone)]
pub struct View {
    memory: Region,
    may_read: bool,
    may_write: bool,
}

impl View {
    /// A view that allows this much.
    pub const fn new(memory: Region, may_read: bool, may_write: bool) -> Self {
        Self { memory, may_read, may_write }
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }

    /// Copies bytes out. Aligned 8 bytes are never torn.
    pub fn read(&self, offset: u64, into: &mut [u8], fuel: &mut Fuel) -> Result<(), Failure> {
        if !self.may_read {
            return Err(Failure::NoRight { right: "read".into() });
        }
        fuel.touch(into.len() as u64);
        self.memory.read_whole_words(offset, into).map_err(|e| self.failure(&e, offset, into.len()))
    }

    /// The 8 bytes at an offset, in the host's byte order. At a multiple of 8 they are as one store left them.
    pub fn word(&self, offset: u64, fuel: &mut Fuel) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes, fuel)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Copies bytes in. Aligned 8 bytes are never torn.
    pub fn write(&self, offset: u64, bytes: &[u8], fuel: &mut Fuel) -> Result<(), Failure> {
        if !self.may_write {
            return Err(Failure::NoRight { right: "write".into() });
        }
        fuel.touch(bytes.len() as u64);
        self.memory.write_whole_words(offset, bytes).map_err(|e| self.failure(&e, offset, bytes.len()))
    }

    /// Changes the 8 bytes at a multiple of 8 in one step; returns what was there. It is atomic with the atomics of all
    /// programs.
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, Failure> {
        if !self.may_read || !self.may_write {
            return Err(Failure::NoRight { right: "read and write".into() });
        }
        if !offset.is_multiple_of(8) {
            return Err(Failure::bad(format!("an atomic at offset {offset}, which is not a multiple of 8")));
        }
        self.memory.atomic64(offset, op).map_err(|e| self.failure(&e, offset, 8))
    }

    fn failure(&self, error: &RegionError, offset: u64, len: usize) -> Failure {
        match error {
            RegionError::ReadOnly => Failure::NoRight { right: "write".into() },
            _ => Failure::OutOfBounds { offset, len: len as u64, bytes: self.bytes() },
        }
    }
}

/// The region of this number among those of a run.
pub(crate) fn of(views: &[View], number: u32) -> Result<&View, Failure> {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    views.get(index).ok_or_else(|| Failure::bad(format!("region {number} of a run that names {}", views.len())))
}
