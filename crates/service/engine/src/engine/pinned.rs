//! What is registered with the device for the programs of a tenant, and how much more may be.
//!
//! Sums over programs, made when a bound is asked for: so a program whose tenant changes with the policy takes along what
//! it has, and nothing is counted in two places.

use super::Engine;
use crate::ids::AppId;
use crate::pins::TenantPins;

impl Engine {
    /// Programs of an application's tenant, those whose memory is in quarantine included; bytes of their rings; and what
    /// all together may have. `None`: there is no bound.
    fn pinned_of_tenant(&self, app: AppId) -> Option<(Vec<AppId>, u64, u64)> {
        let place = self.tenants.of(app);
        let max = self.tenants.pinned_bytes_max(place)?;
        let of_tenant = || self.apps.iter().filter(move |(id, _)| self.tenants.of(*id) == place);
        let rings = of_tenant().map(|(_, app)| app.pool.bytes_with_asked()).sum();
        Some((of_tenant().map(|(id, _)| id).collect(), rings, max))
    }

    /// Bytes that may still be registered for an application's tenant.
    pub(super) fn pinned_left(&self, app: AppId) -> u64 {
        let Some((apps, rings, max)) = self.pinned_of_tenant(app) else { return u64::MAX };
        let pins = self.ops.locals.pins();
        max.saturating_sub(apps.iter().map(|app| pins.bytes_of(*app)).sum::<u64>().saturating_add(rings))
    }

    /// What local memory of an application's tenant may be registered; none: no bound.
    pub(super) fn tenant_pins(&self, app: AppId) -> Option<TenantPins> {
        let (apps, rings, max) = self.pinned_of_tenant(app)?;
        Some(TenantPins { apps, bytes_max: max.saturating_sub(rings), limit: max })
    }
}
