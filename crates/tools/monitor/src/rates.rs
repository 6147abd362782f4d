//! What happened between two looks at a daemon, by second. A count that fell belongs to something that began anew: its
//! difference is 0, never negative. Looks at two different daemons have no difference at all.

use std::collections::BTreeMap;

use control::{StageRow, Stat};

use crate::Sample;

/// Bytes by second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flow {
    /// Sent.
    pub tx_bytes_per_s: f64,
    /// Received.
    pub rx_bytes_per_s: f64,
}

impl Flow {
    fn between(before: (u64, u64), now: (u64, u64), seconds: f64) -> Self {
        Self {
            tx_bytes_per_s: now.0.saturating_sub(before.0) as f64 / seconds,
            rx_bytes_per_s: now.1.saturating_sub(before.1) as f64 / seconds,
        }
    }

    /// Both directions.
    pub fn bytes_per_s(self) -> f64 {
        self.tx_bytes_per_s + self.rx_bytes_per_s
    }
}

/// Differences of two samples.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    /// Time between the two.
    pub seconds: f64,
    /// Of all lanes.
    pub lanes_total: Flow,
    /// By name of the lane.
    pub lanes: BTreeMap<String, Flow>,
    /// By session of the application.
    pub apps: BTreeMap<u64, Flow>,
    /// By number of the connection.
    pub connections: BTreeMap<u64, Flow>,
    /// Work requests by second.
    pub work_requests_per_s: f64,
    /// Packets dropped by second, by reason; those of which none was.
    pub drops_per_s: Vec<(String, f64)>,
    /// Packets sent again.
    pub retransmits: u64,
    /// How long messages spent in each stage, of those that ended between the two.
    pub stages: Vec<StageRow>,
}

impl Rates {
    /// None if the daemon was restarted in between.
    pub fn between(before: &Sample, now: &Sample) -> Option<Self> {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        if seconds <= 0.0 || now.stat.uptime_seconds < before.stat.uptime_seconds {
            return None;
        }
        let lanes_before: BTreeMap<&str, _> = before.stat.lanes.iter().map(|l| (&*l.name, l)).collect();
        let flow = |was: Option<(u64, u64)>, is| Flow::between(was.unwrap_or_default(), is, seconds);
        let lanes: BTreeMap<String, Flow> = now
            .stat
            .lanes
            .iter()
            .map(|l| {
                let was = lanes_before.get(&*l.name).map(|b| (b.tx_bytes, b.rx_bytes));
                (l.name.clone(), flow(was, (l.tx_bytes, l.rx_bytes)))
            })
            .collect();
        let apps_before: BTreeMap<u64, _> =
            before.stat.apps.iter().map(|a| (a.session, (a.tx_bytes, a.rx_bytes))).collect();
        let apps = now.stat.apps.iter();
        let apps =
            apps.map(|a| (a.session, flow(apps_before.get(&a.session).copied(), (a.tx_bytes, a.rx_bytes)))).collect();
        let ends_before: BTreeMap<u64, _> =
            before.connections.iter().map(|c| (c.id, (c.tx_bytes, c.rx_bytes))).collect();
        let ends = now.connections.iter();
        let connections =
            ends.map(|c| (c.id, flow(ends_before.get(&c.id).copied(), (c.tx_bytes, c.rx_bytes)))).collect();
        let total = lanes.values().fold(Flow::default(), |sum, lane| Flow {
            tx_bytes_per_s: sum.tx_bytes_per_s + lane.tx_bytes_per_s,
            rx_bytes_per_s: sum.rx_bytes_per_s + lane.rx_bytes_per_s,
        });
        Some(Self {
            seconds,
            lanes_total: total,
            lanes,
            apps,
            connections,
            work_requests_per_s: work_requests(&now.stat).saturating_sub(work_requests(&before.stat)) as f64 / seconds,
            drops_per_s: drops(&before.stat, &now.stat, seconds),
            retransmits: now.stat.retransmits.saturating_sub(before.stat.retransmits),
            stages: stages(&before.stat, &now.stat),
        })
    }
}

fn work_requests(stat: &Stat) -> u64 {
    let v = stat.verbs;
    v.send + v.write + v.write_imm + v.read + v.atomic
}

fn stages(before: &Stat, now: &Stat) -> Vec<StageRow> {
    let since = |row: &StageRow| match before.stages.iter().find(|was| was.name == row.name) {
        Some(was) => row.since(was),
        None => row.clone(),
    };
    now.stages.iter().map(since).filter(|row| row.count() > 0).collect()
}

