//! Places of one size in registered memory: those into which the engine copies what it posts, and those of receives.

use verbs::{Access, Mr, PostError, Provider, RecvWr, Region, Sge, VerbsError};

use crate::limits::RECV_BATCH;
use crate::numbers::index;

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

/// Places into which a device puts what arrives. Which of them are posted, the device knows.
#[derive(Debug)]
pub(crate) struct Receives {
    places: Places,
    count: u32,
    /// Most that one of them takes.
    bytes: u32,
    /// What is in the `wr_id` beside the place.
    mark: u64,
    /// Those that are not posted.
    idle: Vec<u32>,
}

impl Receives {
    /// `count` places of so many bytes, none of them posted.
    pub(crate) fn new<P: Provider>(nic: &mut P, count: u32, bytes: u32, mark: u64) -> Result<Self, VerbsError> {
        let places = Places::new(nic, count, index(bytes.into()), Access::LOCAL_WRITE)?;
        Ok(Self { places, count, bytes, mark, idle: (0..count).rev().collect() })
    }

    /// Bytes registered.
    pub(crate) fn registered(&self) -> u64 {
        self.places.region.len()
    }

    /// The place that a completion is of. `None`: no such one was ever posted.
    pub(crate) fn entry_of(&self, wr_id: u64) -> Option<u32> {
        u32::try_from(wr_id & !self.mark).ok().filter(|entry| *entry < self.count)
    }

    /// Copies out what a receive of `bytes` left. False: it is said to be longer than the place.
    pub(crate) fn read(&self, entry: u32, bytes: u32, out: &mut Vec<u8>) -> bool {
        if bytes > self.bytes {
            return false;
        }
        out.resize(bytes as usize, 0);
        self.places.region.read(u64::from(entry) * self.places.stride, out).is_ok()
    }

    /// A receive was consumed and its content taken.
    pub(crate) fn give_back(&mut self, entry: u32) {
        self.idle.push(entry);
    }

    /// What was posted is posted no more.
    pub(crate) fn take_back_all(&mut self) {
        self.idle = (0..self.count).rev().collect();
    }

    /// Posts those that are not.
    pub(crate) fn post_idle(
        &mut self,
        mut post: impl FnMut(&[RecvWr<'_>]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        while let Some(last) = self.idle.len().min(RECV_BATCH).checked_sub(1) {
            let from = self.idle.len() - last - 1;
            let of = |i: usize| self.idle[from + i.min(last)];
            let sges: [[Sge; 1]; RECV_BATCH] = std::array::from_fn(|i| [self.places.sge(of(i).into(), self.bytes)]);
            let wrs: [RecvWr<'_>; RECV_BATCH] =
                std::array::from_fn(|i| RecvWr { wr_id: self.mark | u64::from(of(i)), sges: &sges[i] });
            let posted = post(&wrs[..=last]);
            let done = posted.as_ref().map_or_else(|e| e.index.min(last), |()| last + 1);
            self.idle.drain(from..from + done);
            posted?;
        }
        Ok(())
    }
}
