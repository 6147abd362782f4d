//! The demo's result: one JSON object with the keys that bind, or a table beside kernel TCP.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::measure::Measured;
use crate::table::{self, Align, Table};

/// What one daemon used, as it says itself, and what the kernel says of its process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct HostUse {
    /// RC queue pairs while all connections were open.
    pub(crate) rc_qps: u32,
    /// Completion queues.
    pub(crate) cqs: u32,
    /// Shared receive queues.
    pub(crate) srqs: u32,
    /// Connections while all were open.
    pub(crate) connections: usize,
    /// Packets sent again over the whole run.
    pub(crate) retransmits: u64,
    /// Largest resident memory seen during the transfer.
    pub(crate) rss_bytes: u64,
    /// The part of it that is shared memory (rings).
    pub(crate) rss_shared_bytes: u64,
    /// Resident memory after all applications had ended.
    pub(crate) rss_idle_bytes: u64,
    /// Processor seconds during the transfer.
    pub(crate) cpu_seconds: f64,
}

/// Everything that the demo found out. What was not reached stays `None`.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Addresses of the hosts.
    pub(crate) hosts: Vec<IpAddr>,
    /// Connections asked for.
    pub(crate) connections: u32,
    /// Application processes per transport.
    pub(crate) application_processes: u32,
    /// Distinct files.
    pub(crate) distinct_files: usize,
    /// Over RaaS.
    pub(crate) raas: Option<Measured>,
    /// Over kernel TCP.
    pub(crate) tcp: Option<Measured>,
    /// Congestion control of the TCP connections.
    pub(crate) tcp_congestion: Option<&'static str>,
    /// The daemons.
    pub(crate) daemons: Option<[HostUse; 2]>,
    /// What a person should know.
    pub(crate) notes: Vec<String>,
    /// Everything that went wrong.
    pub(crate) errors: Vec<String>,
    /// Bytes did not verify; among `errors` it says which.
    pub(crate) is_unverified: bool,
}

impl Report {
    /// Whether every byte was verified and nothing else went wrong.
    pub(crate) fn is_good(&self) -> bool {
        self.errors.is_empty() && !self.is_unverified && self.raas.is_some() && self.tcp.is_some()
    }

    /// The object of `--json`.
    pub(crate) fn to_json(&self) -> Value {
        let raas = self.raas.as_ref();
        let tcp = self.tcp.as_ref();
        let per_host =
            |get: fn(&HostUse) -> Value| self.daemons.as_ref().map(|d| d.iter().map(get).collect::<Vec<_>>());
        json!({
            "schema": "raas.demo/1",
            "verified": self.is_good(),
            "connections": self.connections,
            "application_processes": self.application_processes,
            "files": raas.map_or(0, |m| m.verified.files),
            "distinct_files": self.distinct_files,
            "bytes": raas.map_or(0, |m| m.verified.bytes),
            "seconds": raas.map(Measured::seconds),
            "gbit_per_s": raas.map(Measured::gbit_per_s),
            "p50_us": raas.map(|m| m.latency_us(0.5)),
            "p99_us": raas.map(|m| m.latency_us(0.99)),
            "open_seconds": raas.map(|m| m.open_seconds),
            "app_cpu_seconds": raas.map(|m| m.app_cpu_seconds),
            "tcp_bytes": tcp.map(|m| m.verified.bytes),
            "tcp_seconds": tcp.map(Measured::seconds),
            "tcp_gbit_per_s": tcp.map(Measured::gbit_per_s),
            "tcp_p50_us": tcp.map(|m| m.latency_us(0.5)),
            "tcp_p99_us": tcp.map(|m| m.latency_us(0.99)),
            "tcp_open_seconds": tcp.map(|m| m.open_seconds),
            "tcp_app_cpu_seconds": tcp.map(|m| m.app_cpu_seconds),
            "tcp_congestion": self.tcp_congestion,
            "hosts": self.hosts,
            "rc_qps_per_host": per_host(|h| json!(h.rc_qps)),
            "cqs_per_host": per_host(|h| json!(h.cqs)),
            "srqs_per_host": per_host(|h| json!(h.srqs)),
            "daemon_rss_bytes": per_host(|h| json!(h.rss_bytes)),
            "daemon_rss_shared_bytes": per_host(|h| json!(h.rss_shared_bytes)),
            "daemon_rss_idle_bytes": per_host(|h| json!(h.rss_idle_bytes)),
            "daemon_cpu_seconds": per_host(|h| json!(h.cpu_seconds)),
            "retransmits_per_host": per_host(|h| json!(h.retransmits)),
            "notes": self.notes,
            "errors": self.errors,
        })
    }

