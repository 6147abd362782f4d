//! The policy's file: what each key may hold, and errors that name the line.
//!
//! Owns the keys of docs/operate/policy.md. It must never accept a key that it does not know: a misspelt right would silently
//! not hold. Names of users and groups are looked up once, when the file is read.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::Path;

use engine::IpNet;
use nix::unistd::{Group, User};
use plane::{Policy, RegionRight, Rights, Selector, Tenant, WEIGHT_MAX};
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::config::network_of;
use crate::config_error::ConfigError;

/// Reads a policy. A problem names the file and the line: `FILE:LINE: message`.
pub fn load_policy(path: &Path) -> Result<Policy, ConfigError> {
    let at = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError::one(format!("{at}: {e}")))?;
    parse(&text).map_err(|(line, what)| ConfigError::one(format!("{at}:{line}: {what}")))
}

/// The policy of a file's text, or the line that is wrong, and why.
fn parse(text: &str) -> Result<Policy, (usize, String)> {
    let line_of = |at: usize| text.get(..at).unwrap_or(text).bytes().filter(|b| *b == b'\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        (line_of(at), e.message().trim().replace('\n', ", "))
    })?;
    let mut names = BTreeSet::new();
    for tenant in &file.tenant {
        let (line, name) = (line_of(tenant.name.span().start), tenant.name.get_ref());
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err((line, format!("`name`: a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")));
        }
        if name == plane::OTHERS {
            return Err((
                line,
                format!("`name`: \"{name}\" are the programs of no tenant; write their rights in [others]"),
            ));
        }
        if !names.insert(name) {
            return Err((line, format!("`name`: \"{name}\" is there twice; give each tenant a name of its own")));
        }
        if tenant.selector() == Selector::default() {
            let keys = "give it `users`, `groups`, `units` or `cgroups`; the rights of all others stand in [others]";
            return Err((line, format!("the tenant \"{name}\" takes every program: {keys}")));
        }
    }
    let tenants = file.tenant.into_iter().map(TenantEntry::tenant).collect();
    Policy::new(tenants, file.others.rights()).map_err(|e| (1, e.to_string()))
}

/// Bytes of a tenant's name.
const NAME_BYTES_MAX: usize = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    tenant: Vec<TenantEntry>,
    others: RightsEntry,
}

/// The keys of `[[tenant]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantEntry {
    name: Spanned<String>,
    users: Option<Vec<UserId>>,
    groups: Option<Vec<GroupId>>,
    units: Option<Vec<Unit>>,
    cgroups: Option<Vec<ControlGroup>>,
    // Not flattened: serde then knows no unknown key.
    listen: Option<Vec<Ports>>,
    connect: Option<Vec<Network>>,
    regions: Option<RegionWord>,
    leased_lanes: Option<bool>,
    programs_max: Option<u32>,
    listeners_max: Option<u32>,
    connections_max: Option<u32>,
    region_bytes_max: Option<u64>,
    weight: Option<Weight>,
    bytes_per_s: Option<NonZeroU64>,
    operations_per_s: Option<NonZeroU64>,
    pinned_bytes_max: Option<u64>,
}

/// The keys of `[others]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RightsEntry {
    listen: Option<Vec<Ports>>,
    connect: Option<Vec<Network>>,
    regions: Option<RegionWord>,
    leased_lanes: Option<bool>,
    programs_max: Option<u32>,
    listeners_max: Option<u32>,
    connections_max: Option<u32>,
    region_bytes_max: Option<u64>,
    weight: Option<Weight>,
    bytes_per_s: Option<NonZeroU64>,
    operations_per_s: Option<NonZeroU64>,
    pinned_bytes_max: Option<u64>,
}

impl TenantEntry {
    fn selector(&self) -> Selector {
        Selector {
            users: self.users.as_ref().map(|list| list.iter().map(|id| id.0).collect()),
            groups: self.groups.as_ref().map(|list| list.iter().map(|id| id.0).collect()),
            units: self.units.as_ref().map(|list| list.iter().map(|unit| unit.0.clone()).collect()),
            cgroups: self.cgroups.as_ref().map(|list| list.iter().map(|group| group.0.clone()).collect()),
        }
    }

    fn tenant(self) -> Tenant {
        let takes = self.selector();
        let Self { listen, connect, regions, leased_lanes, .. } = self;
        let Self { programs_max, listeners_max, connections_max, region_bytes_max, .. } = self;
        let Self { weight, bytes_per_s, operations_per_s, pinned_bytes_max, .. } = self;
        let rights = RightsEntry {
            listen,
            connect,
            regions,
            leased_lanes,
            programs_max,
            listeners_max,
            connections_max,
            region_bytes_max,
            weight,
            bytes_per_s,
            operations_per_s,
            pinned_bytes_max,
        };
        Tenant { name: self.name.into_inner().into(), takes, rights: rights.rights() }
    }
}

