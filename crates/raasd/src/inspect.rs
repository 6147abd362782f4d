//! Answers to `raas ss` and `raas stat`, in parts that fit a frame.
//!
//! Owns how the engine's, the device's and the pairs' tables become one. It must never make a part that the control
//! socket does not carry.

use control::{AppRow, ConnectionRow, DatagramRow, FRAME_BYTES_MAX, InspectAnswer, LaneRow, Stat, VerbCounts};
use serde::Serialize;

use crate::command::EngineStat;

/// Bytes of rows in one part; the rest of a frame is for what stands around them.
const PART_BYTES: usize = FRAME_BYTES_MAX / 2;

/// All connections, in parts.
pub(crate) fn connections(rows: Vec<ConnectionRow>) -> Vec<InspectAnswer> {
    table(rows, InspectAnswer::Connections)
}

/// All datagram sockets, in parts.
pub(crate) fn datagrams(rows: Vec<DatagramRow>) -> Vec<InspectAnswer> {
    table(rows, InspectAnswer::Datagrams)
}

fn table<T: Serialize>(rows: Vec<T>, answer: fn(Vec<T>) -> InspectAnswer) -> Vec<InspectAnswer> {
    let mut parts: Vec<_> = in_parts(rows).into_iter().map(answer).collect();
    if parts.is_empty() {
        parts.push(answer(Vec::new()));
    }
    parts
}

/// What the control plane adds to the engine's part of `raas stat`.
#[derive(Debug)]
pub(crate) struct DaemonStat {
    pub(crate) uptime_seconds: u64,
    pub(crate) pairs: u64,
    pub(crate) links: u64,
    /// Process and same-host connections of each application.
    pub(crate) shm_connections: Vec<(u32, u32)>,
}

/// The host's state. Each part has all of it but lanes and applications, of which it has some; together all.
pub(crate) fn stat(engine: EngineStat, mut daemon: DaemonStat) -> Vec<InspectAnswer> {
    let EngineStat { device, lanes, mut apps, totals, counters } = engine;
    for app in &mut apps {
        if let Some(found) = daemon.shm_connections.iter().position(|(pid, _)| *pid == app.pid) {
            app.connections = app.connections.saturating_add(daemon.shm_connections.swap_remove(found).1);
        }
    }
    let of = |name: &str| counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v);
    let verbs = VerbCounts {
        send: of("verbs_send"),
        write: of("verbs_write"),
        write_imm: of("verbs_write_imm"),
        read: of("verbs_read"),
        atomic: of("verbs_atomic"),
    };
    let both = || counters.iter().chain(&totals.counters);
    let drops = both().filter_map(|(n, v)| Some((n.strip_prefix("drop_")?.to_string(), *v))).collect();
    let own = [("pairs", daemon.pairs), ("control_links", daemon.links)];
    let other = both().filter(|(n, _)| !n.starts_with("drop_") && !n.starts_with("verbs_"));
    let all = other.chain(&own).map(|(n, v)| ((*n).to_string(), *v)).collect();
    let whole = Stat {
        device,
        lanes: Vec::new(),
        rc_qps: totals.rc_qps,
        ud_qps: totals.ud_qps,
        cqs: totals.cqs,
        srqs: totals.srqs,
        srq_free: totals.srq_free,
        mrs: totals.mrs,
        pinned_bytes: totals.pinned_bytes,
        fds: open_descriptors(),
        drops,
        verbs,
        retransmits: of("retransmits"),
        counters: all,
        apps: Vec::new(),
        uptime_seconds: daemon.uptime_seconds,
    };
    let mut parts = Vec::new();
    let part =
        |lanes: Vec<LaneRow>, apps: Vec<AppRow>| InspectAnswer::Stat(Box::new(Stat { lanes, apps, ..whole.clone() }));
    if encoded_bytes(&(&lanes, &apps)) <= PART_BYTES {
        parts.push(part(lanes, apps));
    } else {
        parts.extend(in_parts(lanes).into_iter().map(|lanes| part(lanes, Vec::new())));
        parts.extend(in_parts(apps).into_iter().map(|apps| part(Vec::new(), apps)));
    }
    parts
}

