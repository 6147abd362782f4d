//! A daemon's state as text for Prometheus (OpenMetrics 1.0).
//!
//! Owns the names of the series, which docs/operate/metrics.md lists. It must never make a label of what a program or a peer
//! chose (names are hostile, and there is no end of them), and never more series than the limits allow: of lanes the
//! first [`LANES_MAX`], of users the first [`crate::TENANTS_MAX`], all others are one sum each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use control::{LaneRow, StageRow, Stat};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::Tenants;
use crate::tenants::Tenant;

/// What the text is, for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Lanes with series of their own.
pub const LANES_MAX: usize = 256;
/// Bounds of the histograms: powers of two of nanoseconds, from 1 us to 17 s.
const BOUND_POWERS: std::ops::RangeInclusive<u32> = 10..=34;
/// Counters of the daemon that say how much there is now, and not how often something happened.
const LEVELS: &[&str] = &[
    "calls_filtered",
    "control_links",
    "datagram_sockets",
    "direct_streams",
    "landlock_abi",
    "operation_queues",
    "operations_in_flight",
    "pairs",
    "region_handles",
    "regions_local",
    "regions_registered",
    "srq_bytes",
    "srq_regions",
    "tcp_links",
    "udp_port_open",
];

/// What is kept between scrapes, so that sums never fall.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exposition {
    tenants: Tenants,
    lanes: Lanes,
}

/// Lanes with series of their own, and the sum of the others.
#[derive(Debug, Clone, Default)]
struct Lanes {
    named: BTreeSet<String>,
    seen: BTreeMap<String, (u64, u64)>,
    other: (u64, u64),
}

impl Lanes {
    fn update(&mut self, rows: &[LaneRow]) {
        let before = std::mem::take(&mut self.seen);
        for row in rows {
            if self.named.contains(&row.name) {
                continue;
            }
            if self.named.len() < LANES_MAX {
                self.named.insert(row.name.clone());
                continue;
            }
            let was = before.get(&row.name).copied().unwrap_or_default();
            self.other.0 += row.tx_bytes.saturating_sub(was.0);
            self.other.1 += row.rx_bytes.saturating_sub(was.1);
            self.seen.insert(row.name.clone(), (row.tx_bytes, row.rx_bytes));
        }
    }
}

impl Exposition {
    /// The text for this state.
    pub(crate) fn render(&mut self, stat: &Stat) -> Result<String, fmt::Error> {
        self.tenants.update(stat);
        self.lanes.update(&stat.lanes);
        let mut registry = Registry::with_prefix("raas");
        let tenants = self.tenants.rows().collect();
        registry.register_collector(Box::new(State { stat: stat.clone(), lanes: self.lanes.clone(), tenants }));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

/// One scrape.
#[derive(Debug)]
struct State {
    stat: Stat,
    lanes: Lanes,
    tenants: Vec<(String, Tenant)>,
}

/// Labels of a series.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A family of series: what it is, and its values.
struct Family<'a> {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    rows: Vec<(Labels<'a>, u64)>,
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let s = &self.stat;
        let info: Labels<'_> = vec![("device", &s.device), ("version", env!("CARGO_PKG_VERSION"))];
        encoder.encode_descriptor("build", "The daemon and its device", None, MetricType::Info)?.encode_info(&info)?;
        let families = self.host().into_iter().chain(self.counts()).chain(self.lanes()).chain(self.tenants());
        for family in families.filter(|family| !family.rows.is_empty()) {
            let kind = family.kind;
            let mut metric = encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), kind)?;
            for (labels, value) in &family.rows {
                if labels.is_empty() {
                    one(&mut metric, kind, *value)?;
                } else {
                    one(&mut metric.encode_family(labels)?, kind, *value)?;
                }
            }
        }
        if !s.stages.is_empty() {
            let (help, unit) = ("How long sampled messages spent in each stage", Unit::Seconds);
            let mut metric = encoder.encode_descriptor("stage", help, Some(&unit), MetricType::Histogram)?;
            for stage in &s.stages {
                let labels: Labels<'_> = vec![("stage", &stage.name)];
                let sum = stage.sum_ns as f64 / 1e9;
                metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    sum,
                    stage.count(),
                    &bounded(stage),
                    None,
                )?;
            }
        }
        Ok(())
    }
}

/// The histogram in few buckets, whose bounds are bounds of its own; in seconds.
fn bounded(stage: &StageRow) -> Vec<(f64, u64)> {
    let mut from = 0;
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    for power in BOUND_POWERS.step_by(2) {
        let end = 1_u64 << power;
        let within = stage.buckets.iter().filter(|(bound, _)| from < *bound && *bound <= end);
        buckets.push((end as f64 / 1e9, within.map(|(_, n)| n).sum()));
        from = end;
    }
    buckets.push((f64::MAX, stage.buckets.iter().filter(|(bound, _)| *bound > from).map(|(_, n)| n).sum()));
    buckets
}

