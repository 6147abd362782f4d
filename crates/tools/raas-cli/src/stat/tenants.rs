//! `raas stat --tenant`: the tenants of the policy, with what their programs have and carried.

use std::path::Path;

use control::{AppRow, TenantRow};
use serde_json::{Value, json};
use terminal::Failure;
use terminal::out;
use terminal::table::{self, Align, Table};
use transport::session_failure;

use super::SCHEMA;

/// What the programs of a tenant carried since each of them came.
#[derive(Debug, Default, PartialEq, Eq)]
struct Carried {
    tx_bytes: u64,
    rx_bytes: u64,
    operations: u64,
    pinned_bytes: u64,
}

impl Carried {
    fn of(tenant: &str, apps: &[AppRow]) -> Self {
        let mut all = Self::default();
        for app in apps.iter().filter(|app| app.tenant == tenant) {
            all.tx_bytes = all.tx_bytes.wrapping_add(app.tx_bytes);
            all.rx_bytes = all.rx_bytes.wrapping_add(app.rx_bytes);
            all.operations += app.reads + app.writes + app.atomics + app.kernels;
            all.pinned_bytes += app.pinned_bytes;
        }
        all
    }
}

/// Asks the daemon at `socket` and prints its tenants.
pub(super) fn run(socket: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let tenants = raas::inspect::tenants(socket).map_err(session_failure)?;
    let apps = raas::inspect::stat(socket).map_err(session_failure)?.apps;
    let told = if as_json { out::line(to_json(&tenants, &apps)) } else { out::print(to_text(&tenants, &apps)) };
    told.map(drop)
}

fn to_json(tenants: &[TenantRow], apps: &[AppRow]) -> Value {
    let row = |tenant: &TenantRow| {
        let mut row = json!(tenant);
        let Carried { tx_bytes, rx_bytes, operations, pinned_bytes } = Carried::of(&tenant.name, apps);
        row["tx_bytes"] = json!(tx_bytes);
        row["rx_bytes"] = json!(rx_bytes);
        row["operations"] = json!(operations);
        row["pinned_bytes"] = json!(pinned_bytes);
        row
    };
    json!({ "schema": SCHEMA, "tenants": tenants.iter().map(row).collect::<Vec<_>>() })
}

fn to_text(tenants: &[TenantRow], apps: &[AppRow]) -> String {
    let mut t = Table::new(&[
        ("TENANT", Align::Left),
        ("PROGRAMS", Align::Right),
        ("LISTENERS", Align::Right),
        ("CONNECTIONS", Align::Right),
        ("REGIONS", Align::Right),
        ("PINNED", Align::Right),
        ("WEIGHT", Align::Right),
        ("RATES", Align::Left),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("OPERATIONS", Align::Right),
    ])
    .spare(&["OPERATIONS", "PINNED", "RECEIVED", "RATES", "WEIGHT"]);
    let number = |n: u32| table::grouped(u64::from(n));
    let of = |has: String, max: Option<String>| max.map_or_else(|| has.clone(), |max| format!("{has} of {max}"));
    for tenant in tenants {
        let carried = Carried::of(&tenant.name, apps);
        t.row(vec![
            tenant.name.clone(),
            of(number(tenant.programs), tenant.programs_max.map(number)),
            of(number(tenant.listeners), tenant.listeners_max.map(number)),
            of(number(tenant.connections), tenant.connections_max.map(number)),
            of(table::bytes(tenant.region_bytes), tenant.region_bytes_max.map(table::bytes)),
            table::bytes(carried.pinned_bytes),
            tenant.weight.to_string(),
            rates(tenant),
            table::bytes(carried.tx_bytes),
            table::bytes(carried.rx_bytes),
            table::grouped(carried.operations),
        ]);
    }
    t.render()
}

/// What a tenant may do in a second.
fn rates(tenant: &TenantRow) -> String {
    let bytes = tenant.bytes_per_s.map(|rate| format!("{}/s", table::bytes(rate)));
    let operations = tenant.operations_per_s.map(|rate| format!("{} operations/s", table::grouped(rate)));
    let all: Vec<String> = [bytes, operations].into_iter().flatten().collect();
    if all.is_empty() { "any".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, connections_max: Option<u32>) -> TenantRow {
        TenantRow {
            name: name.into(),
            programs: 2,
            programs_max: None,
            listeners: 1,
            listeners_max: Some(4),
            connections: 1000,
            connections_max,
            region_bytes: 1 << 20,
            region_bytes_max: Some(1 << 30),
            weight: 1,
            bytes_per_s: Some(1 << 20),
            operations_per_s: None,
        }
    }

    #[test]
    fn a_tenant_has_the_sums_of_its_programs_and_its_bounds() {
        let app = |tenant: &str| AppRow { tenant: tenant.into(), ..super::super::tests::stat().apps[0].clone() };
        let apps = [app("web"), app("web"), app("others")];
        let rows = [tenant("web", Some(5000)), tenant("others", None)];
        let value = to_json(&rows, &apps);
        assert_eq!(value["schema"], "raas.stat/1");
        let row = &value["tenants"][0];
        assert_eq!((&row["tx_bytes"], &row["rx_bytes"], &row["pinned_bytes"]), (&json!(2), &json!(4), &json!(6)));
        assert_eq!((&row["connections"], &row["connections_max"]), (&json!(1000), &json!(5000)));
        assert_eq!((&value["tenants"][1]["tx_bytes"], &value["tenants"][1]["programs_max"]), (&json!(1), &Value::Null));
        let text = to_text(&rows, &apps);
        assert!(text.contains("1,000 of 5,000") && text.lines().count() == 3, "{text}");
    }
}
