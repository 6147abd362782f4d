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
use crate::toml_file::Problems;

/// Where the keys are explained.
const DOCUMENTED: &str = "docs/operate/policy.md";

/// Reads a policy. A problem names the file, the line, the tenant and the key: `FILE:LINE: message`.
pub fn load_policy(path: &Path) -> Result<Policy, ConfigError> {
    let at = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError::one(format!("{at}: {e}")))?;
    parse(&text).map_err(|problems| ConfigError {
        problems: problems.into_iter().map(|problem| format!("{at}:{problem}")).collect(),
    })
}

/// The policy of a file's text, or what is wrong: `LINE: message`, in the order of the file.
fn parse(text: &str) -> Result<Policy, Vec<String>> {
    let mut problems = Problems::new(text, DOCUMENTED, |_| None);
    let file: Option<File> = problems.read();
    // A tenant of which something is left out already is not judged as a whole.
    let Some(file) = file.filter(|_| problems.is_empty()) else {
        return problems.told().map(|()| Policy::default());
    };
    let mut names = BTreeSet::new();
    for tenant in &file.tenant {
        let (at, name) = (tenant.name.span().start, tenant.name.get_ref());
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(control::is_plain) {
            let plain = "and no characters that change how others look";
            let told = format!("`name`: a name has 1 to {NAME_BYTES_MAX} bytes {plain}");
            problems.add(at, &told);
        } else if name == plane::OTHERS {
            let told = format!("`name`: \"{name}\" are the programs of no tenant; write their rights in [others]");
            problems.add(at, &told);
        } else if !names.insert(name) {
            problems.add(at, &format!("`name`: \"{name}\" is there twice; give each tenant a name of its own"));
        } else if tenant.selector() == Selector::default() {
            let keys = "give it `users`, `groups`, `units` or `cgroups`; the rights of all others stand in [others]";
            problems.add(at, &format!("tenant \"{name}\": it takes every program: {keys}"));
        }
    }
    problems.told()?;
    let tenants = file.tenant.into_iter().map(TenantEntry::tenant).collect();
    Policy::new(tenants, file.others.rights()).map_err(|e| vec![format!("1: {e}")])
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
            regions: self.regions.map_or(all.regions, |word| word.0),
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
    /// What may be done with regions.
    RegionWord(RegionRight),
    |value| match value.as_str() {
        Some("none") => Ok(RegionRight::None),
        Some("open") => Ok(RegionRight::Open),
        Some("create") => Ok(RegionRight::Create),
        _ => Err(format!("{value} is not allowed; use \"none\", \"open\" or \"create\"")),
    }
);
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
    fn what_is_wrong_is_told_with_its_line_its_tenant_and_its_key() {
        let tenant = "[[tenant]]\nname = \"a\"\nusers = [1]\n";
        for (text, expected) in [
            ("[other]\n", "1: unknown key `other`; did you mean `others`?"),
            ("[[tenants]]\nname = \"a\"\n", "1: unknown key `tenants`; did you mean `tenant`?"),
            (
                "[[tenant]]\nname = \"a\\u202eb\"\nusers = [1]\n",
                "2: `name`: a name has 1 to 64 bytes and no characters",
            ),
            ("[[tenant]]\nusers = [1]\n", "1: `tenant`: missing field `name`"),
            ("[[tenant]]\nname = \"a\"\n", "2: tenant \"a\": it takes every program"),
            ("[[tenant]]\nname = \"others\"\nusers = [1]\n", "2: `name`: \"others\" are the programs of no tenant"),
            (&format!("{tenant}{tenant}"), "5: `name`: \"a\" is there twice"),
            (&format!("{tenant}listn = [80]\n"), "4: tenant \"a\": unknown key `listn`; did you mean `listen`?"),
            (&format!("{tenant}colour = 1\n"), "4: tenant \"a\": unknown key `colour`; see docs/operate/policy.md"),
            ("\n[others]\nregion = \"none\"\n", "3: unknown key `region`; did you mean `regions`?"),
            (&format!("{tenant}listen = [0]\n"), "4: tenant \"a\": `listen`: 0 is no port"),
            (&format!("{tenant}listen = [\"9-8\"]\n"), "4: tenant \"a\": `listen`: \"9-8\" is no port"),
            (&format!("{tenant}listen = [70000]\n"), "4: tenant \"a\": `listen`: 70000 is no port"),
            (&format!("{tenant}connect = [\"10.0.0.1/8\"]\n"), "4: tenant \"a\": `connect`: 10.0.0.1/8 has bits"),
            (&format!("{tenant}connect = [\"here\"]\n"), "4: tenant \"a\": `connect`: \"here\" is no network"),
            (
                &format!("{tenant}regions = \"some\"\n"),
                "4: tenant \"a\": `regions`: \"some\" is not allowed; use \"none\", \"open\" or \"create\"",
            ),
            (&format!("{tenant}regions = true\n"), "4: tenant \"a\": `regions`: true is not allowed; use \"none\""),
            (&format!("{tenant}connections_max = -1\n"), "4: tenant \"a\": `connections_max`: invalid value"),
            (&format!("{tenant}weight = 0\n"), "4: tenant \"a\": `weight`: 0 is no weight, which is 1 to 100"),
            (&format!("{tenant}weight = 101\n"), "4: tenant \"a\": `weight`: 101 is no weight, which is 1 to 100"),
            (&format!("{tenant}bytes_per_s = 0\n"), "4: tenant \"a\": `bytes_per_s`: invalid value"),
            (
                &format!("{tenant}groups = [\"no-such-group\"]\n"),
                "4: tenant \"a\": `groups`: there is no group \"no-such-group\"",
            ),
            (
                "[[tenant]]\nname = \"a\"\nusers = [\"no-such-user\"]\n",
                "3: tenant \"a\": `users`: there is no user \"no-such-user\"",
            ),
            (&format!("{tenant}units = [\"nginx\"]\n"), "4: tenant \"a\": `units`: \"nginx\" is no unit"),
            (&format!("{tenant}cgroups = [\"pods\"]\n"), "4: tenant \"a\": `cgroups`: \"pods\" is no control group"),
            ("[[tenant]\n", "1: "),
        ] {
            let problems = parse(text).expect_err(text);
            assert!(problems.len() == 1 && problems[0].starts_with(expected), "{text}{problems:#?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let text = "[[tenant]]\nname = \"a\"\nusers = 5\nlistn = [1]\n[[tenant]]\nname = \"b\"\nweight = 0\n";
        let problems = parse(text).unwrap_err();
        let starts = ["3: tenant \"a\": `users`", "4: tenant \"a\": unknown key", "7: tenant \"b\": `weight`"];
        assert_eq!(problems.len(), starts.len(), "{problems:#?}");
        assert!(problems.iter().zip(starts).all(|(told, start)| told.starts_with(start)), "{problems:#?}");
    }
}
