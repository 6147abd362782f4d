//! Pages of the answers to `raas ss` and `raas stat`.
//!
//! Owns which tables an answer has, in which order, what of the totals an ordinary user sees, and how many bytes a page
//! may have. It must never make a page with more than [`PAGE_BYTES`] of rows, unless one row alone has more.

use std::net::IpAddr;

use control::{AppRow, Cursor, FRAME_BYTES_MAX, InspectAnswer, InspectQuery, LaneRow, PAGE_BYTES, Stat, VerbCounts};
use engine::{LaneView, Page, Viewer};
use plane::{AdmissionCounters, DirectCounters};
use serde::Serialize;
use verbs::Counters;

use crate::command::{EnginePart, EngineStat};

/// Places of a table that are looked at for one page of rows: about 10 us of the engine's time.
pub(crate) const LOOKS_PER_PAGE: u32 = 64;
/// Connections of which one page counts the bytes; no rows are made of them.
pub(crate) const LOOKS_PER_COUNT: u32 = 512;

/// Whose table a page is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Of this engine.
    Engine(u32, EnginePart),
    /// Connections of this host's processes with each other.
    Pairs(u64),
    /// Connections over kernel TCP.
    Tcp(u64),
    /// Regions.
    Regions(u64),
    /// Tenants.
    Tenants(u64),
    /// Hosts of the cluster.
    Members(u64),
    /// Where these are found.
    Directories,
    /// There is no such table: such a cursor did not come from this daemon.
    None,
}

/// A cursor's table is the number of a table, and above these bits that of the engine whose it is.
const TABLE_BITS: u32 = 8;

/// The first page of a table.
const fn start(table: u32) -> Option<Cursor> {
    Some(Cursor { table, at: 0 })
}

/// The number of a cursor's table, and its engine.
const fn split(table: u32) -> (u32, u32) {
    (table & ((1 << TABLE_BITS) - 1), table >> TABLE_BITS)
}

/// What a question is about.
pub(crate) fn part(query: InspectQuery, from: Cursor, engines: u32) -> Part {
    let at = u32::try_from(from.at).unwrap_or(u32::MAX);
    let (table, engine) = split(from.table);
    if engine > 0 && (engine >= engines || !is_of_each_engine(query, table)) {
        return Part::None;
    }
    match (query, table) {
        (InspectQuery::Connections, 0) => Part::Engine(engine, EnginePart::Connections(at)),
        (InspectQuery::Connections, 1) => Part::Pairs(from.at),
        (InspectQuery::Connections, 2) => Part::Tcp(from.at),
        (InspectQuery::Connections, 3) => Part::Engine(engine, EnginePart::Leased(at)),
        (InspectQuery::Datagrams, 0) => Part::Engine(engine, EnginePart::Datagrams(at)),
        (InspectQuery::Trace, 0) => Part::Engine(engine, EnginePart::Trace(from.at)),
        (InspectQuery::Regions, 0) => Part::Regions(from.at),
        (InspectQuery::Tenants, 0) => Part::Tenants(from.at),
        (InspectQuery::Members, 0) => Part::Members(from.at),
        (InspectQuery::Members, 1) => Part::Directories,
        (InspectQuery::Stat, 0) => Part::Engine(engine, EnginePart::Totals),
        (InspectQuery::Stat, 1) => Part::Engine(engine, EnginePart::Lanes(at)),
        (InspectQuery::Stat, 2) => Part::Engine(engine, EnginePart::Bytes(at)),
        (InspectQuery::Stat, 3) => Part::Engine(engine, EnginePart::Apps(at)),
        _ => Part::None,
    }
}

/// Whether each engine has pages of this table. Datagram sockets and
/// leased lanes are the first engine's, and totals are one answer.
fn is_of_each_engine(query: InspectQuery, table: u32) -> bool {
    matches!((query, table), (InspectQuery::Connections | InspectQuery::Trace, 0) | (InspectQuery::Stat, 1..=3))
}

/// The page behind one of this table, if it is the table's last: of the next engine, else of the next table.
pub(crate) fn following(query: InspectQuery, table: u32, engines: u32) -> Option<Cursor> {
    let (table, engine) = split(table);
    if is_of_each_engine(query, table) && engine + 1 < engines {
        return start(table | (engine + 1) << TABLE_BITS);
    }
    let last = match query {
        InspectQuery::Connections | InspectQuery::Stat => 3,
        InspectQuery::Members => 1,
        InspectQuery::Datagrams | InspectQuery::Regions | InspectQuery::Trace | InspectQuery::Tenants => 0,
    };
    if table < last { start(table + 1) } else { None }
}

