//! `raas stat`: device, lanes, resources, counters and applications of this host.

mod tenants;
mod watch;

use std::path::Path;

use control::{LaneRow, RegionRow, Stat};
use serde_json::{Map, Value, json};

use terminal::Failure;
use terminal::out;
use terminal::table::{self, Align, Table};
use transport::session_failure;

use crate::cli::StatArgs;
use crate::region;

const SCHEMA: &str = "raas.stat/1";

/// Asks the daemon and prints its state, once or again and again, or its tenants.
pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    let (socket, as_json) = (args.socket.path(), args.json);
    if args.tenant {
        return tenants::run(socket, as_json);
    }
    if let Some(period) = args.watch {
        return watch::run(socket, as_json, period);
    }
    let State { stat, regions } = State::ask(socket)?;
    let told = if as_json { out::line(to_json(&stat, &regions)) } else { out::print(to_text(&stat, &regions)) };
    told.map(drop)
}

/// What the daemon tells.
struct State {
    stat: Stat,
    regions: Vec<RegionRow>,
}

impl State {
    fn ask(socket: Option<&Path>) -> Result<Self, Failure> {
        let stat = raas::inspect::stat(socket).map_err(session_failure)?;
        let regions = raas::inspect::regions(socket).map_err(session_failure)?;
        Ok(Self { stat, regions })
    }
}

fn by_name(counts: &[(String, u64)]) -> Value {
    Value::Object(counts.iter().map(|(name, n)| (name.clone(), json!(n))).collect::<Map<_, _>>())
}

/// The counters of device and engine; those that the device cannot report are null.
fn counters(s: &Stat) -> Value {
    let told = s.counters.iter().map(|(name, n)| (name.clone(), json!(n)));
    // Retransmissions have a key of their own.
    let unknown = s.unknown.iter().filter(|name| *name != "retransmits").map(|name| (name.clone(), Value::Null));
    Value::Object(told.chain(unknown.filter(|_| s.all_users)).collect::<Map<_, _>>())
}

/// What the kernel holds the daemon by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessFacts {
    pub(crate) calls_filtered: bool,
    pub(crate) landlock_abi: u64,
}

impl std::fmt::Display for ProcessFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls = if self.calls_filtered { "system calls are filtered" } else { "system calls are NOT filtered" };
        match self.landlock_abi {
            0 => write!(f, "{calls}, files are NOT restricted"),
            abi => write!(f, "{calls}, files are restricted (Landlock {abi})"),
        }
    }
}

/// None where the daemon does not tell this user.
pub(crate) fn sandbox(s: &Stat) -> Option<ProcessFacts> {
    let of = |wanted: &str| s.counters.iter().find(|(name, _)| name == wanted).map(|(_, n)| *n);
    Some(ProcessFacts { calls_filtered: of("calls_filtered")? > 0, landlock_abi: of("landlock_abi")? })
}

fn to_json(s: &Stat, regions: &[RegionRow]) -> Value {
    json!({
        "schema": SCHEMA,
        "device": s.device,
        "device_reason": s.device_reason,
        "sandbox": sandbox(s).map(|held| json!({
            "calls_filtered": held.calls_filtered, "landlock_abi": held.landlock_abi
        })),
        "uptime_seconds": s.uptime_seconds,
        "all_users": s.all_users,
        "lanes": s.lanes,
        "rc_qps": s.rc_qps,
        "ud_qps": s.ud_qps,
        "cqs": s.cqs,
        "srqs": s.srqs,
        "srq_free": s.srq_free,
        "mrs": s.mrs,
        "pinned_bytes": s.pinned_bytes,
        "fds": s.fds,
        "drops": by_name(&s.drops),
        "verbs": s.verbs,
        "retransmits": s.retransmits,
        "counters": counters(s),
        "unknown": s.unknown,
        "stages": s.stages.iter().map(|stage| json!({
            "name": stage.name, "count": stage.count(), "p50_ns": stage.quantile_ns(0.5), "p99_ns": stage.quantile_ns(0.99)
        })).collect::<Vec<_>>(),
        "apps": s.apps,
        "regions": regions.iter().map(region::row_to_json).collect::<Vec<_>>(),
    })
}

fn to_text(s: &Stat, regions: &[RegionRow]) -> String {
    let mut out = resources(s);
    if !s.lanes.is_empty() {
        out += "\nlanes\n";
        out += &lanes(s);
    }
    if !s.apps.is_empty() {
        out += "\napplications\n";
        out += &apps(s);
    }
    if !regions.is_empty() {
        out += "\nregions\n";
        out.extend(region::rows_to_text(regions).lines().map(|line| format!("  {line}\n")));
    }
    if !s.all_users {
        out += "\nyour own lanes and applications; those of all users, and counters, are shown to root and the daemon's user\n";
    }
    let counted = |list: &[(String, u64)]| list.iter().filter(|(_, n)| *n > 0).cloned().collect::<Vec<_>>();
    let unknown = || s.unknown.iter().filter(|_| s.all_users).map(|name| (name.clone(), "unknown".to_string()));
    let shown = |list: Vec<(String, u64)>| list.into_iter().map(|(name, n)| (name, table::grouped(n)));
    let drops: Vec<_> = shown(counted(&s.drops)).collect();
    let counters: Vec<_> = shown(counted(&s.counters)).chain(unknown()).collect();
    for (title, list) in [("packets dropped, by reason", drops), ("counters", counters)] {
        if list.is_empty() {
            continue;
        }
        out += &format!("\n{title}\n");
        let mut t = Table::new(&[("", Align::Left), ("", Align::Right)]);
        for (name, n) in list {
            t.row(vec![format!("  {name}"), n]);
        }
        out += &t.render();
    }
    out
}

