//! Who may do what: the operator's policy.
//!
//! A *tenant* is a group of programs that the operator names: those of some users, groups, units or control groups. A
//! program belongs to the first tenant that takes it. It must never leave a program without a tenant: the last one
//! takes every program. Reading the file is the daemon's (docs/operate/policy.md); counting is [`crate::Admission`]'s and
//! [`crate::Directory`]'s.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

/// The tenant of programs that no other takes, unless the policy says otherwise.
pub const OTHERS: &str = "others";

/// What the kernel says of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramFacts {
    /// Its user.
    pub uid: u32,
    /// Its groups, the supplementary ones included. Empty if the kernel did not say.
    pub gids: Vec<u32>,
    /// Its control group, as in /proc/PID/cgroup: `/system.slice/nginx.service`. Empty if the kernel did not say.
    pub cgroup: String,
    /// The parts of its path that root alone could make, among them its unit.
    pub units: Vec<String>,
}

/// Which programs are a tenant's. What is given must all hold; of a list one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// Users.
    pub users: Option<BTreeSet<u32>>,
    /// Groups.
    pub groups: Option<BTreeSet<u32>>,
    /// systemd units.
    pub units: Option<BTreeSet<String>>,
    /// Control groups, with all that is below them.
    pub cgroups: Option<BTreeSet<String>>,
}

impl Selector {
    /// Whether the program is one of these.
    pub fn takes(&self, program: &ProgramFacts) -> bool {
        let is_user = |users: &BTreeSet<u32>| users.contains(&program.uid);
        let is_member = |groups: &BTreeSet<u32>| program.gids.iter().any(|gid| groups.contains(gid));
        let is_unit = |units: &BTreeSet<String>| program.units.iter().any(|unit| units.contains(unit));
        let is_below = |groups: &BTreeSet<String>| groups.iter().any(|group| is_within(&program.cgroup, group));
        self.users.as_ref().is_none_or(is_user)
            && self.groups.as_ref().is_none_or(is_member)
            && self.units.as_ref().is_none_or(is_unit)
            && self.cgroups.as_ref().is_none_or(is_below)
    }
}

/// Whether a control group is another one, or below it.
fn is_within(group: &str, outer: &str) -> bool {
    let outer = outer.trim_end_matches('/');
    group.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What a program may do with regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegionRight {
    /// Nothing.
    None,
    /// Open those of others whose key it has.
    Open,
    /// Make its own, too.
    Create,
}

/// What programs of a tenant may do, each of them and all together. The bounds of the daemon's `[limits]` hold too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// Ports to listen at, of streams, messages and datagrams; none: any.
    pub listen: Option<Vec<RangeInclusive<u16>>>,
    /// Networks to connect to, this host's addresses included; none: what `connect_to` of the configuration allows.
    pub connect: Option<Arc<[IpNet]>>,
    /// What may be done with regions.
    pub regions: RegionRight,
    /// Whether lanes may be leased.
    pub leased_lanes: bool,
    /// Programs at a time.
    pub programs_max: Option<u32>,
    /// Listeners and datagram sockets at a time.
    pub listeners_max: Option<u32>,
    /// Connections to other hosts at a time, those that wait included.
    pub connections_max: Option<u32>,
    /// Bytes of regions.
    pub region_bytes_max: Option<u64>,
    /// Part of a lane, beside other tenants that have something to send: 1 to [`WEIGHT_MAX`].
    pub weight: u16,
    /// Bytes a second to other hosts, those that are READ from there included.
    pub bytes_per_s: Option<u64>,
    /// Work requests a second.
    pub operations_per_s: Option<u64>,
    /// Bytes registered with the device for the tenant's programs.
    pub pinned_bytes_max: Option<u64>,
}

/// Largest weight of a tenant.
pub const WEIGHT_MAX: u16 = 100;

impl Default for Rights {
    /// Everything.
    fn default() -> Self {
        Self {
            listen: None,
            connect: None,
            regions: RegionRight::Create,
            leased_lanes: true,
            programs_max: None,
            listeners_max: None,
            connections_max: None,
            region_bytes_max: None,
            weight: 1,
            bytes_per_s: None,
            operations_per_s: None,
            pinned_bytes_max: None,
        }
    }
}

impl Rights {
    /// Whether this port may be listened at.
    pub fn may_listen(&self, port: u16) -> bool {
        self.listen.as_ref().is_none_or(|ports| ports.iter().any(|range| range.contains(&port)))
    }

    /// Whether this host may be connected to.
    pub fn may_connect(&self, host: IpAddr) -> bool {
        self.connect.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(&host)))
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its name, which no other has.
    pub name: Arc<str>,
    /// Its programs.
    pub takes: Selector,
    /// What they may do.
    pub rights: Rights,
}

/// All tenants of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The last one takes every program.
    tenants: Vec<Tenant>,
}

/// Two tenants with one name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tenant `{0}` is there twice: give each a name of its own")]
pub struct NameTwice(pub Arc<str>);

impl Default for Policy {
    /// One tenant, which may do everything.
    fn default() -> Self {
        let others = Tenant { name: OTHERS.into(), takes: Selector::default(), rights: Rights::default() };
        Self { tenants: vec![others] }
    }
}

impl Policy {
    /// These tenants in this order; programs of none of them have the rights `others`, as the tenant [`OTHERS`].
    pub fn new(mut tenants: Vec<Tenant>, others: Rights) -> Result<Self, NameTwice> {
        tenants.push(Tenant { name: OTHERS.into(), takes: Selector::default(), rights: others });
        let mut names = BTreeSet::new();
        match tenants.iter().find(|tenant| !names.insert(&tenant.name)) {
            Some(twice) => Err(NameTwice(Arc::clone(&twice.name))),
            None => Ok(Self { tenants }),
        }
    }

    /// The tenants, in the order in which they take programs.
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// The place of a program's tenant among [`Self::tenants`].
    pub fn place_of(&self, program: &ProgramFacts) -> usize {
        let last = self.tenants.len().saturating_sub(1);
        self.tenants.iter().position(|tenant| tenant.takes.takes(program)).unwrap_or(last)
    }

    /// A program's tenant.
    pub fn tenant_of(&self, program: &ProgramFacts) -> &Tenant {
        &self.tenants[self.place_of(program)]
    }
}

#[cfg(test)]
mod tests;
