//! The operator's policy, as it meets programs that are attached.
//!
//! Owns what an engine is told of a program's rights. It must never take away what a program has: a policy judges what
//! is asked for from then on.

use control::TenantRow;
use dispatch::Command;
use engine::{TenantPlace, TenantTerms};
use plane::{ClientId, Policy, ProgramRights, Tenant, TenantUse};

use super::Hub;

/// Where the engines find a program's tenant.
pub(super) fn place_of(rights: &ProgramRights) -> TenantPlace {
    TenantPlace(u16::try_from(rights.tenant).unwrap_or_default())
}

impl Hub {
    /// Another policy is in force.
    pub(super) fn on_policy(&mut self, policy: Policy) {
        self.daemon.set_policy(policy);
        self.tell_tenants();
    }

    /// What engines that have taken a program in know of its rights.
    pub(super) fn tell_rights(&mut self, client: ClientId, rights: &ProgramRights) {
        let place = place_of(rights);
        self.command_all_of(client, |app| Command::SetConnectTo { app, networks: rights.networks.clone() });
        self.command_all_of(client, |app| Command::SetTenant { app, place });
    }

    /// Tells the engines how the tenants are served. Each engine has its part of a rate, and of the
    /// registered memory.
    pub(super) fn tell_tenants(&mut self) {
        let engines = self.engines.count();
        let share = |all: u64| all / u64::from(engines);
        let part = |rate: Option<u64>| rate.map(|rate| share(rate).max(1));
        let terms = |tenant: &Tenant| TenantTerms {
            weight: tenant.rights.weight,
            bytes_per_s: part(tenant.rights.bytes_per_s),
            operations_per_s: part(tenant.rights.operations_per_s),
            pinned_bytes_max: tenant.rights.pinned_bytes_max.map(share),
        };
        let terms: Vec<TenantTerms> = self.daemon.admission().policy().tenants().iter().map(terms).collect();
        for engine in 0..engines {
            self.command(engine, Command::SetTenants(terms.clone()));
        }
    }

    /// The tenants with what they have; for one user, those of its programs.
    pub(super) fn tenant_rows(&mut self, uid: Option<u32>) -> Vec<TenantRow> {
        let of_user = |name: &str| {
            let mut programs = self.clients.iter().filter(|(_, client)| uid.is_none_or(|uid| uid == client.who.uid));
            uid.is_none()
                || programs.any(|(&id, _)| self.daemon.admission().tenant_of(id).is_some_and(|(of, _)| &**of == name))
        };
        let uses: Vec<TenantUse> = self.daemon.admission().tenants().filter(|tenant| of_user(&tenant.name)).collect();
        let row = |tenant: TenantUse| TenantRow {
            region_bytes: self.daemon.directory().bytes_of_tenant(&tenant.name),
            name: tenant.name.to_string(),
            programs: tenant.programs,
            programs_max: tenant.rights.programs_max,
            listeners: tenant.listeners,
            listeners_max: tenant.rights.listeners_max,
            connections: tenant.connections,
            connections_max: tenant.rights.connections_max,
            region_bytes_max: tenant.rights.region_bytes_max,
            weight: tenant.rights.weight,
            bytes_per_s: tenant.rights.bytes_per_s,
            operations_per_s: tenant.rights.operations_per_s,
        };
        uses.into_iter().map(row).collect()
    }
}