fn is_up(lane: &LaneRow) -> bool {
    matches!(lane.state.as_str(), "up" | "resting")
}

fn one(metric: &mut MetricEncoder<'_>, kind: MetricType, value: u64) -> Result<(), fmt::Error> {
    match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        // Exact up to 2^53.
        _ => metric.encode_gauge(&(value as f64)),
    }
}

fn gauge<'a>(name: &'static str, help: &'static str, rows: Vec<(Labels<'a>, u64)>) -> Family<'a> {
    Family { name, help, unit: None, kind: MetricType::Gauge, rows }
}

fn counter<'a>(name: &'static str, help: &'static str, rows: Vec<(Labels<'a>, u64)>) -> Family<'a> {
    Family { name, help, unit: None, kind: MetricType::Counter, rows }
}

impl Family<'_> {
    fn bytes(self) -> Self {
        Self { unit: Some(Unit::Bytes), ..self }
    }
}

impl State {
    fn host(&self) -> Vec<Family<'_>> {
        let s = &self.stat;
        let lone = |value: u64| vec![(Vec::new(), value)];
        let up = gauge("uptime", "Time since the daemon started", lone(s.uptime_seconds));
        let qps = vec![(vec![("type", "rc")], s.rc_qps.into()), (vec![("type", "ud")], s.ud_qps.into())];
        vec![
            Family { unit: Some(Unit::Seconds), ..up },
            gauge("queue_pairs", "Queue pairs", qps),
            gauge("completion_queues", "Completion queues", lone(s.cqs.into())),
            gauge("shared_receive_queues", "Shared receive queues", lone(s.srqs.into())),
            gauge("receives_free", "Free receives in the shared receive queues", lone(s.srq_free)),
            gauge("memory_regions", "Registered memory regions", lone(s.mrs.into())),
            gauge("registered", "Memory registered with the device", lone(s.pinned_bytes)).bytes(),
            gauge("open_descriptors", "Descriptors that the daemon has open", lone(s.fds.into())),
            gauge("programs", "Programs attached", lone(s.apps.len() as u64)),
        ]
    }

    fn counts(&self) -> Vec<Family<'_>> {
        let s = &self.stat;
        let v = s.verbs;
        let verbs = [("send", v.send), ("write", v.write), ("write_imm", v.write_imm), ("read", v.read)];
        let verbs = verbs.into_iter().chain([("atomic", v.atomic)]).map(|(verb, n)| (vec![("verb", verb)], n));
        let again = if s.unknown.iter().any(|name| name == "retransmits") {
            Vec::new()
        } else {
            vec![(Vec::new(), s.retransmits)]
        };
        let drops = s.drops.iter().map(|(reason, n)| (vec![("reason", reason.as_str())], *n));
        let (levels, events): (Vec<_>, Vec<_>) = s
            .counters
            .iter()
            .map(|(name, n)| (vec![("name", name.as_str())], *n))
            .partition(|(labels, _)| LEVELS.contains(&labels[0].1));
        vec![
            counter("work_requests", "Work requests posted by the engines", verbs.collect()),
            counter("retransmits", "Request packets sent again", again),
            counter("drops", "Packets and datagrams dropped, by reason", drops.collect()),
            counter("events", "Other counters of device and engine, by their names in raas stat", events),
            gauge("level", "Counts of what there is now, by their names in raas stat", levels),
        ]
    }

    fn lanes(&self) -> Vec<Family<'_>> {
        let kept = &self.lanes;
        let named: Vec<&LaneRow> = self.stat.lanes.iter().filter(|l| kept.named.contains(&l.name)).collect();
        let of = |value: fn(&LaneRow) -> u64| {
            named.iter().map(|lane| (vec![("lane", lane.name.as_str())], value(lane))).collect::<Vec<_>>()
        };
        let with_other = |value, other: u64| {
            let mut rows = of(value);
            if !kept.seen.is_empty() || kept.other != (0, 0) {
                rows.push((vec![("lane", "other")], other));
            }
            rows
        };
        let mut states: BTreeMap<&str, u64> = BTreeMap::new();
        self.stat.lanes.iter().for_each(|lane| *states.entry(&lane.state).or_default() += 1);
        let states = states.into_iter().map(|(state, n)| (vec![("state", state)], n)).collect();
        vec![
            gauge("lanes", "Lanes to other hosts, by state", states),
            gauge("lane_up", "1: the lane carries data, or would at once", of(|l| is_up(l).into())),
            gauge("lane_connections", "Connections on the lane", of(|l| l.connections.into())),
            gauge(
                "lane_credits",
                "Entries of the peer's shared receive queue that may still be used",
                of(|l| l.credits),
            ),
            gauge("lane_dials_failed", "Dials in a row that came to nothing", of(|l| l.dials_failed.into())),
            counter("lane_resets", "Resets over which the lane's connections went on", of(|l| l.resets)),
            counter("lane_sent", "Bytes sent", with_other(|l| l.tx_bytes, kept.other.0)).bytes(),
            counter("lane_received", "Bytes received", with_other(|l| l.rx_bytes, kept.other.1)).bytes(),
        ]
    }

    fn tenants(&self) -> Vec<Family<'_>> {
        let of = |value: fn(&Tenant) -> u64| {
            self.tenants.iter().map(|(uid, tenant)| (vec![("uid", uid.as_str())], value(tenant))).collect::<Vec<_>>()
        };
        vec![
            gauge("tenant_programs", "Programs of the user", of(|t| t.programs)),
            gauge("tenant_connections", "Connections of the user's programs", of(|t| t.connections)),
            gauge("tenant_registered", "Registered memory of the user's programs", of(|t| t.pinned_bytes)).bytes(),
            counter("tenant_sent", "Bytes that the user's programs sent", of(|t| t.tx_bytes)).bytes(),
            counter("tenant_received", "Bytes that they received, likewise", of(|t| t.rx_bytes)).bytes(),
            counter("tenant_operations", "Operations on regions of other hosts", of(|t| t.operations)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::rates::tests::{app, lane, sample};

    fn value(text: &str, series: &str) -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    #[test]
    fn series_have_the_state_and_the_text_ends() {
        let text = Exposition::default().render(&sample(Instant::now()).stat).unwrap();
        for (series, expected) in [
            ("raas_uptime_seconds", 60.0),
            ("raas_queue_pairs{type=\"rc\"}", 1.0),
            ("raas_registered_bytes", 4096.0),
            ("raas_retransmits_total", 7.0),
            ("raas_drops_total{reason=\"bad_icrc\"}", 2.0),
            ("raas_work_requests_total{verb=\"write_imm\"}", 3.0),
            ("raas_events_total{name=\"connects\"}", 5.0),
            ("raas_level{name=\"control_links\"}", 1.0),
            ("raas_lanes{state=\"up\"}", 1.0),
            ("raas_lane_sent_bytes_total{lane=\"10.0.0.2/0\"}", 100.0),
            ("raas_tenant_sent_bytes_total{uid=\"1000\"}", 50.0),
        ] {
            assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
        }
        assert!(text.contains("raas_build_info{device=\"softnic\""), "{text}");
        assert!(text.ends_with("# EOF\n") && !text.contains("app 1"), "names of programs are no labels: {text}");
    }

    #[test]
    fn stages_are_histograms_that_lose_nothing() {
        let mut stat = sample(Instant::now()).stat;
        let buckets = vec![(896, 2), (1024, 1), (1280, 4), (1 << 35, 3)];
        stat.stages = vec![StageRow { name: "tx-device".into(), sum_ns: 5_000_000_000, buckets }];
        let text = Exposition::default().render(&stat).unwrap();
        let of = |name: &str, le: &str| value(&text, &format!("raas_stage_seconds_{name}{{{le}stage=\"tx-device\"}}"));
        assert_eq!((of("sum", ""), of("count", "")), (Some(5.0), Some(10.0)), "{text}");
        let counts: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with("raas_stage_seconds_bucket"))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!((counts[0], counts[1], counts[12], counts[13]), (3.0, 7.0, 7.0, 10.0), "{text}");
        assert_eq!(counts.len(), 14);
        assert!(text.contains("le=\"+Inf\""), "{text}");
    }

    #[test]
    fn a_count_that_the_device_does_not_have_has_no_series() {
        let mut stat = sample(Instant::now()).stat;
        stat.unknown = vec!["retransmits".into()];
        assert!(!Exposition::default().render(&stat).unwrap().contains("raas_retransmits"));
    }

    #[test]
    fn lanes_and_users_beyond_the_limits_are_sums_that_never_fall() {
        let mut stat = sample(Instant::now()).stat;
        stat.lanes = (0..LANES_MAX + 3).map(|n| lane(&format!("10.0.{}.{}/{n}", n / 250, n % 250), 1000)).collect();
        stat.apps = (0..500).map(|uid| app(u64::from(uid), uid, 1)).collect();
        let mut exposition = Exposition::default();
        let other = "raas_lane_sent_bytes_total{lane=\"other\"}";
        assert_eq!(value(&exposition.render(&stat).unwrap(), other), Some(3000.0));
        stat.lanes.pop();
        let text = exposition.render(&stat).unwrap();
        assert_eq!(value(&text, other), Some(3000.0), "a lane that is gone has sent what it sent");
        let series = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(series("raas_lane_sent_bytes_total{"), LANES_MAX + 1);
        assert_eq!(series("raas_tenant_sent_bytes_total{"), crate::TENANTS_MAX + 1);
        assert!(series("raas_") < 4000, "{}", series("raas_"));
    }
}