fn encoded_bytes<T: Serialize>(value: &T) -> usize {
    // What cannot be encoded at all will not fit a part either.
    control::encode(value).map_or(FRAME_BYTES_MAX, |b| b.len())
}

/// Cuts a table; no part has more than [`PART_BYTES`] bytes unless one row alone has.
fn in_parts<T: Serialize>(rows: Vec<T>) -> Vec<Vec<T>> {
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (Vec::new(), 0);
    for row in rows {
        let row_bytes = encoded_bytes(&row);
        if bytes + row_bytes > PART_BYTES && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += row_bytes;
        part.push(row);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Open descriptors of this process, without the one that is needed to count them.
fn open_descriptors() -> u32 {
    let count = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{ConnectionState, PathKind, Reason, Reply};

    fn row(id: u64) -> ConnectionRow {
        ConnectionRow {
            id,
            local: "[2001:db8::1]:1".parse().unwrap(),
            peer: "[2001:db8::2]:2".parse().unwrap(),
            state: ConnectionState::Established,
            lane: Some("2001:db8::2/0".into()),
            route_id: Some(u32::MAX),
            path: PathKind::Lane,
            reason: Reason::OtherHost,
            tx_bytes: u64::MAX,
            rx_bytes: u64::MAX,
            tx_queued_bytes: u64::MAX,
            rx_queued_bytes: u64::MAX,
            app_pid: u32::MAX,
        }
    }

    #[test]
    fn large_tables_come_in_parts_that_fit_and_nothing_is_lost() {
        let parts = connections((0..10_000).map(row).collect());
        let mut ids = Vec::new();
        for answer in &parts {
            let reply = Reply::Inspected { request: u64::MAX, answer: answer.clone(), more: true };
            control::encode(&reply).unwrap();
            let InspectAnswer::Connections(rows) = answer else { panic!("a stat") };
            ids.extend(rows.iter().map(|r| r.id));
        }
        assert!(parts.len() > 1);
        assert_eq!(ids, (0..10_000).collect::<Vec<_>>());
        assert_eq!(connections(Vec::new()), [InspectAnswer::Connections(Vec::new())]);
    }

    #[test]
    fn stat_splits_counters_by_kind_and_apps_into_parts() {
        let app = |pid| AppRow {
            pid,
            uid: 1,
            name: "x".repeat(64),
            connections: 1,
            tx_bytes: u64::MAX,
            rx_bytes: 0,
            pinned_bytes: 0,
        };
        let engine = EngineStat {
            device: "softnic".into(),
            lanes: Vec::new(),
            apps: (0..3000).map(app).collect(),
            totals: engine::EngineTotals { counters: vec![("rnr_naks", 0)], ..Default::default() },
            counters: vec![("drop_bad_icrc", 3), ("verbs_write_imm", 7), ("retransmits", 2), ("tx_packets", 9)],
        };
        let daemon = DaemonStat { uptime_seconds: 5, pairs: 1, links: 2, shm_connections: vec![(2, 40)] };
        let parts = stat(engine, daemon);
        let mut apps = Vec::new();
        for answer in parts {
            control::encode(&Reply::Inspected { request: 0, answer: answer.clone(), more: false }).unwrap();
            let InspectAnswer::Stat(stat) = answer else { panic!("connections") };
            assert_eq!(stat.drops, [("bad_icrc".to_string(), 3)]);
            assert_eq!((stat.verbs.write_imm, stat.retransmits), (7, 2));
            assert!(
                stat.counters.contains(&("tx_packets".into(), 9)) && stat.counters.contains(&("rnr_naks".into(), 0))
            );
            assert!(stat.fds >= 3);
            apps.extend(stat.apps);
        }
        assert_eq!(apps.len(), 3000);
        assert_eq!((apps[1].connections, apps[2].connections), (1, 41));
    }
}
