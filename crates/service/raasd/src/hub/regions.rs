//! Memory of regions, as `plane::Daemon` wants it made and handed out.
//!
//! Owns the descriptors of regions' memory, and the stamp page. It must never zero memory in the hub's own time, and
//! never have more descriptors of a region than a few, whoever waits for one.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::RegionRefusal;
use plane::Handed;
use shm::{Life, Region, RegionMemory, Segment, SegmentError, Sharing};
use tokio::task::JoinSet;

use super::Hub;
use crate::DaemonError;

/// Bytes of a word of the stamp page.
const WORD_BYTES: u64 = 8;

/// Memory of a region.
#[derive(Debug)]
struct Memory {
    /// What programs get.
    newest: RegionMemory,
    /// What the region is in until its owner has moved it.
    older: Option<RegionMemory>,
    /// What programs get, mapped here since one had a kernel run at it.
    mapped: Option<Region>,
}

/// The regions of a host.
#[derive(Debug)]
pub(super) struct Regions {
    memories: BTreeMap<u64, Memory>,
    /// Memory that is taken from the system when it is made, which takes long: one at a time.
    making: JoinSet<Made>,
    /// What is to be made so after that.
    wanted: VecDeque<Wanted>,
    stamps: Segment,
    stamps_fd: Arc<OwnedFd>,
    /// Says to all who have a region of this host that this daemon has ended. None: the kernel does not say it.
    _life: Option<Life>,
}

/// Memory that is to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) region: u64,
    pub(super) bytes: u64,
    pub(super) huge_pages: bool,
}

/// Memory that was made for a region, or why not.
pub(super) type Made = (u64, Result<RegionMemory, RegionRefusal>);

fn no_memory() -> std::io::Error {
    std::io::Error::other("the region has no memory")
}

fn make(Wanted { region, bytes, huge_pages }: Wanted) -> Made {
    let made = RegionMemory::create(bytes, huge_pages).map_err(|error| {
        let cause = error.to_string();
        if huge_pages { RegionRefusal::NoHugePages { bytes, cause } } else { RegionRefusal::NoMemory { bytes, cause } }
    });
    (region, made)
}

impl Regions {
    /// With so many words of stamps.
    pub(super) fn new(stamp_words: u32) -> Result<Self, DaemonError> {
        let life_at = u64::from(stamp_words) * WORD_BYTES;
        let bytes = life_at + WORD_BYTES;
        let failed =
            |e: SegmentError| DaemonError::io("the stamp page of regions")(std::io::Error::other(e.to_string()));
        let stamps = Segment::create("raas-stamps", bytes, Sharing::PeerReadOnly).map_err(failed)?;
        if shm::overcommit_is_strict() {
            stamps.allocate(bytes).map_err(failed)?;
        }
        // Without it regions end with this daemon if it dies.
        let life = Life::begin(stamps.region(), life_at);
        let life = life.inspect_err(|error| tracing::warn!(%error, "regions will not go on over this daemon's death"));
        let stamps_fd = stamps.fd().as_fd().try_clone_to_owned().map_err(DaemonError::io("dup"))?;
        Ok(Self {
            memories: BTreeMap::new(),
            making: JoinSet::new(),
            wanted: VecDeque::new(),
            stamps,
            stamps_fd: Arc::new(stamps_fd),
            _life: life.ok(),
        })
    }

    /// The next memory that was made; none while none is being made.
    pub(super) async fn next_made(&mut self) -> Option<Made> {
        // The thread that makes memory has no code that panics; if it is cut off, the daemon stops.
        self.making.join_next().await?.ok()
    }

    /// Makes memory, or has it made: [`Self::next_made`] then has it.
    pub(super) fn make(&mut self, wanted: Wanted) -> Option<Made> {
        if !wanted.huge_pages && !shm::overcommit_is_strict() {
            return Some(make(wanted));
        }
        self.wanted.push_back(wanted);
        self.make_next();
        None
    }

