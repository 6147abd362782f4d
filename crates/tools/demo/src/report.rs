//! The demo's result as one JSON object, with the keys of docs/operate/commands.md. What was not reached is null. The module `text`
//! prints it.

use std::net::IpAddr;

use serde_json::{Value, json};

use verbs::Wire;

use super::host::{HostUse, Ports};
use super::measure::{Bulk, Kill, Measured, Small};
use super::ping::MESSAGE_BYTES;

/// Everything that the demo found out. What was not reached stays `None`.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Addresses of the hosts.
    pub(crate) hosts: Vec<IpAddr>,
    /// Their ports.
    pub(crate) ports: Option<Ports>,
    /// Connections asked for.
    pub(crate) connections: u32,
    /// Application processes per transport.
    pub(crate) application_processes: u32,
    /// Distinct files.
    pub(crate) distinct_files: usize,
    /// Over RaaS.
    pub(crate) raas: Measured,
    /// Over kernel TCP.
    pub(crate) tcp: Measured,
    /// Congestion control of the TCP connections.
    pub(crate) tcp_congestion: Option<&'static str>,
    /// The daemons.
    pub(crate) daemons: Option<[HostUse; 2]>,
    /// The whole run.
    pub(crate) total_seconds: f64,
    /// What a person should know.
    pub(crate) notes: Vec<String>,
    /// Everything that went wrong.
    pub(crate) errors: Vec<String>,
    /// Bytes did not verify; among `errors` it says which.
    pub(crate) is_unverified: bool,
}

/// A figure of both transports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Compared {
    /// Key in the JSON.
    pub(crate) key: &'static str,
    pub(crate) raas: f64,
    pub(crate) tcp: f64,
    /// Whether less is better.
    pub(crate) less_is_better: bool,
}

impl Compared {
    /// How much better RaaS is; below 1 it is worse.
    pub(crate) fn advantage(&self) -> f64 {
        let (better, worse) = if self.less_is_better { (self.tcp, self.raas) } else { (self.raas, self.tcp) };
        better / worse.max(1e-12)
    }
}

impl Report {
    /// Whether everything was reached and verified and nothing went wrong.
    pub(crate) fn is_good(&self) -> bool {
        let complete = |m: &Measured| {
            m.one_host.is_some() && m.opened.is_some() && m.two_hosts.is_some() && m.bulk.is_some() && m.kill.is_some()
        };
        self.errors.is_empty()
            && !self.is_unverified
            && complete(&self.raas)
            && complete(&self.tcp)
            && self.raas.reset.is_some()
    }

    /// What carried the lane between the hosts, as both daemons say.
    pub(crate) fn wire(&self) -> Option<Wire> {
        let [a, b] = self.daemons?.map(|host| host.wire);
        a.filter(|_| a == b)
    }

    /// Whether any part has a figure.
    pub(crate) fn has_figures(&self) -> bool {
        self.raas.one_host.is_some() || self.raas.opened.is_some() || self.tcp.one_host.is_some()
    }

    /// Takes over what is wrong with what was measured.
    pub(crate) fn judge(&mut self) {
        for measured in [&mut self.raas, &mut self.tcp] {
            self.is_unverified |= !measured.findings.is_empty();
            self.errors.append(&mut measured.findings);
        }
        let mut seen = std::collections::BTreeSet::new();
        self.errors.retain(|error| seen.insert(error.clone()));
    }

    /// The figures that both transports have.
    pub(crate) fn compared(&self) -> Vec<Compared> {
        let mut all = Vec::new();
        let mut push = |key, raas: Option<f64>, tcp: Option<f64>, less_is_better| {
            if let (Some(raas), Some(tcp)) = (raas, tcp) {
                all.push(Compared { key, raas, tcp, less_is_better });
            }
        };
        let sides = [&self.raas, &self.tcp];
        let mut figure = |key, of: &dyn Fn(&Measured) -> Option<f64>, less_is_better| {
            push(key, of(sides[0]), of(sides[1]), less_is_better);
        };
        figure("open_seconds", &|m| Some(m.opened.as_ref()?.seconds), true);
        figure("app_descriptors_max", &|m| Some(m.opened.as_ref()?.descriptors_max? as f64), true);
        figure("p50_us", &|m| Some(m.two_hosts.as_ref()?.latency_us(0.5)), true);
        figure("p99_us", &|m| Some(m.two_hosts.as_ref()?.latency_us(0.99)), true);
        figure("msgs_per_s", &|m| Some(m.two_hosts.as_ref()?.msgs_per_s()), false);
        figure("one_host_p50_us", &|m| Some(m.one_host.as_ref()?.latency_us(0.5)), true);
        figure("one_host_p99_us", &|m| Some(m.one_host.as_ref()?.latency_us(0.99)), true);
        figure("one_host_msgs_per_s", &|m| Some(m.one_host.as_ref()?.msgs_per_s()), false);
        figure("kill_told_ms", &|m| m.kill.as_ref()?.told_ms, true);
        figure("gbit_per_s", &|m| Some(m.bulk.as_ref()?.gbit_per_s()), false);
        all
    }