impl RightsEntry {
    fn rights(self) -> Rights {
        let all = Rights::default();
        Rights {
            listen: self.listen.map(|list| list.into_iter().map(|ports| ports.0).collect()),
            connect: self.connect.map(|list| list.into_iter().map(|network| network.0).collect()),
            regions: self.regions.map_or(all.regions, RegionWord::right),
            leased_lanes: self.leased_lanes.unwrap_or(all.leased_lanes),
            programs_max: self.programs_max,
            listeners_max: self.listeners_max,
            connections_max: self.connections_max,
            region_bytes_max: self.region_bytes_max,
            weight: self.weight.map_or(all.weight, |weight| weight.0),
            bytes_per_s: self.bytes_per_s.map(NonZeroU64::get),
            operations_per_s: self.operations_per_s.map(NonZeroU64::get),
            pinned_bytes_max: self.pinned_bytes_max,
        }
    }
}

/// What may be done with regions.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RegionWord {
    None,
    Open,
    Create,
}

impl RegionWord {
    fn right(self) -> RegionRight {
        match self {
            Self::None => RegionRight::None,
            Self::Open => RegionRight::Open,
            Self::Create => RegionRight::Create,
        }
    }
}

macro_rules! from_value {
    ($(#[$doc:meta])* $name:ident($inner:ty), $parse:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(try_from = "Value")]
        struct $name($inner);

        impl TryFrom<Value> for $name {
            type Error = String;

            fn try_from(value: Value) -> Result<Self, String> {
                let parse: fn(&Value) -> Result<$inner, String> = $parse;
                parse(&value).map(Self)
            }
        }
    };
}

from_value!(
    /// A user by name or number.
    UserId(u32),
    |value| id_of(value, "user", |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())))
);
from_value!(
    /// A group by name or number.
    GroupId(u32),
    |value| id_of(value, "group", |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())))
);
from_value!(
    /// A unit of systemd.
    Unit(String),
    |value| match value.as_str() {
        Some(unit) if !unit.is_empty() && !unit.contains('/') && unit.contains('.') => Ok(unit.to_owned()),
        _ => Err(format!("{value} is no unit; write its whole name, such as \"nginx.service\"")),
    }
);
from_value!(
    /// The path of a control group.
    ControlGroup(String),
    |value| match value.as_str() {
        Some(path) if path.len() > 1 && path.starts_with('/') => Ok(path.trim_end_matches('/').to_owned()),
        _ => Err(format!("{value} is no control group; write its path below /sys/fs/cgroup, such as \"/kubepods.slice\"")),
    }
);
from_value!(
    /// A port, or a range of ports.
    Ports(RangeInclusive<u16>),
    |value| {
        let wrong = || format!("{value} is no port and no range of ports; write 80 or \"7000-7999\"");
        let (first, last) = match value {
            Value::Integer(port) => (u16::try_from(*port).ok(), u16::try_from(*port).ok()),
            Value::String(text) => match text.split_once('-') {
                Some((first, last)) => (first.trim().parse().ok(), last.trim().parse().ok()),
                None => (text.trim().parse().ok(), text.trim().parse().ok()),
            },
            _ => (None, None),
        };
        match (first, last) {
            (Some(first), Some(last)) if first > 0 && first <= last => Ok(first..=last),
            _ => Err(wrong()),
        }
    }
);
from_value!(
    /// A part of a lane.
    Weight(u16),
    |value| match value.as_integer().map(u16::try_from) {
        Some(Ok(weight)) if (1..=WEIGHT_MAX).contains(&weight) => Ok(weight),
        _ => Err(format!("{value} is no weight, which is 1 to {WEIGHT_MAX}")),
    }
);
from_value!(
    /// `ADDRESS/BITS`, or one host's address.
    Network(IpNet),
    |value| value.as_str().map_or_else(|| Err(format!("{value} is no network; write it in quotes")), network_of)
);

fn id_of(value: &Value, kind: &str, named: impl FnOnce(&str) -> nix::Result<Option<u32>>) -> Result<u32, String> {
    match value {
        Value::Integer(number) => {
            u32::try_from(*number).map_err(|_| format!("{number} is no number of a {kind}, which is 0 to {}", u32::MAX))
        }
        Value::String(name) => match named(name) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => {
                Err(format!("there is no {kind} \"{name}\" on this host; a number needs none: write it without quotes"))
            }
            Err(e) => Err(format!("the system cannot look the {kind} \"{name}\" up: {e}")),
        },
        _ => Err(format!("{value} is no {kind}; write a name or a number")),
    }
}

