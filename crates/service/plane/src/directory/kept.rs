//! Regions that nobody owns and that stay: what a daemon after this one must know of them, and how it takes them over.
//!
//! Owns that such a region goes on in an epoch of its own, so that no handle that an earlier daemon gave passes for one of
//! this daemon.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use control::{REGION_BYTES_MAX, REGION_EPOCH_MAX, RegionLine, RegionRefusal, RegionSpec, region_stamp};

use super::{Directory, DirectoryAction, Entry, Handles, Stage, TenantShare, check_name, too_many};
use crate::{KeptRegion, MemoryCommand};

impl Entry {
    /// That nobody owns and nobody has opened, of a user's and a tenant's program, with its epoch, stamp and word.
    pub(super) fn unowned(
        spec: RegionSpec,
        (line, tenant): (RegionLine, Arc<str>),
        (epoch, stamp, word): (u64, u64, u32),
        stage: Stage,
    ) -> Self {
        Self {
            spec,
            uid: line.uid,
            tenant,
            owner: None,
            epoch,
            line,
            stamp,
            word,
            stage,
            term: 0,
            writer: None,
            handles: Handles::default(),
            remote: BTreeMap::new(),
            leases: BTreeMap::new(),
            is_registered: false,
            has_runs: false,
            waiting: VecDeque::new(),
        }
    }
}

impl Directory {
    /// Has the driver keep what is known of a region whose owner has left it behind.
    pub(super) fn keep(&mut self, region: u64) {
        let Some(entry) = self.entries.get(&region) else { return };
        let (spec, tenant) = (entry.spec.clone(), Arc::clone(&entry.tenant));
        let kept = KeptRegion { spec, uid: entry.uid, tenant, epoch: entry.epoch, line: Some(entry.line) };
        self.actions.push_back(DirectoryAction::Memory(MemoryCommand::Keep { region, kept }));
    }

    /// Takes over a region that a daemon before this one kept, in the next epoch; its number. The driver has its memory
    /// before it carries out the next action: bytes that no program of that daemon can write any more.
    ///
    /// The host's and the user's shares are those of now. A tenant's does not count, because the tenant is known by a
    /// program, and there is none.
    pub fn adopt(&mut self, kept: KeptRegion) -> Result<u64, RegionRefusal> {
        let KeptRegion { spec, uid, tenant, epoch, line } = kept;
        check_name(&spec.name)?;
        if spec.bytes == 0 || spec.bytes > REGION_BYTES_MAX {
            return Err(RegionRefusal::BadSize { bytes: spec.bytes, max: REGION_BYTES_MAX });
        }
        if !(1..REGION_EPOCH_MAX).contains(&epoch) || !spec.outlives {
            return Err(RegionRefusal::Unknown);
        }
        if let Some(taken) = self.named(&spec.name) {
            return Err(RegionRefusal::NameTaken { uid: Some(taken.uid) });
        }
        let share = TenantShare { name: Arc::clone(&tenant), bytes_max: None };
        self.shares.check(&self.config, (uid, &share), spec.bytes)?;
        let word = self.stamps.take_word().ok_or_else(|| too_many("regions", self.config.regions_max))?;
        self.shares.add((uid, &tenant), spec.bytes);
        self.last_region += 1;
        let (region, stamp) = (self.last_region, self.stamps.next_stamp());
        self.names.insert(spec.name.clone(), region);
        self.last_id = self.last_id.wrapping_add(1);
        let line = line.unwrap_or(RegionLine { id: self.last_id, uid, revokes: 0 });
        let line = RegionLine { uid, ..line };
        let entry = Entry::unowned(spec, (line, tenant), (epoch + 1, stamp, word), Stage::Live);
        self.entries.insert(region, entry);
        self.stamp(word, region_stamp::of(stamp, region_stamp::LIVE));
        self.keep(region);
        Ok(region)
    }
}
