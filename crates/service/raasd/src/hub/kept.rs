//! Regions that nobody owns, over the end of their daemon: each is kept as two descriptors, its memory and a record of what
//! it is. The next daemon copies the bytes into new memory, because programs may have the old one mapped and write to it.
//!
//! Owns the names under which they are kept. Until the new memory is kept the old one is not forgotten, so a death in
//! between loses nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use control::{RegionLine, RegionRefusal, RegionSpec};
use plane::KeptRegion;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use shm::{Region, RegionMemory};

use super::Hub;
use crate::kept::{Kept, MEMORY, RECORD};

/// Regions of one daemon that are kept: twice as many descriptors. The unit's `FileDescriptorStoreMax=` has room for them.
const KEPT_MAX: usize = 1024;
/// Of what a record says; a daemon takes no region over whose record it does not know.
const RECORD_VERSION: u32 = 1;
/// Bytes of a record at most. A region's and a tenant's names are short.
const RECORD_BYTES_MAX: u64 = 16 << 10;

/// What the next daemon must know.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    spec: RegionSpec,
    uid: u32,
    tenant: String,
    epoch: u64,
    /// Daemons before control version 6 kept none.
    #[serde(default)]
    line: Option<RegionLine>,
}

/// The regions that are kept, and the tail of their names.
#[derive(Debug, Default)]
pub(super) struct KeptRegions {
    names: BTreeMap<u64, String>,
    /// It was said that there are too many.
    is_full: bool,
}

/// A region that an earlier daemon left.
struct Left {
    tail: String,
    record: Record,
    memory: Region,
}

impl Hub {
    /// Takes over what an earlier daemon left, before any program is heard.
    pub(super) fn adopt_regions(&mut self) {
        let Some(kept) = self.link_context.config.kept.clone() else { return };
        let mut left = left(&kept);
        // Of one region that is kept twice, because its daemon died in between, the newer one counts.
        left.sort_by_key(|one| std::cmp::Reverse(one.record.epoch));
        for Left { tail, record, memory } in left {
            let name = record.spec.name.clone();
            match self.adopt_region(record, &memory) {
                Ok(region) => tracing::info!(%name, region, "a region without an owner goes on"),
                Err(why @ RegionRefusal::NameTaken { .. }) => {
                    tracing::warn!(%name, %why, "a region of the daemon before this one ends");
                }
                Err(why) => {
                    tracing::warn!(%name, %why, "a region of the daemon before this one stays kept for the next one");
                    continue;
                }
            }
            forget(&kept, &tail);
        }
    }

    fn adopt_region(&mut self, record: Record, old: &Region) -> Result<u64, RegionRefusal> {
        let Record { spec, uid, tenant, epoch, line, .. } = record;
        let bytes = spec.bytes;
        // Before the directory promises it.
        let copy = || {
            let newest = RegionMemory::create(bytes, spec.huge_pages).map_err(|e| e.to_string())?;
            let new = newest.map().map_err(|e| e.to_string())?;
            new.copy_from(0, old, 0, bytes).map_err(|e| e.to_string())?;
            Ok(newest)
        };
        let newest = copy().map_err(|cause| RegionRefusal::NoMemory { bytes, cause })?;
        let kept = KeptRegion { spec, uid, tenant: Arc::from(tenant), epoch, line };
        let region = self.daemon.directory_mut().adopt(kept)?;
        self.regions.put(region, newest);
        self.settle();
        Ok(region)
    }

    /// The owner of a region has left it behind.
    pub(super) fn keep_region(&mut self, region: u64, kept: KeptRegion) {
        let Some(store) = self.link_context.config.kept.clone() else { return };
        let name = kept.spec.name.clone();
        if self.kept.names.len() >= KEPT_MAX {
            if !std::mem::replace(&mut self.kept.is_full, true) {
                tracing::warn!(%name, max = KEPT_MAX, "no more regions without an owner go on over this daemon's end");
            }
            return;
        }
        let tail = format!("{}-{region}", self.incarnation.first_number());
        let done = self.regions.memory_fd(region).and_then(|memory| {
            store.store().keep(&format!("{MEMORY}{tail}"), memory.as_fd())?;
            store.store().keep(&format!("{RECORD}{tail}"), record(kept)?.as_fd())
        });
        match done {
            Ok(()) => drop(self.kept.names.insert(region, tail)),
            Err(error) => tracing::warn!(%name, %error, "this region ends with this daemon: it cannot be kept"),
        }
    }

    /// A region has ended.
    pub(super) fn forget_kept(&mut self, region: u64) {
        if let (Some(tail), Some(kept)) = (self.kept.names.remove(&region), self.link_context.config.kept.clone()) {
            forget(&kept, &tail);
        }
    }
}

fn forget(kept: &Kept, tail: &str) {
    for name in [MEMORY, RECORD].map(|first| format!("{first}{tail}")) {
        if let Err(error) = kept.store().forget(&name) {
            tracing::warn!(%name, %error, "it is still kept for the next daemon");
        }
    }
}

/// A record as a memfd that nobody can change.
fn record(kept: KeptRegion) -> std::io::Result<OwnedFd> {
    let KeptRegion { spec, uid, tenant, epoch, line } = kept;
    let record = Record { version: RECORD_VERSION, spec, uid, tenant: tenant.to_string(), epoch, line };
    let fd = rustix::fs::memfd_create("raas-record", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(&serde_json::to_vec(&record)?)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// What was kept, as far as it can be read; the rest is forgotten with a word in the log.
fn left(kept: &Kept) -> Vec<Left> {
    let mut memories = BTreeMap::new();
    let mut records = Vec::new();
    for (name, fd) in kept.take_given() {
        if let Some(tail) = name.strip_prefix(MEMORY) {
            memories.insert(tail.to_owned(), fd);
        } else if let Some(tail) = name.strip_prefix(RECORD) {
            records.push((tail.to_owned(), fd));
        }
    }
    let mut left = Vec::new();
    for (tail, fd) in records {
        let memory = memories.remove(&tail).ok_or_else(|| "its memory was not kept".to_owned());
        match memory.and_then(|memory| read(fd, memory)) {
            Ok((record, memory)) => left.push(Left { tail, record, memory }),
            Err(why) => {
                tracing::warn!(name = %tail, %why, "what was kept of a region cannot be used");
                forget(kept, &tail);
            }
        }
    }
    for tail in memories.into_keys() {
        tracing::warn!(name = %tail, "memory of a region was kept, and not what it is");
        forget(kept, &tail);
    }
    left
}

fn read(record: OwnedFd, memory: OwnedFd) -> Result<(Record, Region), String> {
    let mut text = Vec::new();
    // It was written through this very descriptor.
    rustix::fs::seek(&record, rustix::fs::SeekFrom::Start(0)).map_err(|e| e.to_string())?;
    File::from(record).take(RECORD_BYTES_MAX).read_to_end(&mut text).map_err(|e| e.to_string())?;
    let record: Record = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    if record.version != RECORD_VERSION {
        return Err(format!("its record has version {}, this daemon reads {RECORD_VERSION}", record.version));
    }
    let memory = RegionMemory::accept(memory, record.spec.bytes, true).map_err(|e| e.to_string())?;
    Ok((record, memory))
}