    fn make_next(&mut self) {
        if self.making.is_empty()
            && let Some(wanted) = self.wanted.pop_front()
        {
            self.making.spawn_blocking(move || make(wanted));
        }
    }

    /// The memory of a region that was there before this daemon.
    pub(super) fn put(&mut self, region: u64, newest: RegionMemory) {
        self.memories.insert(region, Memory { newest, older: None, mapped: None });
    }

    /// A descriptor of a region's memory.
    pub(super) fn memory_fd(&self, region: u64) -> std::io::Result<Arc<OwnedFd>> {
        let memory = self.memories.get(&region).ok_or_else(no_memory)?;
        Ok(memory.newest.writable_fd())
    }

    /// A region ended: its memory goes, and none is made for it any more.
    pub(super) fn forget(&mut self, region: u64) {
        self.memories.remove(&region);
        self.wanted.retain(|wanted| wanted.region != region);
    }

    /// A region's memory, or that which it moves away from (`older`), mapped for a device.
    pub(super) fn map(&self, region: u64, older: bool) -> Result<Region, String> {
        let memory = self.memories.get(&region).ok_or("the region has no memory")?;
        let memory = memory.older.as_ref().filter(|_| older).unwrap_or(&memory.newest);
        memory.map().map_err(|e| e.to_string())
    }

    /// A region's memory, mapped into the daemon once.
    pub(super) fn mapped(&mut self, region: u64) -> Result<Region, RegionRefusal> {
        let memory = self.memories.get_mut(&region).ok_or(RegionRefusal::OwnerGone)?;
        if let Some(mapped) = &memory.mapped {
            return Ok(mapped.clone());
        }
        let bytes = memory.newest.bytes();
        let cause = |error: SegmentError| RegionRefusal::NoMemory { bytes, cause: error.to_string() };
        Ok(memory.mapped.insert(memory.newest.map().map_err(cause)?).clone())
    }

    pub(super) fn use_newest(&mut self, region: u64) {
        if let Some(memory) = self.memories.get_mut(&region) {
            memory.older = None;
        }
    }

    pub(super) fn stamp(&self, word: u32, value: u64) {
        match self.stamps.region().word64(u64::from(word) * WORD_BYTES) {
            // Before the owner learns that it is to copy: see `Mapping` of the client library.
            Ok(word) => word.store(value, Ordering::SeqCst),
            Err(error) => debug_assert!(false, "the directory named word {word}: {error}"),
        }
    }

    /// The descriptors that go with a message.
    pub(super) fn hand_out(&self, handed: Handed) -> std::io::Result<Vec<Arc<OwnedFd>>> {
        let memory = &self.memories.get(&handed.region).ok_or_else(no_memory)?.newest;
        let mut fds = vec![if handed.writable { memory.writable_fd() } else { memory.read_only_fd()? }];
        if handed.with_stamps {
            fds.push(Arc::clone(&self.stamps_fd));
        }
        Ok(fds)
    }
}

impl Hub {
    pub(super) fn on_region_made(&mut self, (region, result): Made) {
        self.regions.make_next();
        let result = result.map(|newest| {
            let older = self.regions.memories.remove(&region).map(|before| before.newest);
            self.regions.memories.insert(region, Memory { newest, older, mapped: None });
        });
        self.daemon.on_made(self.link_context.now(), region, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_memory_is_made_for_regions_that_have_ended() {
        let mut regions = Regions::new(4).unwrap();
        // One is being made, and the others wait for it. They may be of programs that come and go.
        for region in 1..=100 {
            assert!(regions.make(Wanted { region, bytes: 8, huge_pages: true }).is_none());
            if region != 50 {
                regions.forget(region);
            }
        }
        let waiting: Vec<u64> = regions.wanted.iter().map(|wanted| wanted.region).collect();
        assert_eq!(waiting, [50]);
    }
}
