//! What a daemon has for regions: memory, and the stamp page.
//!
//! Owns what raasd's hub owns of them. It must never decide what `plane` decides.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use control::{RegionAccess, RegionKey, RegionPath, RegionRefusal, RegionSpec};
use plane::{DirectoryConfig, Handed};
use raas_core::RegionMapping;
use verbs::Region;

/// Regions of a host, and so words of its stamp page.
const REGIONS_MAX: u32 = 16;
/// Bytes of a word of the stamp page.
const WORD_BYTES: u64 = 8;
/// `FUTEX_OWNER_DIED` of the kernel.
const OWNER_DIED: u32 = 0x4000_0000;
/// Bytes of a region.
pub(crate) const REGION_BYTES: usize = 4096;
/// What engines call a program that uses regions, with a number behind it.
pub(crate) const PROGRAM: &str = "program";
/// The name of each host's region.
pub(crate) const NAME: &str = "words";
/// The first user.
pub(crate) const UID: u32 = 1;

/// Memory that goes with a message to a program.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) memory: Region,
    /// The stamp page; without it the program has it.
    pub(crate) stamps: Option<Region>,
}

impl Shared {
    /// As the program maps it.
    pub(crate) fn map(self, path: &RegionPath) -> Option<RegionMapping> {
        let RegionPath::Local { word, words, .. } = *path else { return None };
        let stamps = self.stamps?;
        let word = stamps.word64(u64::from(word) * WORD_BYTES).ok()?;
        let life = stamps.word32(u64::from(words) * WORD_BYTES).ok()?;
        Some(RegionMapping { memory: self.memory, word, life, extents: None })
    }
}

/// A region of a program.
pub(crate) fn region_spec(name: String, key: RegionKey, single_writer: bool) -> RegionSpec {
    RegionSpec {
        name,
        bytes: REGION_BYTES as u64,
        access: RegionAccess::ALL,
        key,
        huge_pages: false,
        outlives: false,
        other_users: true,
        single_writer,
    }
}

/// Bounds of what programs may have.
pub(crate) fn limits(handles_per_user_max: u64) -> DirectoryConfig {
    DirectoryConfig {
        regions_max: REGIONS_MAX,
        handles_per_user_max: handles_per_user_max.min(DirectoryConfig::default().handles_per_user_max),
        // The engine's tables bound them here.
        leased_lanes_per_user_max: DirectoryConfig::default().leased_lanes_max,
        ..DirectoryConfig::default()
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// What programs get, and what the region is in until its owner has moved it.
    memories: BTreeMap<u64, (Region, Option<Region>)>,
    stamps: Option<Region>,
}

impl Regions {
    /// The stamp page, with the word of the daemon's life behind the others. It is made when a region is.
    fn stamps(&mut self) -> Option<&Region> {
        if self.stamps.is_none() {
            self.stamps = Region::anonymous(((u64::from(REGIONS_MAX) + 1) * WORD_BYTES) as usize).ok();
        }
        self.stamps.as_ref()
    }

    /// The kernel stores the end of the daemon, which was killed.
    pub(crate) fn end_life(&self) {
        let word = self.stamps.as_ref().and_then(|s| s.word32(u64::from(REGIONS_MAX) * WORD_BYTES).ok());
        word.into_iter().for_each(|word| word.store(OWNER_DIED, Ordering::SeqCst));
    }

    pub(crate) fn stamp(&mut self, word: u32, value: u64) {
        let word = self.stamps().and_then(|stamps| stamps.word64(u64::from(word) * WORD_BYTES).ok());
        word.into_iter().for_each(|word| word.store(value, Ordering::SeqCst));
    }

    // ---- memory

    pub(crate) fn make(&mut self, region: u64, bytes: u64) -> Result<(), RegionRefusal> {
        let made = Region::anonymous(bytes as usize);
        let newest = made.map_err(|error| RegionRefusal::NoMemory { bytes, cause: error.to_string() })?;
        let older = self.memories.remove(&region).map(|(before, _)| before);
        self.memories.insert(region, (newest, older));
        Ok(())
    }

    pub(crate) fn use_newest(&mut self, region: u64) {
        self.memories.get_mut(&region).into_iter().for_each(|(_, older)| *older = None);
    }

    pub(crate) fn forget(&mut self, region: u64) {
        self.memories.remove(&region);
    }

    /// A region's memory, or that which it moves away from (`older`).
    pub(crate) fn memory(&self, region: u64, older: bool) -> Option<Region> {
        let (newest, before) = self.memories.get(&region)?;
        Some(before.as_ref().filter(|_| older).unwrap_or(newest).clone())
    }

    pub(crate) fn hand_out(&mut self, handed: Handed) -> Option<Shared> {
        let memory = self.memory(handed.region, false)?;
        let stamps = if handed.with_stamps { Some(self.stamps()?.clone()) } else { None };
        Some(Shared { memory, stamps })
    }

    /// Memory that was not given back.
    pub(crate) fn count(&self) -> usize {
        self.memories.len()
    }
}