fn drops(before: &Stat, now: &Stat, seconds: f64) -> Vec<(String, f64)> {
    let was = |reason: &str| before.drops.iter().find(|(r, _)| r == reason).map_or(0, |(_, n)| *n);
    let since = now.drops.iter().map(|(reason, n)| (reason.clone(), n.saturating_sub(was(reason)) as f64 / seconds));
    since.filter(|(_, n)| *n > 0.0).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, Instant};

    use control::{AppRow, ConnectionRow, ConnectionState, LaneRow, PathKind, Reason, VerbCounts};

    use super::*;

    pub(crate) fn lane(name: &str, tx_bytes: u64) -> LaneRow {
        LaneRow {
            name: name.into(),
            peer: "10.0.0.2:4790".parse().unwrap(),
            state: "up".into(),
            incarnation: 0,
            resets: 0,
            qpn: Some(17),
            peer_qpn: Some(18),
            wire: Some("roce".into()),
            wire_reason: None,
            encrypted: None,
            encryption_reason: None,
            cipher: None,
            keys_age_us: None,
            mtu_bytes: 4096,
            connections: 1,
            credits: 100,
            granted: 200,
            tx_bytes,
            rx_bytes: 0,
            dials_failed: 0,
            redial_in_us: 0,
            link_path: None,
            link_path_reason: None,
        }
    }

    pub(crate) fn app(session: u64, uid: u32, tx_bytes: u64) -> AppRow {
        AppRow {
            pid: 1000 + session as u32,
            uid,
            name: format!("app {session}"),
            connections: 1,
            tx_bytes,
            rx_bytes: 0,
            pinned_bytes: 0,
            reads: 0,
            writes: 0,
            atomics: 0,
            kernels: 0,
            tenant: String::new(),
            session,
        }
    }

    pub(crate) fn connection(id: u64, rx_bytes: u64) -> ConnectionRow {
        ConnectionRow {
            id,
            local: "10.0.0.1:5000".parse().unwrap(),
            peer: "10.0.0.2:80".parse().unwrap(),
            state: ConnectionState::Established,
            lane: Some("10.0.0.2/0".into()),
            route_id: Some(3),
            path: PathKind::Lane,
            wire: Some("roce".into()),
            encrypted: None,
            cipher: None,
            reason: Reason::OtherHost,
            verb: None,
            verb_asked: None,
            verb_reason: None,
            tx_bytes: 0,
            rx_bytes,
            direct_tx_bytes: 0,
            direct_rx_bytes: 0,
            tx_queued_bytes: 0,
            rx_queued_bytes: 0,
            app_pid: 1001,
        }
    }

    pub(crate) fn sample(at: Instant) -> Sample {
        let stat = Stat {
            device: "softnic".into(),
            device_reason: "no hardware".into(),
            lanes: vec![lane("10.0.0.2/0", 100)],
            rc_qps: 1,
            ud_qps: 1,
            cqs: 1,
            srqs: 1,
            srq_free: 1000,
            mrs: 3,
            pinned_bytes: 4096,
            fds: 20,
            drops: vec![("bad_icrc".into(), 2), ("truncated".into(), 0)],
            verbs: VerbCounts { send: 1, write: 2, write_imm: 3, read: 0, atomic: 0 },
            retransmits: 7,
            counters: vec![("connects".into(), 5), ("control_links".into(), 1)],
            apps: vec![app(1, 1000, 50)],
            stages: Vec::new(),
            uptime_seconds: 60,
            all_users: true,
            unknown: vec!["rnr_naks".into()],
        };
        Sample { at, took: Duration::ZERO, stat, connections: vec![connection(7, 10)] }
    }

    #[test]
    fn differences_are_by_second_and_what_is_new_began_at_nothing() {
        let begin = Instant::now();
        let before = sample(begin);
        let mut now = sample(begin + Duration::from_secs(2));
        now.stat.lanes[0].tx_bytes += 4000;
        now.stat.lanes.push(lane("10.0.0.3/1", 600));
        now.stat.apps.push(app(2, 0, 10));
        now.connections[0].rx_bytes += 8;
        now.stat.verbs.write_imm += 20;
        now.stat.drops[0].1 += 4;
        let rates = Rates::between(&before, &now).unwrap();
        assert_eq!(rates.lanes["10.0.0.2/0"].tx_bytes_per_s, 2000.0);
        assert_eq!(rates.lanes_total.tx_bytes_per_s, 2300.0);
        assert_eq!((rates.apps[&1].bytes_per_s(), rates.apps[&2].bytes_per_s()), (0.0, 5.0));
        assert_eq!(rates.connections[&7].rx_bytes_per_s, 4.0);
        assert_eq!((rates.work_requests_per_s, rates.retransmits), (10.0, 0));
        assert_eq!(rates.drops_per_s, [("bad_icrc".to_owned(), 2.0)]);
    }

    #[test]
    fn histograms_are_those_of_the_time_between() {
        let begin = Instant::now();
        let stage = |name: &str, buckets: &[(u64, u64)]| StageRow {
            name: name.into(),
            sum_ns: buckets.iter().map(|(end, n)| end * n).sum(),
            buckets: buckets.to_vec(),
        };
        let mut before = sample(begin);
        before.stat.stages = vec![stage("tx-engine", &[(100, 5), (400, 1)]), stage("tx-device", &[(100, 1)])];
        let mut now = sample(begin + Duration::from_secs(1));
        now.stat.stages = vec![
            stage("tx-engine", &[(100, 5), (200, 3), (400, 2)]),
            stage("tx-device", &[(100, 1)]),
            stage("new", &[(7, 1)]),
        ];
        let stages = Rates::between(&before, &now).unwrap().stages;
        assert_eq!(stages, [stage("tx-engine", &[(200, 3), (400, 1)]), stage("new", &[(7, 1)])]);
        assert_eq!((stages[0].quantile_ns(0.5), stages[0].quantile_ns(0.99), stages[0].count()), (200, 400, 4));
    }

    #[test]
    fn a_count_that_fell_is_no_negative_rate_and_another_daemon_is_no_difference() {
        let begin = Instant::now();
        let before = sample(begin);
        let mut now = sample(begin + Duration::from_secs(1));
        now.stat.lanes[0].tx_bytes = 0;
        now.stat.retransmits = 0;
        let rates = Rates::between(&before, &now).unwrap();
        assert_eq!((rates.lanes_total, rates.retransmits), (Flow::default(), 0));
        now.stat.uptime_seconds = 1;
        assert!(Rates::between(&before, &now).is_none());
        assert!(Rates::between(&before, &before.clone()).is_none(), "no time passed");
    }
}