/// The answer that has no row.
pub(crate) fn nothing(query: InspectQuery) -> InspectAnswer {
    match query {
        InspectQuery::Connections => InspectAnswer::Connections(Vec::new()),
        InspectQuery::Datagrams => InspectAnswer::Datagrams(Vec::new()),
        InspectQuery::Regions => InspectAnswer::Regions(Vec::new()),
        InspectQuery::Trace => InspectAnswer::Trace(Vec::new()),
        InspectQuery::Tenants => InspectAnswer::Tenants(Vec::new()),
        InspectQuery::Members => InspectAnswer::Members(Vec::new()),
        InspectQuery::Stat => InspectAnswer::StatRows { lanes: Vec::new(), apps: Vec::new() },
    }
}

/// As many rows as a page has room for that has so many bytes already, and the place of the next one: of the first that
/// has no room, else `next`.
pub(crate) fn cut<P, T: Serialize>(rows: Vec<(P, T)>, next: Option<P>, before: usize) -> (Vec<T>, Option<P>) {
    let (mut page, mut bytes) = (Vec::new(), before);
    for (place, row) in rows {
        bytes += encoded_bytes(&row);
        if bytes > PAGE_BYTES && (before > 0 || !page.is_empty()) {
            return (page, Some(place));
        }
        page.push(row);
    }
    (page, next)
}

/// As [`cut`], of a page of the engine's.
pub(crate) fn cut_page<T: Serialize>(page: Page<T>, before: usize) -> (Vec<T>, Option<u64>) {
    let (rows, next) = cut(page.rows, page.next, before);
    (rows, next.map(u64::from))
}

/// A page with one part more; the page alone if one answer cannot have both.
pub(crate) fn join(page: Option<InspectAnswer>, part: InspectAnswer) -> Result<InspectAnswer, InspectAnswer> {
    use InspectAnswer::{Connections, Datagrams, Directories, Members, Regions, StatRows, Tenants, Trace};
    let Some(mut page) = page else { return Ok(part) };
    match (&mut page, part) {
        (Connections(rows), Connections(more)) => rows.extend(more),
        (Datagrams(rows), Datagrams(more)) => rows.extend(more),
        (Regions(rows), Regions(more)) => rows.extend(more),
        (Trace(rows), Trace(more)) => rows.extend(more),
        (Tenants(rows), Tenants(more)) => rows.extend(more),
        (Members(rows), Members(more)) => rows.extend(more),
        (Directories(rows), Directories(more)) => rows.extend(more),
        (InspectAnswer::Stat(stat), StatRows { lanes, apps }) => {
            stat.lanes.extend(lanes);
            stat.apps.extend(apps);
        }
        (StatRows { lanes, apps }, StatRows { lanes: more_lanes, apps: more_apps }) => {
            lanes.extend(more_lanes);
            apps.extend(more_apps);
        }
        _ => return Err(page),
    }
    Ok(page)
}

/// Bytes of an answer, of which a page may have so many that no other part is asked for.
pub(crate) const PAGE_ENOUGH: usize = PAGE_BYTES / 4 * 3;
/// Turns of one question, each with a part, before what there is is told.
pub(crate) const TURNS_PER_PAGE: u32 = 64;

pub(crate) fn encoded_bytes<T: Serialize>(value: &T) -> usize {
    // What cannot be encoded at all will not fit a page either.
    control::encode(value).map_or(FRAME_BYTES_MAX, |b| b.len())
}

