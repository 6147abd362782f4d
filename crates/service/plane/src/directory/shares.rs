//! What the regions of each user and of each tenant take of the host.
//!
//! Owns the counts and their bounds. It must never bound root or the daemon's user by a user's share, and must forget
//! who has no region.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::RegionRefusal;

use super::{DirectoryConfig, too_many};

/// The tenant of a program that makes a region, and the bytes that all regions of the tenant may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TenantShare {
    /// Its name.
    pub name: Arc<str>,
    /// Bytes; none: as many as there are.
    pub bytes_max: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    regions: u32,
    bytes: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Shares {
    users: BTreeMap<u32, Usage>,
    tenants: BTreeMap<Arc<str>, Usage>,
    all: Usage,
}

impl Shares {
    /// Whether a user's program of a tenant may have one more region of `bytes` bytes.
    pub(super) fn check(
        &self,
        config: &DirectoryConfig,
        (uid, tenant): (u32, &TenantShare),
        bytes: u64,
    ) -> Result<(), RegionRefusal> {
        let quota = |held: Usage, max: u64| {
            let fits = held.bytes.checked_add(bytes).is_some_and(|sum| sum <= max);
            if fits { Ok(()) } else { Err(RegionRefusal::Quota { asked: bytes, used: held.bytes, max }) }
        };
        if self.all.regions >= config.regions_max {
            return Err(too_many("regions of this host", config.regions_max));
        }
        quota(self.all, config.bytes_max)?;
        if let Some(max) = tenant.bytes_max {
            quota(self.tenants.get(&tenant.name).copied().unwrap_or_default(), max)?;
        }
        if uid == 0 || uid == config.owner_uid {
            return Ok(());
        }
        let own = self.users.get(&uid).copied().unwrap_or_default();
        if own.regions >= config.regions_per_user_max {
            return Err(too_many("regions of this user", config.regions_per_user_max));
        }
        quota(own, config.bytes_per_user_max)
    }

    pub(super) fn add(&mut self, (uid, tenant): (u32, &Arc<str>), bytes: u64) {
        let of_tenant = self.tenants.entry(Arc::clone(tenant)).or_default();
        for held in [&mut self.all, self.users.entry(uid).or_default(), of_tenant] {
            held.regions += 1;
            held.bytes += bytes;
        }
    }

    pub(super) fn remove(&mut self, (uid, tenant): (u32, &Arc<str>), bytes: u64) {
        let own = self.users.get_mut(&uid).into_iter().chain(self.tenants.get_mut(tenant));
        for held in own.chain([&mut self.all]) {
            held.regions = held.regions.saturating_sub(1);
            held.bytes = held.bytes.saturating_sub(bytes);
        }
        self.users.retain(|_, held| held.regions > 0);
        self.tenants.retain(|_, held| held.regions > 0);
    }

    /// Bytes of a tenant's regions.
    pub(super) fn bytes_of_tenant(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).map_or(0, |held| held.bytes)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.tenants.is_empty() && self.all.regions == 0 && self.all.bytes == 0
    }
}