fn resources(s: &Stat) -> String {
    let mut t = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut row = |name: &str, value: String| t.row(vec![name.to_owned(), value]);
    row("device", format!("{}: {}", s.device, s.device_reason));
    row("sandbox", sandbox(s).map_or_else(|| "told to root and the daemon's user".into(), |held| held.to_string()));
    row("up", format!("{} s", table::grouped(s.uptime_seconds)));
    row("queue pairs", format!("{} RC, {} UD", s.rc_qps, s.ud_qps));
    row("completion queues", s.cqs.to_string());
    row("shared receive queues", format!("{} ({} receives free)", s.srqs, table::grouped(s.srq_free)));
    row("memory regions", format!("{} ({})", s.mrs, table::bytes(s.pinned_bytes)));
    row("descriptors", s.fds.to_string());
    let is_unknown = s.unknown.iter().any(|name| name == "retransmits");
    let again = if is_unknown { "unknown".into() } else { format!("{} packets", table::grouped(s.retransmits)) };
    row("sent again", again);
    let v = s.verbs;
    row(
        "work requests",
        format!(
            "{} SEND, {} WRITE, {} WRITE/imm, {} READ, {} atomic",
            table::grouped(v.send),
            table::grouped(v.write),
            table::grouped(v.write_imm),
            table::grouped(v.read),
            table::grouped(v.atomic)
        ),
    );
    t.render()
}

fn lanes(s: &Stat) -> String {
    let mut t = Table::new(&[
        ("  NAME", Align::Left),
        ("PEER", Align::Left),
        ("STATE", Align::Left),
        ("INCARNATION", Align::Right),
        ("RESETS", Align::Right),
        ("QPN", Align::Left),
        ("PEER-QPN", Align::Left),
        ("WIRE", Align::Left),
        ("MTU", Align::Right),
        ("CONNECTIONS", Align::Right),
        ("CREDITS", Align::Right),
        ("GRANTED", Align::Right),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("DIALS-FAILED", Align::Right),
        ("REDIAL-IN", Align::Right),
    ])
    .spare(&[
        "PEER-QPN",
        "QPN",
        "GRANTED",
        "CREDITS",
        "MTU",
        "WIRE",
        "INCARNATION",
        "DIALS-FAILED",
        "REDIAL-IN",
        "RESETS",
        "PEER",
    ]);
    for l in &s.lanes {
        t.row(vec![
            format!("  {}", l.name),
            l.peer.to_string(),
            l.state.clone(),
            l.incarnation.to_string(),
            table::grouped(l.resets),
            qpn(l.qpn),
            qpn(l.peer_qpn),
            l.wire.clone().unwrap_or_else(|| "-".into()),
            l.mtu_bytes.to_string(),
            table::grouped(u64::from(l.connections)),
            table::grouped(l.credits),
            table::grouped(l.granted),
            table::bytes(l.tx_bytes),
            table::bytes(l.rx_bytes),
            table::grouped(u64::from(l.dials_failed)),
            redial(l),
        ]);
    }
    t.render()
}

/// How long datagrams wait before they have the host dialed again.
fn redial(lane: &LaneRow) -> String {
    if lane.redial_in_us == 0 { "-".into() } else { format!("{:.1} s", lane.redial_in_us as f64 / 1e6) }
}

/// Only root and the daemon's user get it.
fn qpn(number: Option<u32>) -> String {
    number.map_or("-".to_owned(), |n| format!("{n:#08x}"))
}

