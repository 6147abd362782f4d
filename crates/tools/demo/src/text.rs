//! The demo's result for a person: part by part, RaaS beside kernel TCP, and which is better. It fits 60 columns.

use serde_json::Value;

use super::report::Report;
use terminal::table;

/// Widths of a line: what, RaaS, TCP, which is better.
const WHAT: usize = 25;
const VALUE: usize = 11;
/// Less than this apart counts as equal.
const EQUAL: f64 = 1.05;

/// The report. It is empty if there are no figures; the errors are printed elsewhere.
pub(super) fn of(report: &Report) -> String {
    if report.get("one_host_p50_us").is_null() {
        return String::new();
    }
    let mut text = Text { report, out: String::new() };
    let tcp = report.get("tcp_congestion").as_str().map_or("TCP".to_owned(), |name| format!("TCP {name}"));
    text.line("", ["RaaS", &tcp, "better"]);
    text.part(
        "messages of 64 bytes, one host",
        &[
            ("half round trip", "one_host_p50_us"),
            ("  99 of 100 within", "one_host_p99_us"),
            ("one way, each compared", "one_host_msgs_per_s"),
        ],
    );
    let path = report.get("run_path").as_str().map_or(String::new(), |path| format!(" (path {path})"));
    text.part(
        &format!("a TCP program as it is, under `raas run`{path}"),
        &[("half round trip", "run_p50_us"), ("  99 of 100 within", "run_p99_us")],
    );
    text.part(
        &format!("two hosts, {}", text.connections()),
        &[
            ("opened in", "open_seconds"),
            ("descriptors a process", "app_descriptors_max"),
            ("half round trip", "p50_us"),
            ("  99 of 100 within", "p99_us"),
            ("one way, each compared", "msgs_per_s"),
        ],
    );
    text.breaks();
    text.part(
        "real files both ways over all of them, SHA-256",
        &[("Gbit/s, hashing too", "gbit_per_s"), ("applications' processor", "app_cpu_seconds")],
    );
    text.daemons();
    text.end();
    text.out
}

struct Text<'a> {
    report: &'a Report,
    out: String,
}

