//! `raas policy check`: whether a policy's file can be used, what it says, and whose program a process is.

use raasd::{Policy, RegionRight, Rights};
use serde_json::{Value, json};
use terminal::table::{Align, Table};
use terminal::{Failure, out};

use crate::cli::PolicyCheckArgs;

const SCHEMA: &str = "raas.policy/1";

/// Reads the file and prints its tenants.
pub(crate) fn check(args: &PolicyCheckArgs) -> Result<(), Failure> {
    let policy = raasd::load_policy(&args.file).map_err(|e| Failure::Configuration(e.to_string()))?;
    let tenant = args.pid.map(|pid| tenant_of(&policy, pid)).transpose()?;
    if args.json {
        return out::line(to_json(&policy, tenant.as_deref())).map(drop);
    }
    let whose = match (args.pid, tenant) {
        (Some(pid), Some(tenant)) => format!("\nprocess {pid} is a program of the tenant `{tenant}`\n"),
        _ => String::new(),
    };
    out::print(format!("{}{whose}", to_text(&policy))).map(drop)
}

/// The tenant of a process that runs.
fn tenant_of(policy: &Policy, pid: u32) -> Result<String, Failure> {
    let facts = raasd::program_facts(pid)
        .ok_or_else(|| Failure::Failed(format!("there is no process {pid}: name one of this host that runs")))?;
    Ok(policy.tenant_of(&facts).name.to_string())
}

fn to_json(policy: &Policy, tenant: Option<&str>) -> Value {
    let tenants = policy.tenants().iter().map(|tenant| {
        let rights = &tenant.rights;
        let ports = rights.listen.as_ref().map(|list| list.iter().map(|p| [*p.start(), *p.end()]).collect::<Vec<_>>());
        let networks = rights.connect.as_ref().map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
        json!({
            "name": &*tenant.name,
            "users": tenant.takes.users,
            "groups": tenant.takes.groups,
            "units": tenant.takes.units,
            "cgroups": tenant.takes.cgroups,
            "listen": ports,
            "connect": networks,
            "regions": word(rights.regions),
            "leased_lanes": rights.leased_lanes,
            "programs_max": rights.programs_max,
            "listeners_max": rights.listeners_max,
            "connections_max": rights.connections_max,
            "region_bytes_max": rights.region_bytes_max,
            "weight": rights.weight,
            "bytes_per_s": rights.bytes_per_s,
            "operations_per_s": rights.operations_per_s,
            "pinned_bytes_max": rights.pinned_bytes_max,
        })
    });
    let mut value = json!({ "schema": SCHEMA, "tenants": tenants.collect::<Vec<_>>() });
    if let Some(tenant) = tenant {
        value["tenant"] = json!(tenant);
    }
    value
}

fn word(right: RegionRight) -> &'static str {
    match right {
        RegionRight::None => "none",
        RegionRight::Open => "open",
        RegionRight::Create => "create",
    }
}

fn to_text(policy: &Policy) -> String {
    let mut t = Table::new(&[
        ("TENANT", Align::Left),
        ("LISTEN", Align::Left),
        ("CONNECT", Align::Left),
        ("REGIONS", Align::Left),
        ("LEASED LANES", Align::Left),
        ("AT MOST", Align::Left),
    ]);
    for tenant in policy.tenants() {
        let rights = &tenant.rights;
        let ports = rights.listen.as_ref().map(|list| {
            let range = |p: &std::ops::RangeInclusive<u16>| {
                if p.start() == p.end() { p.start().to_string() } else { format!("{}-{}", p.start(), p.end()) }
            };
            list.iter().map(range).collect::<Vec<_>>()
        });
        let networks = rights.connect.as_ref().map(|list| list.iter().map(ToString::to_string).collect());
        t.row(vec![
            tenant.name.to_string(),
            listed(ports),
            listed(networks),
            word(rights.regions).into(),
            if rights.leased_lanes { "yes" } else { "no" }.into(),
            bounds(rights),
        ]);
    }
    t.render()
}

fn listed(list: Option<Vec<String>>) -> String {
    match list {
        None => "any".into(),
        Some(list) if list.is_empty() => "none".into(),
        Some(list) => list.join(", "),
    }
}

fn bounds(rights: &Rights) -> String {
    let all = [
        (rights.programs_max.map(u64::from), "programs"),
        (rights.listeners_max.map(u64::from), "listeners"),
        (rights.connections_max.map(u64::from), "connections"),
        (rights.region_bytes_max, "bytes of regions"),
        (Some(u64::from(rights.weight)).filter(|&weight| weight != 1), "times the share"),
        (rights.bytes_per_s, "bytes/s"),
        (rights.operations_per_s, "operations/s"),
        (rights.pinned_bytes_max, "bytes of registered memory"),
    ];
    let told: Vec<String> = all.into_iter().filter_map(|(max, of)| Some(format!("{} {of}", max?))).collect();
    if told.is_empty() { "-".into() } else { told.join(", ") }
}
