//! The demo's result for a person: part by part, RaaS beside kernel TCP, and which is better. It fits 60 columns.

use super::host::HostUse;
use super::measure::{Kill, Measured, Small};
use super::report::{Compared, Report};
use terminal::table;
use verbs::Wire;

/// Widths of a line: what, RaaS, TCP, which is better.
const WHAT: usize = 25;
const VALUE: usize = 11;
/// Less than this apart counts as equal.
const EQUAL: f64 = 1.05;

/// The report. It is empty if there are no figures; the errors are printed elsewhere.
pub(super) fn of(report: &Report) -> String {
    if !report.has_figures() {
        return String::new();
    }
    let mut text = Text { out: String::new(), compared: report.compared() };
    text.head(report);
    text.connections(report);
    text.small_messages(report);
    text.kill(report);
    text.reset(report);
    text.bulk(report);
    if let Some(daemons) = &report.daemons {
        text.daemons(report, daemons);
    }
    text.end(report);
    text.out
}

struct Text {
    out: String,
    compared: Vec<Compared>,
}

impl Text {
    fn line(&mut self, what: &str, raas: &str, tcp: &str, better: &str) {
        let line = format!("{what:<WHAT$}{raas:>VALUE$}{tcp:>VALUE$}{better:>VALUE$}");
        self.out += line.trim_end();
        self.out.push('\n');
    }

    fn part(&mut self, title: &str) {
        self.out.push('\n');
        self.out += &table::paragraph(title);
    }

    /// A line for a figure of either side; none if neither has it.
    fn row(&mut self, what: &str, sides: [&Measured; 2], key: &str, cell: &dyn Fn(&Measured) -> Option<String>) {
        let [raas, tcp] = sides.map(cell);
        if raas.is_none() && tcp.is_none() {
            return;
        }
        let better = self.compared.iter().find(|c| c.key == key).map_or(String::new(), better);
        self.line(&format!("  {what}"), &raas.unwrap_or_default(), &tcp.unwrap_or_default(), &better);
    }

    fn head(&mut self, report: &Report) {
        let tcp = report.tcp_congestion.map_or("TCP".to_owned(), |name| format!("TCP {name}"));
        self.line("", "RaaS", &tcp, "better");
    }

    fn connections(&mut self, report: &Report) {
        let sides = [&report.raas, &report.tcp];
        let Some(opened) = &report.raas.opened else { return };
        let pairs = report.daemons.map_or(String::new(), |daemons| {
            let [a, b] = daemons.map(|d| d.rc_qps);
            match (a, b) {
                (1, 1) => {
                    let wire = report.wire().map_or("", |wire| match wire {
                        Wire::Roce => ", RoCEv2 over UDP",
                        Wire::Iwarp => ", iWARP over TCP",
                    });
                    format!(", one queue pair a host{wire}")
                }
                _ => format!(", {a} and {b} queue pairs"),
            }
        });
        self.part(&format!("{} connections{pairs}", table::grouped(opened.connections as u64)));
        self.row("opened in", sides, "open_seconds", &|m| Some(format!("{:.2} s", m.opened.as_ref()?.seconds)));
        self.row("descriptors a process", sides, "app_descriptors_max", &|m| {
            Some(m.opened.as_ref()?.descriptors_max?.to_string())
        });
    }

    fn small_messages(&mut self, report: &Report) {
        let sides = [&report.raas, &report.tcp];
        type Place = fn(&Measured) -> Option<&Small>;
        let two_hosts: Place = |m| m.two_hosts.as_ref();
        let one_host: Place = |m| m.one_host.as_ref();
        for (place, [p50, p99, rate], of) in [
            ("two hosts", ["p50_us", "p99_us", "msgs_per_s"], two_hosts),
            ("one host", ["one_host_p50_us", "one_host_p99_us", "one_host_msgs_per_s"], one_host),
        ] {
            if sides.iter().all(|m| of(m).is_none()) {
                continue;
            }
            self.part(&format!("messages of 64 bytes, {place}"));
            self.row("half round trip", sides, p50, &|m| Some(format!("{:.2} us", of(m)?.latency_us(0.5))));
            self.row("  p99", sides, p99, &|m| Some(format!("{:.2} us", of(m)?.latency_us(0.99))));
            self.row("one way, each compared", sides, rate, &|m| Some(per_second(of(m)?.msgs_per_s())));
        }
    }

    fn kill(&mut self, report: &Report) {
        let sides = [&report.raas, &report.tcp];
        if sides.iter().all(|m| m.kill.is_none()) {
            return;
        }
        self.part(&format!("one of {} applications killed under transfer", report.application_processes));
        let of = |cell: fn(&Kill) -> Option<String>| move |m: &Measured| cell(m.kill.as_ref()?);
        self.row("its connections ended", sides, "", &of(|k| Some(format!("{} of {}", k.lost, k.of_killed))));
        self.row("the others went on", sides, "", &of(|k| Some((k.connections - k.of_killed).to_string())));
        self.row("bytes compared there", sides, "", &of(|k| Some(table::bytes(k.bytes))));
        self.row("its peers knew after", sides, "kill_told_ms", &of(|k| Some(format!("{:.1} ms", k.told_ms?))));
    }