/// What the control plane adds to the engine's part of `raas stat`.
#[derive(Debug)]
pub(crate) struct DaemonStat {
    pub(crate) uptime_seconds: u64,
    pub(crate) device_reason: String,
    /// What the kernel holds the daemon by: a filter of system calls, and a version of Landlock or 0.
    pub(crate) calls_filtered: bool,
    pub(crate) landlock_abi: u32,
    pub(crate) pairs: u64,
    pub(crate) links: u64,
    pub(crate) path_changes: u64,
    pub(crate) admission: AdmissionCounters,
    /// Of the control plane.
    pub(crate) turn_max_us: u64,
    pub(crate) directs: DirectCounters,
    pub(crate) fds: u32,
    /// Bytes that programs make the daemon hold, by kind.
    pub(crate) memory: [(&'static str, u64); 2],
}

/// Totals of several engines.
pub(crate) fn sum(mut all: EngineStat, one: EngineStat) -> EngineStat {
    let (to, from) = (&mut all.totals, one.totals);
    for (sum, part) in [
        (&mut to.rc_qps, from.rc_qps),
        (&mut to.ud_qps, from.ud_qps),
        (&mut to.cqs, from.cqs),
        (&mut to.srqs, from.srqs),
        (&mut to.mrs, from.mrs),
    ] {
        *sum = sum.saturating_add(part);
    }
    to.srq_free = to.srq_free.saturating_add(from.srq_free);
    to.pinned_bytes = to.pinned_bytes.saturating_add(from.pinned_bytes);
    for stage in from.stages {
        match to.stages.iter_mut().find(|known| known.name == stage.name) {
            Some(known) => known.add(&stage),
            None => to.stages.push(stage),
        }
    }
    to.unknown.extend(from.unknown);
    to.unknown.sort_unstable();
    to.unknown.dedup();
    add_counters(&mut to.counters, from.counters);
    add_counters(&mut all.counters, one.counters);
    all
}

fn add_counters(all: &mut Counters, one: Counters) {
    for (name, value) in one {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, longest)) if name.ends_with("_max_us") => *longest = value.max(*longest),
            Some((_, sum)) => *sum = sum.saturating_add(value),
            None => all.push((name, value)),
        }
    }
}

/// The host's state, to which rows of lanes and applications are added. An ordinary user sees sums, and none of the counters that show a
/// forger which check stopped its last packet.
pub(crate) fn stat(engine: EngineStat, daemon: &DaemonStat, viewer: Viewer) -> Stat {
    let EngineStat { device, mut totals, counters } = engine;
    // Of the connects that were not made the engine saw those that were admitted.
    for (_, failed) in totals.counters.iter_mut().filter(|(name, _)| *name == "connects_failed") {
        *failed += daemon.admission.connects_refused;
    }
    let of = |name: &str| counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v);
    let verbs = VerbCounts {
        send: of("verbs_send"),
        write: of("verbs_write"),
        write_imm: of("verbs_write_imm"),
        read: of("verbs_read"),
        atomic: of("verbs_atomic"),
    };
    let all_users = viewer == Viewer::All;
    let told = || counters.iter().chain(&totals.counters).filter(|_| all_users);
    // Device and engine both may drop for the same reason.
    let mut drops: Vec<(String, u64)> = Vec::new();
    for (reason, n) in told().filter_map(|(name, n)| Some((name.strip_prefix("drop_")?, *n))) {
        match drops.iter_mut().find(|(known, _)| known == reason) {
            Some((_, sum)) => *sum = sum.saturating_add(n),
            None => drops.push((reason.to_owned(), n)),
        }
    }
    let AdmissionCounters { connects_local, .. } = daemon.admission;
    let own = [
        ("pairs", daemon.pairs),
        ("control_links", daemon.links),
        ("path_changes", daemon.path_changes),
        ("connects_local", connects_local),
        ("control_turn_max_us", daemon.turn_max_us),
    ];
    let DirectCounters { open, made, refused } = daemon.directs;
    let own = own.into_iter().chain([("direct_streams", open), ("directs_made", made), ("directs_refused", refused)]);
    let held = [("calls_filtered", daemon.calls_filtered.into()), ("landlock_abi", daemon.landlock_abi.into())];
    let own = own.chain(held).chain(daemon.memory);
    let other = told().filter(|(n, _)| !n.starts_with("drop_") && !n.starts_with("verbs_"));
    let own = own.filter(|_| all_users);
    let untold = ["retransmits"].into_iter().filter(|name| counters.iter().all(|(told, _)| told != name));
    let unknown = totals.unknown.iter().copied().chain(untold).map(String::from).collect();
    Stat {
        device,
        device_reason: daemon.device_reason.clone(),
        lanes: Vec::new(),
        rc_qps: totals.rc_qps,
        ud_qps: totals.ud_qps,
        cqs: totals.cqs,
        srqs: totals.srqs,
        srq_free: totals.srq_free,
        mrs: totals.mrs,
        pinned_bytes: totals.pinned_bytes,
        fds: daemon.fds,
        drops,
        verbs,
        retransmits: of("retransmits"),
        counters: other.map(|(n, v)| ((*n).to_string(), *v)).chain(own.map(|(n, v)| (n.to_string(), v))).collect(),
        apps: Vec::new(),
        stages: if all_users { totals.stages } else { Vec::new() },
        uptime_seconds: daemon.uptime_seconds,
        all_users,
        unknown,
    }
}

