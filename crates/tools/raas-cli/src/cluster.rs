//! `raas cluster`: the hosts of the cluster, the names that they serve, and how it is with the directories that know them.

use control::{DirectoryRow, MemberRow};
use raas::inspect::ClusterState;
use serde_json::{Value, json};
use terminal::table::{self, Align, Table};
use terminal::{Failure, out};
use transport::session_failure;

use crate::cli::ClusterArgs;

const SCHEMA: &str = "raas.cluster/1";

/// Asks the daemon and prints its hosts.
pub(crate) fn run(args: &ClusterArgs) -> Result<(), Failure> {
    let mut state = raas::inspect::cluster(args.socket.path()).map_err(session_failure)?;
    if let Some(name) = &args.name {
        state.hosts.retain(|host| has(host, name));
    }
    let not_there = |name| format!("no host of the cluster has or serves the name `{name}`: `raas cluster` lists all");
    let missing = args.name.as_ref().filter(|_| state.hosts.is_empty()).map(not_there);
    if args.json {
        out::line(to_json(&state))?;
    } else if missing.is_none() {
        out::print(to_text(&state))?;
    }
    missing.map_or(Ok(()), |told| Err(Failure::Failed(told)))
}

fn has(host: &MemberRow, name: &str) -> bool {
    host.name.iter().chain(&host.services).any(|own| own.eq_ignore_ascii_case(name))
}

fn to_json(state: &ClusterState) -> Value {
    json!({ "schema": SCHEMA, "hosts": state.hosts, "directories": state.directories })
}

fn to_text(state: &ClusterState) -> String {
    if state.directories.is_empty() {
        return table::paragraph(
            "the daemon's configuration names no hosts: see [cluster] in docs/operate/clusters.md. Programs reach hosts by address, \
             and by names that the system knows",
        );
    }
    let mut hosts = Table::new(&[
        ("HOST", Align::Left),
        ("NAME", Align::Left),
        ("SERVICES", Align::Left),
        ("FROM", Align::Left),
        ("KNOWN FOR", Align::Right),
    ])
    .spare(&["KNOWN FOR"]);
    for host in &state.hosts {
        hosts.row(vec![
            host.address.to_string(),
            host.name.clone().unwrap_or_default(),
            host.services.join(", "),
            host.source.clone(),
            seconds(host.known_seconds),
        ]);
    }
    let mut directories = Table::new(&[
        ("FROM", Align::Left),
        ("ASKED", Align::Left),
        ("HOSTS", Align::Right),
        ("ANSWERED", Align::Right),
        ("TROUBLE", Align::Left),
    ]);
    for row in &state.directories {
        directories.row(vec![
            row.source.clone(),
            row.asked.join(", "),
            table::grouped(row.hosts),
            row.answered_seconds.map_or_else(|| "never".to_owned(), |s| format!("{} ago", seconds(s))),
            trouble(row),
        ]);
    }
    format!("{}\n{}", hosts.render(), directories.render())
}

fn trouble(row: &DirectoryRow) -> String {
    let since = |s| format!("for {}: ", seconds(s));
    row.error.as_ref().map_or_else(String::new, |e| format!("{}{e}", row.failed_seconds.map(since).unwrap_or_default()))
}

fn seconds(n: u64) -> String {
    format!("{} s", table::grouped(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8, services: &[&str], source: &str) -> MemberRow {
        MemberRow {
            address: [10, 0, 0, last].into(),
            name: Some(format!("host{last}")),
            services: services.iter().map(ToString::to_string).collect(),
            source: source.into(),
            known_seconds: 1234,
        }
    }

    fn directory(source: &str, error: Option<&str>) -> DirectoryRow {
        DirectoryRow {
            source: source.into(),
            asked: vec!["http://a:2379".into()],
            hosts: 1,
            answered_seconds: error.is_none().then_some(3),
            failed_seconds: error.map(|_| 60),
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn hosts_and_directories_are_told() {
        let hosts = vec![host(1, &["store", "web"], "etcd"), host(2, &[], "static")];
        let state = ClusterState { hosts, directories: vec![directory("etcd", Some("gone")), directory("dns", None)] };
        let text = to_text(&state);
        for part in ["10.0.0.1", "host1", "store, web", "1,234 s", "never", "for 60 s: gone", "3 s ago"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let told = to_json(&state);
        assert_eq!(told["hosts"][0]["services"], json!(["store", "web"]));
        assert_eq!((&told["directories"][1]["error"], &told["schema"]), (&Value::Null, &json!("raas.cluster/1")));
        assert!(to_text(&ClusterState::default()).contains("[cluster]"));
    }

    #[test]
    fn a_name_is_a_hosts_own_or_one_that_it_serves() {
        let host = host(1, &["store"], "etcd");
        assert!(has(&host, "STORE") && has(&host, "host1") && !has(&host, "stor"));
    }
}