    fn reset(&mut self, report: &Report) {
        let Some(reset) = &report.raas.reset else { return };
        self.part("the shared queue pair broken under transfer (TCP has none that could break)");
        let lost = format!("{} of {}", reset.lost, table::grouped(reset.connections as u64));
        self.line("  connections lost", &lost, "", "");
        self.line("  bytes compared", &table::bytes(reset.bytes), "", "");
        self.line("  longest pause", &milliseconds(reset.pause_ms), "", "");
        self.line("    before the break", &milliseconds(reset.pause_without_ms), "", "");
    }

    fn bulk(&mut self, report: &Report) {
        let sides = [&report.raas, &report.tcp];
        if sides.iter().all(|m| m.bulk.is_none()) {
            return;
        }
        self.part("real files both ways over all connections, SHA-256");
        self.row("files", sides, "", &|m| Some(table::grouped(m.bulk.as_ref()?.verified.files)));
        self.row("bytes", sides, "", &|m| Some(table::bytes(m.bulk.as_ref()?.verified.bytes)));
        self.row("Gbit/s, hashing too", sides, "gbit_per_s", &|m| {
            Some(format!("{:.2}", m.bulk.as_ref()?.gbit_per_s()))
        });
        self.row("time", sides, "", &|m| Some(format!("{:.2} s", m.bulk.as_ref()?.took.as_secs_f64())));
        self.row("applications' processor", sides, "", &|m| Some(format!("{:.2} s", m.bulk.as_ref()?.app_cpu_seconds)));
        if let Some(daemons) = report.daemons.filter(|_| report.raas.bulk.is_some()) {
            let both: f64 = daemons.iter().map(|d| d.cpu_seconds).sum();
            self.line("  daemons' processor", &format!("{both:.2} s"), "", "");
        }
    }

    fn daemons(&mut self, report: &Report, daemons: &[HostUse; 2]) {
        let name = |i: usize| report.hosts.get(i).map_or(String::new(), ToString::to_string);
        self.out.push('\n');
        let mut row = |what: &str, cells: [String; 2]| {
            let line = format!("{what:<32}{:>13}{:>13}", cells[0], cells[1]);
            self.out += line.trim_end();
            self.out.push('\n');
        };
        let of = |cell: &dyn Fn(&HostUse) -> String| daemons.each_ref().map(cell);
        row("the daemons", [name(0), name(1)]);
        row("  queue pairs, CQs, SRQs", of(&|h| format!("{}, {}, {}", h.rc_qps, h.cqs, h.srqs)));
        row("  memory under load", of(&|h| table::bytes(h.rss_bytes)));
        row("    of it rings, shared", of(&|h| table::bytes(h.rss_shared_bytes)));
        row("  memory afterwards", of(&|h| table::bytes(h.rss_idle_bytes)));
        // Over TCP the kernel repeats what is lost.
        if report.wire() != Some(Wire::Iwarp) {
            row("  packets sent again", of(&|h| table::grouped(h.retransmits)));
            // What one host sent again needlessly, the other one counts.
            let needless = [0, 1].map(|i: usize| daemons[i].retransmits.min(daemons[1 - i].duplicates));
            row("    which the peer had already", needless.map(table::grouped));
        }
        if daemons.iter().any(|h| h.socket_overflows > 0) {
            row("  receive buffer overflowed", of(&|h| table::grouped(h.socket_overflows)));
        }
    }

    fn end(&mut self, report: &Report) {
        self.out.push('\n');
        for note in &report.notes {
            self.out += &table::paragraph(&format!("note: {note}"));
        }
        for error in &report.errors {
            self.out += &table::paragraph(&format!("ERROR: {error}"));
        }
        let lost: Vec<&str> =
            self.compared.iter().filter(|c| c.advantage() * EQUAL < 1.0).map(|c| spoken(c.key)).collect();
        if report.is_good() && !lost.is_empty() {
            self.out += &table::paragraph(&format!("TCP is better here at: {}", lost.join(", ")));
        }
        let verdict = if report.is_good() {
            format!(
                "VERIFIED: {} connections of {} processes, every byte of every part as it was sent; {:.1} s in all",
                table::grouped(u64::from(report.connections)),
                report.application_processes,
                report.total_seconds
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

/// What a figure is called in a sentence.
fn spoken(key: &str) -> &str {
    match key {
        "open_seconds" => "opening",
        "app_descriptors_max" => "descriptors",
        "p50_us" => "half round trip between hosts",
        "p99_us" => "its p99 between hosts",
        "msgs_per_s" => "message rate between hosts",
        "one_host_p50_us" => "half round trip on one host",
        "one_host_p99_us" => "its p99 on one host",
        "one_host_msgs_per_s" => "message rate on one host",
        "kill_told_ms" => "telling of a death",
        "gbit_per_s" => "bulk",
        other => other,
    }
}

fn better(c: &Compared) -> String {
    let advantage = c.advantage();
    let (who, times) = if advantage >= 1.0 { ("RaaS", advantage) } else { ("TCP", 1.0 / advantage.max(1e-12)) };
    match times {
        t if t < EQUAL => "equal".into(),
        t if t < 9.95 => format!("{who} {t:.1}x"),
        t => format!("{who} {t:.0}x"),
    }
}

fn per_second(n: f64) -> String {
    if n >= 1e6 { format!("{:.1} M/s", n / 1e6) } else { format!("{:.0} k/s", n / 1e3) }
}

fn milliseconds(ms: f64) -> String {
    if ms < 0.5 { "< 0.5 ms".into() } else { format!("{ms:.1} ms") }
}
