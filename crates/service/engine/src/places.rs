//! Places of one size in registered memory, into which the engine copies what it posts.

use verbs::{Access, Mr, Provider, Region, Sge, VerbsError};

/// Places begin at multiples of this, so that no two share a cache line.
const PLACE_ALIGN: usize = 64;

/// The memory, and how far apart its places are.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) region: Region,
    pub(crate) mr: Mr,
    pub(crate) stride: u64,
}

impl Places {
    /// Registers `count` places of at least `bytes` bytes.
    pub(crate) fn new<P: Provider>(nic: &mut P, count: u32, bytes: usize, access: Access) -> Result<Self, VerbsError> {
        let stride = bytes.next_multiple_of(PLACE_ALIGN);
        let region = Region::anonymous(stride * count as usize)
            .map_err(|e| VerbsError::Os { call: "mmap", errno: e.raw_os_error().unwrap_or(0) })?;
        let mr = nic.reg_mr(&region, 0, region.len(), access)?;
        Ok(Self { region, mr, stride: stride as u64 })
    }

    /// The first `len` bytes of a place.
    pub(crate) fn sge(&self, place: u64, len: u32) -> Sge {
        Sge { addr: place * self.stride, len, lkey: self.mr.lkey }
    }
}