/// Rows of lanes that a viewer may see. A user sees those that its programs use, with its own connections, and those
/// that were last dialed for them.
pub(crate) fn lanes(
    page: Page<LaneView>,
    viewer: Viewer,
    own: impl Fn(u32, IpAddr) -> u32,
    path: impl Fn(IpAddr) -> Option<(String, String)>,
) -> Page<LaneRow> {
    let with_path = |LaneView { row, is_dialed }: LaneView| {
        let (link_path, link_path_reason) = path(row.peer.ip()).unzip();
        LaneView { row: LaneRow { link_path, link_path_reason, ..row }, is_dialed }
    };
    let looked = |(place, view)| (place, with_path(view));
    let row = |(place, view): (u32, LaneView)| match viewer {
        Viewer::All => Some((place, view.row)),
        Viewer::User(uid) => {
            let connections = own(uid, view.row.peer.ip());
            (connections > 0 || view.is_dialed).then_some((place, LaneRow { connections, ..view.row }))
        }
    };
    Page { rows: page.rows.into_iter().map(looked).filter_map(row).collect(), next: page.next }
}

/// What the control plane knows of an application.
#[derive(Debug, Default)]
pub(crate) struct SeenHere {
    pub(crate) session: u64,
    /// Same-host connections.
    pub(crate) connections: u32,
    /// Bytes sent and received by such.
    pub(crate) bytes: (u64, u64),
    pub(crate) tenant: String,
}

/// Rows of applications at an engine, with what the control plane knows of them (`seen`). The reader adds up those of
/// one session.
pub(crate) fn apps(page: Page<(engine::AppId, AppRow)>, seen: impl Fn(engine::AppId) -> SeenHere) -> Page<AppRow> {
    let rows = page.rows.into_iter().map(|(place, (app, row))| {
        let SeenHere { session, connections, bytes, tenant } = seen(app);
        let connections = row.connections.saturating_add(connections);
        let tx_bytes = row.tx_bytes.saturating_add(bytes.0);
        let rx_bytes = row.rx_bytes.saturating_add(bytes.1);
        (place, AppRow { session, tenant, connections, tx_bytes, rx_bytes, ..row })
    });
    Page { rows: rows.collect(), next: page.next }
}