#[cfg(test)]
mod tests {
    use plane::ProgramFacts;

    use super::*;

    const ALL: &str = r#"
[[tenant]]
name = "web"
users = ["root", 33]
units = ["nginx.service"]
listen = [80, "7000-7999"]
connect = ["10.0.0.0/8", "192.168.1.1"]
regions = "open"
leased_lanes = false
programs_max = 4
listeners_max = 5
connections_max = 6
region_bytes_max = 1073741824
weight = 3
bytes_per_s = 125000000
operations_per_s = 1000
pinned_bytes_max = 67108864

[[tenant]]
name = "pods"
groups = ["root"]
cgroups = ["/kubepods.slice/"]

[others]
regions = "none"
connections_max = 10
"#;

    #[test]
    fn every_key_is_read() {
        let policy = parse(ALL).unwrap();
        let [web, pods, others] = policy.tenants() else { panic!("{policy:?}") };
        assert_eq!((&*web.name, &*pods.name, &*others.name), ("web", "pods", plane::OTHERS));
        assert_eq!(web.takes.users, Some([0, 33].into()));
        let rights = Rights {
            listen: Some(vec![80..=80, 7000..=7999]),
            connect: Some(["10.0.0.0/8", "192.168.1.1/32"].map(|n| n.parse::<IpNet>().unwrap()).into()),
            regions: RegionRight::Open,
            leased_lanes: false,
            programs_max: Some(4),
            listeners_max: Some(5),
            connections_max: Some(6),
            region_bytes_max: Some(1 << 30),
            weight: 3,
            bytes_per_s: Some(125_000_000),
            operations_per_s: Some(1000),
            pinned_bytes_max: Some(64 << 20),
        };
        assert_eq!(web.rights, rights);
        assert_eq!(pods.rights, Rights::default());
        let some = Rights { regions: RegionRight::None, connections_max: Some(10), ..Rights::default() };
        assert_eq!(others.rights, some);
        let pod = ProgramFacts { uid: 5, gids: vec![0], cgroup: "/kubepods.slice/pod1".into(), units: vec![] };
        assert_eq!(&*policy.tenant_of(&pod).name, "pods");
        assert_eq!(parse("").unwrap(), Policy::default());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let tenant = "[[tenant]]\nname = \"a\"\nusers = [1]\n";
        for (text, line, words) in [
            ("[other]\n", 1, "unknown field `other`"),
            ("[[tenant]]\nusers = [1]\n", 1, "missing field `name`"),
            ("[[tenant]]\nname = \"a\"\n", 2, "takes every program"),
            ("[[tenant]]\nname = \"others\"\nusers = [1]\n", 2, "write their rights in [others]"),
            (&format!("{tenant}{tenant}"), 5, "is there twice"),
            (&format!("{tenant}listn = [80]\n"), 4, "unknown field `listn`"),
            (&format!("{tenant}listen = [0]\n"), 4, "is no port"),
            (&format!("{tenant}listen = [\"9-8\"]\n"), 4, "is no port"),
            (&format!("{tenant}listen = [70000]\n"), 4, "is no port"),
            (&format!("{tenant}connect = [\"10.0.0.1/8\"]\n"), 4, "the network is 10.0.0.0/8"),
            (&format!("{tenant}connect = [\"here\"]\n"), 4, "is no network"),
            (&format!("{tenant}regions = \"some\"\n"), 4, "unknown variant `some`"),
            (&format!("{tenant}connections_max = -1\n"), 4, "invalid value"),
            (&format!("{tenant}weight = 0\n"), 4, "is no weight, which is 1 to 100"),
            (&format!("{tenant}weight = 101\n"), 4, "is no weight, which is 1 to 100"),
            (&format!("{tenant}bytes_per_s = 0\n"), 4, "invalid value"),
            (&format!("{tenant}groups = [\"no-such-group\"]\n"), 4, "there is no group \"no-such-group\""),
            ("[[tenant]]\nname = \"a\"\nusers = [\"no-such-user\"]\n", 3, "there is no user \"no-such-user\""),
            (&format!("{tenant}units = [\"nginx\"]\n"), 4, "is no unit"),
            (&format!("{tenant}cgroups = [\"pods\"]\n"), 4, "is no control group"),
            ("[[tenant]\n", 1, ""),
        ] {
            let (at, what) = parse(text).expect_err(text);
            assert!(at == line && what.contains(words), "{text}{at}: {what}");
        }
    }
}