    /// The table for a person.
    pub(crate) fn to_text(&self) -> String {
        let mut out = String::new();
        out += &self.transfer_table();
        if let Some(daemons) = &self.daemons {
            out.push('\n');
            out += &self.daemon_table(daemons);
        }
        for note in &self.notes {
            out += &format!("note: {note}\n");
        }
        for error in &self.errors {
            out += &format!("ERROR: {error}\n");
        }
        out += &self.verdict();
        out
    }

    fn transfer_table(&self) -> String {
        let mut t = Table::new(&[("", Align::Left), ("", Align::Right), ("", Align::Right)]);
        let tcp = self.tcp_congestion.map_or("kernel TCP".to_owned(), |name| format!("kernel TCP ({name})"));
        t.row(vec![String::new(), "RaaS".to_owned(), tcp]);
        let sides = [self.raas.as_ref(), self.tcp.as_ref()];
        let mut row = |name: &str, cell: &dyn Fn(&Measured) -> String| {
            let cells = sides.iter().map(|side| side.map_or("-".to_owned(), cell));
            t.row(std::iter::once(name.to_owned()).chain(cells).collect());
        };
        row("connections, all open at once", &|m| table::grouped(m.connections as u64));
        row("files verified", &|m| table::grouped(m.verified.files));
        row("bytes verified", &|m| table::bytes(m.verified.bytes));
        row("time", &|m| format!("{:.2} s", m.seconds()));
        row("throughput", &|m| format!("{:.2} Gbit/s", m.gbit_per_s()));
        row("latency p50 (half round trip)", &|m| format!("{:.1} us", m.latency_us(0.5)));
        row("latency p99", &|m| format!("{:.1} us", m.latency_us(0.99)));
        row("time to open them", &|m| format!("{:.2} s", m.open_seconds));
        row("processor time of applications", &|m| format!("{:.2} s", m.app_cpu_seconds));
        t.render()
    }

    fn daemon_table(&self, daemons: &[HostUse; 2]) -> String {
        let name = |i: usize| self.hosts.get(i).map_or(String::new(), |ip| format!("daemon {ip}"));
        let mut t = Table::new(&[("", Align::Left), ("", Align::Right), ("", Align::Right)]);
        t.row(vec![String::new(), name(0), name(1)]);
        let mut row = |what: &str, cell: &dyn Fn(&HostUse) -> String| {
            t.row(std::iter::once(what.to_owned()).chain(daemons.iter().map(cell)).collect());
        };
        row("RC queue pairs", &|h| h.rc_qps.to_string());
        row("completion queues", &|h| h.cqs.to_string());
        row("shared receive queues", &|h| h.srqs.to_string());
        row("connections", &|h| table::grouped(h.connections as u64));
        row("resident memory under load", &|h| table::bytes(h.rss_bytes));
        row("  of it rings, shared with applications", &|h| table::bytes(h.rss_shared_bytes));
        row("resident memory afterwards", &|h| table::bytes(h.rss_idle_bytes));
        row("processor time", &|h| format!("{:.2} s", h.cpu_seconds));
        row("packets sent again", &|h| table::grouped(h.retransmits));
        t.render()
    }

    fn verdict(&self) -> String {
        if self.is_good() {
            let m = self.raas.as_ref().map_or(0, |m| m.verified.bytes);
            let qps = if self.daemons.is_some_and(|d| d.iter().all(|h| h.rc_qps == 1)) {
                "one RC queue pair per host"
            } else {
                "several RC queue pairs"
            };
            format!(
                "\nVERIFIED: {} connections of {} processes over {qps}, {} in files, every SHA-256 as it must be\n",
                table::grouped(u64::from(self.connections)),
                self.application_processes,
                table::bytes(m)
            )
        } else if self.is_unverified {
            "\nNOT VERIFIED: bytes arrived that were not sent, or did not arrive\n".to_owned()
        } else {
            "\nFAILED\n".to_owned()
        }
    }
}