/// Open descriptors of this process, without the one that is needed to count them.
pub(crate) fn open_descriptors() -> u32 {
    let count = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use control::ConnectionRow;

    use super::*;
    use control::{ConnectionState, DatagramRow, PathKind, Reason, Reply};

    fn row(id: u64) -> ConnectionRow {
        ConnectionRow {
            id,
            local: "[2001:db8::1]:1".parse().unwrap(),
            peer: "[2001:db8::2]:2".parse().unwrap(),
            state: ConnectionState::Established,
            lane: Some("2001:db8::2/0".into()),
            route_id: Some(u32::MAX),
            path: PathKind::Lane,
            wire: None,
            encrypted: None,
            cipher: None,
            reason: Reason::OtherHost,
            verb: Some("write_imm".into()),
            verb_asked: Some("write_imm".into()),
            verb_reason: Some("r".repeat(96)),
            tx_bytes: u64::MAX,
            rx_bytes: u64::MAX,
            direct_tx_bytes: 0,
            direct_rx_bytes: 0,
            tx_queued_bytes: u64::MAX,
            rx_queued_bytes: u64::MAX,
            app_pid: u32::MAX,
        }
    }

    fn datagram(id: u64) -> DatagramRow {
        let drops = (0..40).map(|n| (format!("some_reason_with_the_number_{n}"), u64::MAX)).collect();
        let local = "[2001:db8::1]:1".parse().unwrap();
        DatagramRow { id, local, tx_datagrams: 0, rx_datagrams: 0, tx_bytes: 0, rx_bytes: 0, drops, app_pid: 1 }
    }

    #[test]
    fn a_page_has_no_more_bytes_than_it_may_and_names_the_row_that_had_no_room() {
        let (rows, next) = cut((0..64).map(|n| (n, row(n))).collect(), Some(64), 0);
        assert_eq!((rows.len(), next), (64, Some(64)), "as many as are looked at");
        for (first, name) in [(0, "datagrams"), (7, "those after")] {
            let (rows, next) = cut((first..64).map(|n| (n, datagram(n))).collect(), None, 0);
            let last = rows.len() as u64;
            assert!(last > 1 && next == Some(first + last), "{name}");
            let answer = InspectAnswer::Datagrams(rows);
            let bytes = control::encode(&Reply::Inspected { request: u64::MAX, answer, next: start(1) }).unwrap().len();
            assert!((PAGE_BYTES * 3 / 4..PAGE_BYTES + 64).contains(&bytes), "{bytes}");
        }
        let mut large = datagram(1);
        large.drops = large.drops.iter().cycle().take(1000).cloned().collect();
        assert_eq!(
            cut(vec![(1, large.clone()), (2, datagram(2))], None, 0).1,
            Some(2),
            "a row that is too large has its own page"
        );
        assert_eq!(cut(vec![(1, large)], None, 1), (Vec::new(), Some(1)), "and not the rest of another's");
        assert_eq!(cut(Vec::<(u32, ConnectionRow)>::new(), Some(9), 0), (Vec::new(), Some(9)));
    }

    #[test]
    fn every_table_is_asked_for_once_and_foreign_cursors_mean_nothing() {
        // The tables, and those of them that each engine has.
        let all = [
            (InspectQuery::Connections, 4, 1),
            (InspectQuery::Stat, 4, 3),
            (InspectQuery::Datagrams, 1, 0),
            (InspectQuery::Regions, 1, 0),
            (InspectQuery::Trace, 1, 1),
            (InspectQuery::Tenants, 1, 0),
            (InspectQuery::Members, 2, 0),
        ];
        for (query, tables, of_each) in all {
            for engines in [1, 2, 16] {
                let (mut at, mut seen) = (start(0), Vec::new());
                while let Some(cursor) = at {
                    seen.push(part(query, cursor, engines));
                    at = following(query, cursor.table, engines);
                }
                assert_eq!(seen.len() as u32, tables + of_each * (engines - 1));
                assert!(!seen.contains(&Part::None));
                assert!((1..seen.len()).all(|i| !seen[..i].contains(&seen[i])), "{seen:?}");
                for table in [tables, 77, engines << TABLE_BITS, 1 << TABLE_BITS | tables, u32::MAX] {
                    assert_eq!(part(query, Cursor { table, at: u64::MAX }, engines), Part::None, "{table}");
                }
                for table in [tables, 77, u32::MAX] {
                    assert_eq!(following(query, table, engines), None);
                }
            }
        }
    }

    fn totals() -> EngineStat {
        EngineStat {
            device: "softnic".into(),
            totals: engine::EngineTotals {
                counters: vec![("rnr_naks", 0), ("connects_failed", 2)],
                srq_free: 7,
                ..Default::default()
            },
            counters: vec![("drop_bad_icrc", 3), ("verbs_write_imm", 7), ("retransmits", 2), ("tx_packets", 9)],
        }
    }

    #[test]
    fn a_reason_for_which_device_and_engine_drop_is_told_once() {
        let mut both = totals();
        both.totals.counters.push(("drop_bad_icrc", 4));
        let daemon = DaemonStat {
            uptime_seconds: 0,
            device_reason: String::new(),
            calls_filtered: true,
            landlock_abi: 0,
            pairs: 0,
            links: 0,
            path_changes: 0,
            admission: AdmissionCounters::default(),
            turn_max_us: 0,
            directs: DirectCounters::default(),
            fds: 0,
            memory: [("kernel_bytes", 7), ("client_queue_bytes", 8)],
        };
        assert_eq!(stat(both, &daemon, Viewer::All).drops, [("bad_icrc".to_owned(), 7)]);
    }

    #[test]
    fn totals_of_engines_are_added_up() {
        let mut other = totals();
        other.totals.unknown = vec!["rnr_naks"];
        other.totals.ud_qps = 1;
        other.counters = vec![("tx_packets", 1), ("rx_packets", 5)];
        let both = sum(totals(), other);
        assert_eq!((both.totals.srq_free, both.totals.ud_qps), (14, 1));
        assert_eq!(both.totals.counters, [("rnr_naks", 0), ("connects_failed", 4)]);
        assert_eq!(both.totals.unknown, ["rnr_naks"]);
        let expected =
            [("drop_bad_icrc", 3), ("verbs_write_imm", 7), ("retransmits", 2), ("tx_packets", 10), ("rx_packets", 5)];
        assert_eq!(both.counters, expected);
    }

    #[test]
    fn counters_are_split_by_kind_and_users_get_none_that_help_a_forger() {
        let admission = AdmissionCounters { connects_local: 4, connects_refused: 5 };
        let device_reason = "no hardware".into();
        let daemon = DaemonStat {
            uptime_seconds: 5,
            device_reason,
            calls_filtered: true,
            landlock_abi: 7,
            pairs: 1,
            links: 2,
            path_changes: 8,
            admission,
            directs: DirectCounters { made: 6, ..Default::default() },
            turn_max_us: 0,
            fds: 3,
            memory: [("kernel_bytes", 7), ("client_queue_bytes", 8)],
        };
        let all = stat(totals(), &daemon, Viewer::All);
        assert_eq!(all.drops, [("bad_icrc".to_string(), 3)]);
        for counter in [
            ("tx_packets", 9),
            ("rnr_naks", 0),
            ("pairs", 1),
            ("control_links", 2),
            ("path_changes", 8),
            ("connects_local", 4),
            ("directs_made", 6),
            ("connects_failed", 7),
        ] {
            assert!(all.counters.contains(&(counter.0.into(), counter.1)), "{counter:?}");
        }
        let own = stat(totals(), &daemon, Viewer::User(5));
        assert!(own.drops.is_empty() && own.counters.is_empty() && !own.all_users && all.all_users);
        for stat in [all, own] {
            assert_eq!((stat.verbs.write_imm, stat.retransmits, stat.srq_free, stat.fds), (7, 2, 7, 3));
        }
    }

    #[test]
    fn users_see_the_lanes_that_they_use_or_had_dialed_with_their_own_connections() {
        let view = |n: u8, is_dialed| {
            let row = LaneRow {
                name: format!("10.0.0.{n}/0"),
                peer: ([10, 0, 0, n], 4791).into(),
                state: "up".into(),
                incarnation: 1,
                resets: 0,
                qpn: None,
                peer_qpn: None,
                wire: None,
                wire_reason: None,
                encrypted: None,
                encryption_reason: None,
                cipher: None,
                keys_age_us: None,
                mtu_bytes: 1024,
                connections: 40,
                credits: 0,
                granted: 0,
                tx_bytes: 0,
                rx_bytes: 0,
                dials_failed: 0,
                redial_in_us: 0,
                link_path: None,
                link_path_reason: None,
            };
            (u32::from(n), LaneView { row, is_dialed })
        };
        let page = || Page { rows: vec![view(1, false), view(2, false), view(3, true)], next: Some(4) };
        let seen = |viewer| {
            let own = |uid, peer: IpAddr| if uid == 5 && peer == IpAddr::from([10, 0, 0, 2]) { 7 } else { 0 };
            let page = lanes(page(), viewer, own, |_| None);
            assert_eq!(page.next, Some(4));
            page.rows.into_iter().map(|(place, row)| (place, row.connections)).collect::<Vec<_>>()
        };
        assert_eq!(seen(Viewer::All), [(1, 40), (2, 40), (3, 40)]);
        assert_eq!(seen(Viewer::User(5)), [(2, 7), (3, 0)]);
        assert_eq!(seen(Viewer::User(6)), [(3, 0)]);
    }

    #[test]
    fn applications_have_their_same_host_connections_too() {
        let app = AppRow {
            pid: 1,
            uid: 1,
            name: "x".repeat(64),
            connections: 1,
            tx_bytes: u64::MAX,
            rx_bytes: 0,
            pinned_bytes: 0,
            reads: u64::MAX,
            writes: u64::MAX,
            atomics: u64::MAX,
            kernels: u64::MAX,
            tenant: String::new(),
            session: 0,
        };
        let page = Page { rows: (0..3).map(|n| (n, (engine::AppId(n), app.clone()))).collect(), next: Some(3) };
        let here = |app: engine::AppId| SeenHere {
            session: app.0.into(),
            connections: if app.0 == 1 { 40 } else { 0 },
            bytes: (1, 2),
            tenant: "web".into(),
        };
        let page = apps(page, here);
        let seen: Vec<_> = page.rows.iter().map(|(_, row)| (row.session, row.connections)).collect();
        assert_eq!((seen, page.next), (vec![(0, 1), (1, 41), (2, 1)], Some(3)));
        let bytes = |row: &AppRow| (row.tx_bytes, row.rx_bytes);
        assert!(page.rows.iter().all(|(_, row)| row.tenant == "web" && bytes(row) == (u64::MAX, 2)));
    }
}
