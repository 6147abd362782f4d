//! What is registered with the device for the programs of a tenant, and memory of rings, and how much more may be.
//!
//! Sums over programs, made when a bound is asked for: so a program whose tenant changes with the policy takes along what
//! it has, and nothing is counted in two places.

use super::Engine;
use crate::app::App;
use crate::config::EngineConfig;
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

    /// Bytes of rings that an application may still have, beside its own bound: what its tenant, its user and the host have
    /// left. With it, whether the tenant's bound is the one that counts.
    pub(super) fn rings_left(&self, app: AppId) -> (u64, bool) {
        let tenant = self.pinned_left(app);
        let Some(uid) = self.apps.get(app).map(App::uid) else { return (tenant, true) };
        let EngineConfig { ring_memory_max: max, user_share, owner_uid, .. } = self.config;
        let bytes = |app: &App| app.pool.bytes_with_asked();
        let all = self.apps.iter().map(|(_, app)| bytes(app)).sum();
        let mut left = max.saturating_sub(all);
        if uid != 0 && uid != owner_uid {
            let used = self.apps.iter().filter(|(_, app)| app.uid() == uid).map(|(_, app)| bytes(app)).sum();
            left = left.min(user_share.of(max).saturating_sub(used));
        }
        (tenant.min(left), tenant < left)
    }

    /// Bytes that may still be registered for an application's tenant.
    fn pinned_left(&self, app: AppId) -> u64 {
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