    /// The object of `--json`.
    pub(crate) fn to_json(&self) -> Value {
        let per_host =
            |get: fn(&HostUse) -> Value| self.daemons.as_ref().map(|d| d.iter().map(get).collect::<Vec<_>>());
        let (raas, tcp) = (&self.raas, &self.tcp);
        let bulk = raas.bulk.as_ref();
        let mut all = json!({
            "schema": "raas.demo/1",
            "verified": self.is_good(),
            "connections": self.connections,
            "application_processes": self.application_processes,
            "files": bulk.map_or(0, |b| b.verified.files),
            "distinct_files": self.distinct_files,
            "bytes": bulk.map_or(0, |b| b.verified.bytes),
            "message_bytes": MESSAGE_BYTES,
            "tcp_congestion": self.tcp_congestion,
            "tcp_bytes": tcp.bulk.as_ref().map(|b| b.verified.bytes),
            "hosts": self.hosts,
            "listen_port": self.ports.map(|p| p.nic),
            "peer_port": self.ports.map(|p| p.peer),
            "wire": self.wire().map(Wire::name),
            "rc_qps_per_host": per_host(|h| json!(h.rc_qps)),
            "cqs_per_host": per_host(|h| json!(h.cqs)),
            "srqs_per_host": per_host(|h| json!(h.srqs)),
            "daemon_rss_bytes": per_host(|h| json!(h.rss_bytes)),
            "daemon_rss_shared_bytes": per_host(|h| json!(h.rss_shared_bytes)),
            "daemon_rss_idle_bytes": per_host(|h| json!(h.rss_idle_bytes)),
            "daemon_cpu_seconds": per_host(|h| json!(h.cpu_seconds)),
            "retransmits_per_host": per_host(|h| json!(h.retransmits)),
            "probes_per_host": per_host(|h| json!(h.probes)),
            "duplicates_per_host": per_host(|h| json!(h.duplicates)),
            "socket_overflows_per_host": per_host(|h| json!(h.socket_overflows)),
            "lane_reset": raas.reset.as_ref().map(|r| json!({
                "connections": r.connections, "connections_lost": r.lost, "bytes": r.bytes,
                "resets_per_host": r.resets, "pause_ms": r.pause_ms, "pause_without_ms": r.pause_without_ms,
            })),
            "kill": raas.kill.as_ref().map(kill_json),
            "tcp_kill": tcp.kill.as_ref().map(kill_json),
            "tcp_wins": self.compared().iter().filter(|c| c.advantage() < 1.0).map(|c| c.key).collect::<Vec<_>>(),
            "total_seconds": self.total_seconds,
            "notes": self.notes,
            "errors": self.errors,
        });
        for (prefix, measured) in [("", raas), ("tcp_", tcp)] {
            for (key, value) in figures(measured) {
                all[format!("{prefix}{key}")] = value;
            }
        }
        all
    }
}

/// The figures that both transports have, by their keys without prefix.
fn figures(m: &Measured) -> Vec<(&'static str, Value)> {
    let bulk = |of: fn(&Bulk) -> f64| json!(m.bulk.as_ref().map(of));
    let small = |side: &Option<Small>, of: fn(&Small) -> Value| json!(side.as_ref().map(of));
    vec![
        ("seconds", bulk(|b| b.took.as_secs_f64())),
        ("gbit_per_s", bulk(Bulk::gbit_per_s)),
        ("app_cpu_seconds", bulk(|b| b.app_cpu_seconds)),
        ("open_seconds", json!(m.opened.as_ref().map(|o| o.seconds))),
        ("app_descriptors_max", json!(m.opened.as_ref().map(|o| o.descriptors_max))),
        ("p50_us", small(&m.two_hosts, |s| json!(s.latency_us(0.5)))),
        ("p99_us", small(&m.two_hosts, |s| json!(s.latency_us(0.99)))),
        ("msgs_per_s", small(&m.two_hosts, |s| json!(s.msgs_per_s()))),
        ("messages", small(&m.two_hosts, |s| json!(s.messages))),
        ("one_host_p50_us", small(&m.one_host, |s| json!(s.latency_us(0.5)))),
        ("one_host_p99_us", small(&m.one_host, |s| json!(s.latency_us(0.99)))),
        ("one_host_msgs_per_s", small(&m.one_host, |s| json!(s.msgs_per_s()))),
        ("one_host_messages", small(&m.one_host, |s| json!(s.messages))),
    ]
}

fn kill_json(kill: &Kill) -> Value {
    json!({
        "connections": kill.connections, "connections_of_killed": kill.of_killed, "connections_lost": kill.lost,
        "bytes": kill.bytes, "told_ms": kill.told_ms,
    })
}