fn apps(s: &Stat) -> String {
    let mut t = Table::new(&[
        ("  PID", Align::Right),
        ("UID", Align::Right),
        ("NAME", Align::Left),
        ("CONNECTIONS", Align::Right),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("OPERATIONS", Align::Right),
        ("REGISTERED", Align::Right),
    ])
    .spare(&["REGISTERED", "UID", "OPERATIONS"]);
    for a in &s.apps {
        t.row(vec![
            a.pid.to_string(),
            a.uid.to_string(),
            a.name.clone(),
            table::grouped(u64::from(a.connections)),
            table::bytes(a.tx_bytes),
            table::bytes(a.rx_bytes),
            table::grouped(a.reads + a.writes + a.atomics + a.kernels),
            table::bytes(a.pinned_bytes),
        ]);
    }
    t.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{AppRow, VerbCounts};

    pub(super) fn stat() -> Stat {
        Stat {
            device: "softnic".into(),
            device_reason: "no hardware".into(),
            lanes: vec![LaneRow {
                name: "10.0.0.2/0".into(),
                peer: "10.0.0.2:4790".parse().unwrap(),
                state: "up".into(),
                incarnation: 0,
                resets: 0,
                qpn: Some(17),
                peer_qpn: Some(18),
                wire: Some("roce".into()),
                wire_reason: Some("both ends have it".into()),
                encrypted: None,
                encryption_reason: None,
                cipher: None,
                keys_age_us: None,
                mtu_bytes: 4096,
                connections: 9,
                credits: 100,
                granted: 200,
                tx_bytes: 1,
                rx_bytes: 2,
                dials_failed: 0,
                redial_in_us: 0,
                link_path: None,
                link_path_reason: None,
            }],
            rc_qps: 1,
            ud_qps: 0,
            cqs: 1,
            srqs: 1,
            srq_free: 1000,
            mrs: 3,
            pinned_bytes: 4096,
            fds: 20,
            drops: vec![("icrc".into(), 2), ("truncated".into(), 0)],
            verbs: VerbCounts { send: 1, write: 2, write_imm: 3, read: 0, atomic: 0 },
            retransmits: 0,
            counters: vec![("connects".into(), 0)],
            apps: vec![AppRow {
                pid: 1,
                uid: 0,
                name: "x".into(),
                connections: 9,
                tx_bytes: 1,
                rx_bytes: 2,
                pinned_bytes: 3,
                reads: 0,
                writes: 0,
                atomics: 0,
                kernels: 0,
                tenant: String::new(),
                session: 1,
            }],
            stages: Vec::new(),
            uptime_seconds: 60,
            all_users: true,
            unknown: vec!["rnr_naks".into()],
        }
    }

    #[test]
    fn every_key_that_binds_is_there() {
        let value = to_json(&stat(), &[]);
        for key in [
            "device",
            "lanes",
            "rc_qps",
            "ud_qps",
            "cqs",
            "srqs",
            "srq_free",
            "mrs",
            "pinned_bytes",
            "fds",
            "drops",
            "verbs",
            "retransmits",
            "apps",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!(value["schema"], "raas.stat/1");
        assert_eq!(value["drops"], json!({"icrc": 2, "truncated": 0}));
        assert_eq!(value["verbs"], json!({"send": 1, "write": 2, "write_imm": 3, "read": 0, "atomic": 0}));
        for key in ["pid", "uid", "name", "connections", "tx_bytes", "rx_bytes", "pinned_bytes", "session"] {
            assert!(value["apps"][0].get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn text_shows_what_is_there_and_no_zeros() {
        let text = to_text(&stat(), &[]);
        assert!(text.contains("1 RC, 0 UD") && text.contains("icrc") && text.contains("10.0.0.2:4790"));
        assert!(!text.contains("truncated") && !text.contains("connects"));
        assert!(text.lines().any(|l| l.split_whitespace().eq(["rnr_naks", "unknown"])), "{text}");
        assert_eq!(to_json(&stat(), &[])["counters"], json!({"connects": 0, "rnr_naks": null}));
        assert_eq!(to_json(&stat(), &[])["unknown"], json!(["rnr_naks"]));
    }

    #[test]
    fn regions_and_operations_are_shown() {
        let region = RegionRow {
            name: "counters".into(),
            region: 3,
            bytes: 4096,
            epoch: 2,
            owner_pid: Some(77),
            uid: 7,
            access: control::RegionAccess::ALL,
            opens: 1,
            remote_opens: 4,
            huge_pages: false,
            outlives: false,
            other_users: false,
            single_writer: false,
            term: 0,
            writer: None,
        };
        let mut of = stat();
        (of.apps[0].reads, of.apps[0].writes, of.apps[0].atomics) = (1000, 200, 34);
        let text = to_text(&of, std::slice::from_ref(&region));
        assert!(text.contains("regions") && text.contains("counters") && text.contains("1,234"), "{text}");
        let value = to_json(&of, &[region]);
        let row = &value["regions"][0];
        assert_eq!((&row["name"], &row["owner_pid"], &row["bytes"]), (&json!("counters"), &json!(77), &json!(4096)));
        assert_eq!((&row["epoch"], &row["opens"], &row["remote_opens"]), (&json!(2), &json!(1), &json!(4)));
        assert_eq!(value["apps"][0]["atomics"], 34);
    }

    #[test]
    fn a_host_that_cannot_be_reached_says_when_it_is_dialed_again() {
        let mut of = stat();
        (of.lanes[0].dials_failed, of.lanes[0].redial_in_us) = (5, 1_240_000);
        let row = to_text(&of, &[]).lines().find(|l| l.contains("10.0.0.2/0")).unwrap().to_owned();
        assert_eq!(row.split_whitespace().rev().take(3).collect::<Vec<_>>(), ["s", "1.2", "5"], "{row}");
        assert_eq!(to_json(&of, &[])["lanes"][0]["redial_in_us"], 1_240_000);
    }
}