impl Text<'_> {
    fn line(&mut self, what: &str, [raas, tcp, better]: [&str; 3]) {
        let line = format!("{what:<WHAT$}{raas:>VALUE$}{tcp:>VALUE$}{better:>VALUE$}");
        self.out += line.trim_end();
        self.out.push('\n');
    }

    /// A line for each figure that either side has, under a title if there is any.
    fn part(&mut self, title: &str, rows: &[(&str, &str)]) {
        if rows.iter().any(|(_, key)| self.report.both(key) != [None; 2]) {
            self.out += &table::paragraph(title);
        }
        for (what, key) in rows {
            self.row(what, key);
        }
    }

    fn row(&mut self, what: &str, key: &str) {
        let cells = self.report.both(key).map(|value| value.map_or(String::new(), |value| cell(key, value)));
        if cells != [String::new(), String::new()] {
            let better = self.report.advantage(key).map_or(String::new(), better);
            self.line(&format!("  {what}"), [&cells[0], &cells[1], &better]);
        }
    }

    fn count(&self, key: &str) -> String {
        table::grouped(self.report.get(key).as_u64().unwrap_or(0))
    }

    fn connections(&self) -> String {
        let wire = match self.report.get("wire").as_str() {
            Some("roce") => " (RoCEv2)",
            Some("iwarp") => " (iWARP)",
            _ => "",
        };
        let pairs: Vec<u64> = list(self.report.get("rc_qps_per_host"));
        let pairs = match pairs[..] {
            [] => String::new(),
            [1, 1] => format!(" on one queue pair{wire}"),
            _ => format!(" on {} queue pairs{wire}", pairs.iter().max().unwrap_or(&0)),
        };
        format!("{} connections{pairs}", self.count("connections"))
    }

    /// What was broken under bytes that flow on all connections.
    fn breaks(&mut self) {
        let [reset, kill, daemon] = ["lane_reset", "kill", "daemon_kill"].map(|key| self.report.get(key).clone());
        if [&reset, &kill].into_iter().all(Value::is_null) {
            return;
        }
        self.out += &table::paragraph("broken while bytes flow both ways on all of them");
        let lost = |part: &Value| {
            format!("{} of {} lost", part["connections_lost"], table::grouped(whole(&part["connections"])))
        };
        let mut went_on = |what: &str, part: &Value| {
            if let Some(pause) = part["pause_ms"].as_f64() {
                let pause = format!("pause {}", milliseconds(pause));
                self.out += &table::paragraph(&format!("  {what:<WHAT$}{}, {pause}", lost(part)));
            }
        };
        went_on("the queue pair", &reset);
        went_on("a daemon, killed", &daemon);
        if !kill.is_null() {
            let others = whole(&kill["connections"]) - whole(&kill["connections_of_killed"]);
            let (its, others) = (whole(&kill["connections_lost"]), table::grouped(others));
            let what = "a program, killed";
            self.out += &table::paragraph(&format!("  {what:<WHAT$}its {its} ended, {others} went on"));
            self.row("  its peers knew after", "kill_told_ms");
        }
    }

    fn daemons(&mut self) {
        let both = |key: &str| list(self.report.get(key));
        let bytes = |key: &str| both(key).into_iter().map(table::bytes).collect::<Vec<_>>().join(" and ");
        let rss = bytes("daemon_rss_bytes");
        if rss.is_empty() {
            return;
        }
        let mut said =
            format!("daemons: {rss} at most, shared memory once, of it rings {}", bytes("daemon_rss_shared_bytes"));
        let idle = bytes("daemon_rss_idle_bytes");
        if !idle.is_empty() {
            said += &format!("; afterwards {idle}");
        }
        let cpu: f64 =
            self.report.get("daemon_cpu_seconds").as_array().into_iter().flatten().filter_map(Value::as_f64).sum();
        said += &format!("; {cpu:.2} s of processor for the files");
        for (key, what) in
            [("retransmits_per_host", "packets sent again"), ("socket_overflows_per_host", "receive buffer overflowed")]
        {
            let counts = both(key);
            if counts.iter().any(|count| *count > 0) {
                said += &format!("; {what} {counts:?}");
            }
        }
        self.out += &table::paragraph(&said);
    }

    fn end(&mut self) {
        let report = self.report;
        for note in &report.notes {
            self.out += &table::paragraph(&format!("note: {note}"));
        }
        for error in &report.errors {
            self.out += &table::paragraph(&format!("ERROR: {error}"));
        }
        let lost: Vec<&str> = report.tcp_wins(EQUAL).into_iter().map(|(_, spoken)| spoken).collect();
        if report.is_good() && !lost.is_empty() {
            self.out += &table::paragraph(&format!("TCP is better here at: {}", lost.join(", ")));
        }
        let verdict = if report.is_good() {
            format!(
                "VERIFIED: {} files, {}, {} connections of {} processes, every byte of every part as it was sent; {:.1} s in all",
                self.count("files"),
                table::bytes(whole(report.get("bytes"))),
                self.count("connections"),
                self.count("application_processes"),
                report.get("total_seconds").as_f64().unwrap_or(0.0)
            )
        } else if report.is_unverified {
            "NOT VERIFIED: bytes arrived that were not sent, did not arrive, or a connection failed that must not"
                .into()
        } else {
            "FAILED".into()
        };
        self.out += &table::paragraph(&verdict);
    }
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn list(value: &Value) -> Vec<u64> {
    value.as_array().map_or(Vec::new(), |values| values.iter().map(whole).collect())
}

/// A figure with the unit that is in its key.
fn cell(key: &str, value: f64) -> String {
    match key.rsplit_once('_') {
        Some((_, "us")) => format!("{value:.2} us"),
        Some((_, "ms")) => milliseconds(value),
        Some((_, "seconds")) => format!("{value:.2} s"),
        _ if key.ends_with("gbit_per_s") => format!("{value:.2}"),
        _ if key.ends_with("msgs_per_s") && value >= 1e6 => format!("{:.1} M/s", value / 1e6),
        _ if key.ends_with("msgs_per_s") => format!("{:.0} k/s", value / 1e3),
        _ => format!("{value}"),
    }
}

fn better(advantage: f64) -> String {
    let (who, times) = if advantage >= 1.0 { ("RaaS", advantage) } else { ("TCP", 1.0 / advantage.max(1e-12)) };
    match times {
        t if t < EQUAL => "equal".into(),
        t if t < 9.95 => format!("{who} {t:.1}x"),
        t => format!("{who} {t:.0}x"),
    }
}

fn milliseconds(ms: f64) -> String {
    if ms < 0.5 { "< 0.5 ms".into() } else { format!("{ms:.1} ms") }
}
