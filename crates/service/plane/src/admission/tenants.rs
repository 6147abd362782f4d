//! What the programs of each tenant hold, and whether they may have more.
//!
//! Counts are sums over programs, made when a bound is asked for: so a program whose tenant changes with the policy
//! takes along what it holds, and nothing is counted in two places.

use std::net::IpAddr;
use std::sync::Arc;

use control::Reason;

use super::{Admission, Program};
use crate::ClientId;
use crate::policy::{Policy, Rights};

/// What a tenant has, and what it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantUse {
    /// Its name.
    pub name: Arc<str>,
    /// Its rights.
    pub rights: Rights,
    /// Programs.
    pub programs: u32,
    /// Listeners and datagram sockets.
    pub listeners: u32,
    /// Connections through lanes, and what waits to become one.
    pub connections: u32,
}

impl Program {
    /// What counts as a listener.
    fn ports(&self) -> u32 {
        u32::try_from(self.listeners.len()).unwrap_or(u32::MAX).saturating_add(self.sockets)
    }
}

impl Admission {
    /// Another policy is in force from here on. What programs have they keep; what they ask for is judged by it.
    pub fn set_policy(&mut self, policy: Policy) {
        for program in self.programs.values_mut() {
            program.tenant = policy.place_of(&program.facts);
        }
        self.policy = policy;
    }

    /// The policy that is in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The name and rights of a program's tenant; none of a program that is not there.
    pub fn tenant_of(&self, client: ClientId) -> Option<(&Arc<str>, &Rights)> {
        let tenant = self.policy.tenants().get(self.programs.get(&client)?.tenant)?;
        Some((&tenant.name, &tenant.rights))
    }

    /// The place of a program's tenant in the policy; 0 of a program that is not there.
    pub fn tenant_place(&self, client: ClientId) -> usize {
        self.programs.get(&client).map_or(0, |program| program.tenant)
    }

    /// Whether a program may have one more datagram socket at this port; 0 is any port, which each socket needs.
    pub(super) fn check_port(&self, client: ClientId, port: u16) -> Result<(), Reason> {
        let may = self.tenant_of(client).is_none_or(|(_, rights)| port == 0 || rights.may_listen(port));
        if may { Ok(()) } else { Err(Reason::Policy) }
    }

    /// A port that nobody listens at, and that the program's tenant may have.
    pub(super) fn free_port(&mut self, client: ClientId) -> Result<u16, Reason> {
        let rights = self.tenant_of(client).map(|(_, rights)| rights.clone()).unwrap_or_default();
        let free = self.ports.free_port(|port| self.listeners.is_taken(port) || !rights.may_listen(port));
        free.ok_or(if rights.listen.is_some() { Reason::Policy } else { Reason::LocalLimit })
    }

    /// Whether a program may connect to this address of this host.
    pub(super) fn check_connect(&self, client: ClientId, host: IpAddr) -> Result<(), Reason> {
        let may = self.tenant_of(client).is_none_or(|(_, rights)| rights.may_connect(host));
        if may { Ok(()) } else { Err(Reason::Policy) }
    }

    /// Whether the tenant may have one more program.
    pub(super) fn check_tenant_program(&self, tenant: usize) -> Result<(), Reason> {
        self.check_tenant(tenant, |rights| rights.programs_max, |_| 1)
    }

    /// Whether a program's tenant may have one more listener or datagram socket.
    pub(super) fn check_tenant_listener(&self, client: ClientId) -> Result<(), Reason> {
        let Some(program) = self.programs.get(&client) else { return Ok(()) };
        self.check_tenant(program.tenant, |rights| rights.listeners_max, Program::ports)
    }

    /// Whether a program's tenant may have one more connection through a lane.
    pub(super) fn check_tenant_connection(&self, client: ClientId) -> Result<(), Reason> {
        let Some(program) = self.programs.get(&client) else { return Ok(()) };
        self.check_tenant(program.tenant, |rights| rights.connections_max, |program| program.connections)
    }

    fn check_tenant(
        &self,
        tenant: usize,
        max: impl FnOnce(&Rights) -> Option<u32>,
        of: impl Fn(&Program) -> u32,
    ) -> Result<(), Reason> {
        let Some(max) = self.policy.tenants().get(tenant).and_then(|tenant| max(&tenant.rights)) else { return Ok(()) };
        if self.sum(tenant, of) < max { Ok(()) } else { Err(Reason::TenantLimit) }
    }

    fn sum(&self, tenant: usize, of: impl Fn(&Program) -> u32) -> u32 {
        self.programs.values().filter(|program| program.tenant == tenant).map(of).fold(0, u32::saturating_add)
    }

    /// What each tenant has, in the order of the policy.
    pub fn tenants(&self) -> impl Iterator<Item = TenantUse> {
        self.policy.tenants().iter().enumerate().map(|(place, tenant)| TenantUse {
            name: Arc::clone(&tenant.name),
            rights: tenant.rights.clone(),
            programs: self.sum(place, |_| 1),
            listeners: self.sum(place, Program::ports),
            connections: self.sum(place, |program| program.connections),
        })
    }
}
