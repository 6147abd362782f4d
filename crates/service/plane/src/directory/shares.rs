//! What the regions of each user take of the host.
//!
//! Owns the counts and their bounds. It must never bound root or the daemon's user by a share, and must forget a user
//! who has no region.

use std::collections::BTreeMap;

use control::RegionRefusal;

use super::{DirectoryConfig, too_many};

#[derive(Debug, Default, Clone, Copy)]
struct Held {
    regions: u32,
    bytes: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Shares {
    users: BTreeMap<u32, Held>,
    all: Held,
}

impl Shares {
    /// Whether a user may have one more region of `bytes` bytes.
    pub(super) fn check(&self, config: &DirectoryConfig, uid: u32, bytes: u64) -> Result<(), RegionRefusal> {
        let quota = |held: Held, max: u64| {
            let fits = held.bytes.checked_add(bytes).is_some_and(|sum| sum <= max);
            if fits { Ok(()) } else { Err(RegionRefusal::Quota { asked: bytes, used: held.bytes, max }) }
        };
        if self.all.regions >= config.regions_max {
            return Err(too_many("regions of this host", config.regions_max));
        }
        quota(self.all, config.bytes_max)?;
        if uid == 0 || uid == config.owner_uid {
            return Ok(());
        }
        let own = self.users.get(&uid).copied().unwrap_or_default();
        if own.regions >= config.regions_per_user_max {
            return Err(too_many("regions of this user", config.regions_per_user_max));
        }
        quota(own, config.bytes_per_user_max)
    }

    pub(super) fn add(&mut self, uid: u32, bytes: u64) {
        for held in [&mut self.all, self.users.entry(uid).or_default()] {
            held.regions += 1;
            held.bytes += bytes;
        }
    }

    pub(super) fn remove(&mut self, uid: u32, bytes: u64) {
        let Some(own) = self.users.get_mut(&uid) else { return };
        for held in [&mut self.all, own] {
            held.regions = held.regions.saturating_sub(1);
            held.bytes = held.bytes.saturating_sub(bytes);
        }
        self.users.retain(|_, held| held.regions > 0);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.all.regions == 0 && self.all.bytes == 0
    }
}
