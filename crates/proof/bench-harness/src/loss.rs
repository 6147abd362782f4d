//! Bench `loss`: streams over a link that loses and delays packets (bench/src/linkrelay), over RaaS and over kernel TCP
//! with cubic and with bbr, in turn, with the same losses. Owns the cells and the bars.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::loads::{self, stream_client, stream_server};
use super::place::Place;
use super::relay::{Carried, LinkShape, Relay};
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Bar, Better, Kind, Row, Series, spread};
use super::{Args, Wire};
use harness::repo::Repo;

/// Losses of each direction, of a million.
const LOSSES: [u32; 5] = [0, 100, 1_000, 10_000, 50_000];
/// Delays of both directions together, in microseconds.
const RTTS_US: [u64; 4] = [100, 1_000, 10_000, 100_000];
/// Numbers of streams.
const STREAMS: [u32; 2] = [1, 100];
/// What a quick run has of them.
const QUICK: ([u32; 2], [u64; 2]) = ([0, 10_000], [1_000, 10_000]);
/// Packets that wait for the link at most.
const QUEUE_PACKETS: u32 = 100;
/// In cells with marks, a packet that finds more than these before it is marked.
const MARK_ABOVE_PACKETS: u32 = 20;
/// Delays of cells with marks.
const MARKED_RTTS_US: [u64; 2] = [1_000, 10_000];
/// Bytes of a write.
const SIZE: u32 = 64 << 10;
/// Seconds that are measured at least, and before them; in round trips too, because a stream finds its rate in those.
const SECONDS: f64 = 1.0;
const WARM_UP_PART: f64 = 0.5;
const MEASURED_RTTS: f64 = 30.0;
const WARM_UP_RTTS: f64 = 20.0;
/// A run of which nothing came counts as if so much had come, so that its ratio is not left out.
const NOTHING: f64 = 1e-9;
/// Beyond its own time a run is given this long: connections are opened over a lossy link.
const SLACK: Duration = Duration::from_secs(90);
/// The relay must carry so much where the link has no rate, or it may be the limit of the other cells.
const RELAY_GBIT_MIN: f64 = 1.0;
/// The kernel's list of what a connection may ask for.
const CONGESTION_LIST: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// RaaS over a wire, with daemons of this configuration.
    Raas { wire: &'static str, config: &'static str },
    /// Kernel TCP with this congestion control, by a transport of sockbench.
    Tcp { congestion: &'static str, transport: &'static str },
}

const WIRES: [Side; 2] = [
    Side::Raas { wire: "roce", config: "wire = \"roce\"\n" },
    Side::Raas { wire: "iwarp", config: "wire = \"iwarp\"\n" },
];
const RIVALS: [Side; 2] =
    [Side::Tcp { congestion: "cubic", transport: "tcp" }, Side::Tcp { congestion: "bbr", transport: "tcp-bbr" }];
/// The rival of the bars: in each round the one that did better.
const BETTER_TCP: &str = "better of cubic and bbr";

impl Side {
    fn name(self) -> String {
        match self {
            Self::Raas { wire, .. } => format!("raas {wire}"),
            Self::Tcp { congestion, .. } => format!("tcp {congestion}"),
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Raas { .. })
    }
}

/// A link and a load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    loss_per_million: u32,
    rtt_us: u64,
    streams: u32,
    /// A long queue marks packets, and all sides ask for marks.
    has_marks: bool,
}

impl Cell {
    fn name(self) -> String {
        let loss = f64::from(self.loss_per_million) / 1e4;
        let rtt = self.rtt_us as f64 / 1e3;
        let streams = if self.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", self.streams) };
        let marks = if self.has_marks { ", marks" } else { "" };
        format!("{loss}% lost, {rtt} ms, {streams}{marks}")
    }

    /// Seconds before those that are measured, and these.
    fn seconds(self, least: f64) -> [f64; 2] {
        let rtt = self.rtt_us as f64 / 1e6;
        [(least * WARM_UP_PART).max(rtt * WARM_UP_RTTS), least.max(rtt * MEASURED_RTTS)]
    }

    /// What the wire must reach here. Go-back-N leaves much of a line unused over distance and with losses, where the
    /// TCP wire serves.
    fn bar(self, wire: &str) -> Option<(Bar, Kind)> {
        (wire == "iwarp" && !self.has_marks).then_some((Bar::RatioAtLeast(0.9), Kind::Must))
    }
}

fn cells(args: &Args) -> Vec<Cell> {
    let (losses, rtts): (&[u32], &[u64]) = if args.quick { (&QUICK.0, &QUICK.1) } else { (&LOSSES, &RTTS_US) };
    let all = rtts.iter().flat_map(|rtt_us| losses.iter().map(move |loss| (*rtt_us, *loss)));
    let has_marks = false;
    let all = all.flat_map(|(rtt_us, loss_per_million)| {
        STREAMS.map(|streams| Cell { loss_per_million, rtt_us, streams, has_marks })
    });
    let marked: &[u64] = if args.quick { &[] } else { &MARKED_RTTS_US };
    let marked = marked.iter().flat_map(|rtt_us| {
        STREAMS.map(|streams| Cell { loss_per_million: 0, rtt_us: *rtt_us, streams, has_marks: true })
    });
    all.chain(marked).filter(|cell| args.wants(&cell.name())).collect()
}

/// What one run of one side found.
#[derive(Debug, Clone)]
struct Run {
    gbit_per_s: f64,
    /// sockbench's report; null if it failed.
    report: Value,
    carried: Carried,
}

struct Bench {
    place: Place,
    relay: Relay,
    rate_bits_per_s: u64,
    seconds: f64,
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (rounds, seconds) = (args.rounds(), args.seconds(SECONDS));
    let (place, relay) = Relay::two_hosts(repo, "loss", args.mtu)?;
    let mut bench = Bench { place, relay, rate_bits_per_s: u64::from(args.rate_mbit) * 1_000_000, seconds };
    let mut findings = Findings { rounds, ..Findings::default() };
    let rivals = rivals(&mut findings.rivals_missing);
    findings.setting = json!({
        "link": "a relay between two taps, without offloads", "mtu": args.mtu, "rate_mbit_per_s": args.rate_mbit,
        "queue_packets": QUEUE_PACKETS, "mark_above_packets": MARK_ABOVE_PACKETS, "loss": "of each direction", "seconds": seconds, "size_bytes": SIZE,
        "relay_before_all_programs": bench.relay.at_once, "tcp_buffers_bytes_max": 67_108_864,
    });
    if args.wants("relay alone") {
        findings.rows.push(bench.relay_alone(rounds)?);
        println!("relay alone: {rounds} rounds done");
    }
    let is_wanted = |side: &&Side| match (side, args.wire) {
        (Side::Raas { wire, .. }, Some(Wire::Roce)) => *wire == "roce",
        (Side::Raas { wire, .. }, Some(Wire::Iwarp)) => *wire == "iwarp",
        _ => true,
    };
    let sides: Vec<Side> = WIRES.iter().filter(is_wanted).chain(&rivals).copied().collect();
    for cell in cells(args) {
        let runs = bench.rounds(cell, &sides, rounds)?;
        findings.rows.extend(rows(cell, &sides, &runs));
        findings.figures.push(figure(cell, &sides, &runs));
        println!("{}: {rounds} rounds done", cell.name());
    }
    Ok(findings)
}

/// Those that this kernel has; says loudly which it lacks.
fn rivals(missing: &mut Vec<String>) -> Vec<Side> {
    let list = std::fs::read_to_string(CONGESTION_LIST).unwrap_or_default();
    let has = |side: &Side| match side {
        Side::Tcp { congestion, .. } => list.split_whitespace().any(|name| name == *congestion),
        Side::Raas { .. } => true,
    };
    for side in RIVALS.iter().filter(|side| !has(side)) {
        let line = format!("{}: this kernel has only {}; no bar is judged without it", side.name(), list.trim());
        eprintln!("RIVAL MISSING {line}");
        missing.push(line);
    }
    RIVALS.into_iter().filter(has).collect()
}

impl Bench {
    /// What the relay carries if the link has no limit, beside what it must.
    fn relay_alone(&mut self, rounds: u32) -> Result<Row> {
        let cell = Cell { loss_per_million: 0, rtt_us: 0, streams: 1, has_marks: false };
        let shape = LinkShape { rate_bits_per_s: 0, ..self.shape(cell, 0) };
        let mut ours = vec![];
        for _ in 0..rounds {
            self.relay.set(shape)?;
            let report = self.load(cell, "tcp")?;
            ours.push(report["gbit_per_s"].as_f64().context("sockbench measured nothing")?);
        }
        let series = Series {
            case: "relay alone: one TCP stream over a link without a rate".to_owned(),
            unit: "gbit_per_s".to_owned(),
            better: Better::Higher,
            rival: "least that it must carry".to_owned(),
            rival_values: vec![RELAY_GBIT_MIN; ours.len()],
            ours,
        };
        Ok(Row { series, bar: Some((Bar::RatioAtLeast(1.0), Kind::Must)) })
    }

    fn shape(&self, cell: Cell, seed: u64) -> LinkShape {
        LinkShape {
            seed,
            rate_bits_per_s: self.rate_bits_per_s,
            queue_packets: QUEUE_PACKETS,
            mark_above_packets: cell.has_marks.then_some(MARK_ABOVE_PACKETS),
            rtt_us: cell.rtt_us,
            loss_per_million: cell.loss_per_million,
        }
    }

    /// Each side once a round, in an order that turns; the n-th packet of a round is lost for all sides or for none.
    fn rounds(&mut self, cell: Cell, sides: &[Side], rounds: u32) -> Result<Vec<Vec<Run>>> {
        let mut runs = vec![vec![]; sides.len()];
        self.place.let_tcp_ask_for_marks(cell.has_marks)?;
        for round in 0..rounds as usize {
            for step in 0..sides.len() {
                let which = (round + step) % sides.len();
                self.relay.set(self.shape(cell, round as u64 + 1))?;
                let loaded = self.side(cell, sides[which]);
                let carried = self.relay.carried()?;
                // A wire that carries nothing over such a link is a result, and a missed bar.
                let report = loaded.unwrap_or_else(|e| {
                    eprintln!("{} over {}, round {round}: {e:#}", cell.name(), sides[which].name());
                    Value::Null
                });
                let gbit_per_s = report["gbit_per_s"].as_f64().unwrap_or_default().max(NOTHING);
                runs[which].push(Run { gbit_per_s, report, carried });
            }
        }
        Ok(runs)
    }

    fn side(&mut self, cell: Cell, side: Side) -> Result<Value> {
        match side {
            Side::Tcp { transport, .. } => self.load(cell, transport),
            Side::Raas { config, .. } => {
                // Daemons that know nothing of the link, as a kernel's connection knows nothing of it.
                let report = self.place.start_daemons(config).and_then(|()| self.load(cell, "raas"));
                self.place.stop_daemons();
                report
            }
        }
    }

    fn load(&self, cell: Cell, transport: &str) -> Result<Value> {
        let place = &self.place;
        let (_server, to) = stream_server(place, transport, &any_port(place))?;
        let [warm_up, seconds] = cell.seconds(self.seconds);
        let limit = Duration::from_secs_f64(warm_up + seconds) + SLACK;
        let [warm_up, seconds] = [warm_up, seconds].map(|seconds| seconds.to_string());
        let [size, streams] = [SIZE, cell.streams].map(|n| n.to_string());
        let words =
            ["streams", "--size", &size, "--connections", &streams, "--warm-up", &warm_up, "--seconds", &seconds];
        let report = loads::report(&mut stream_client(place, transport, &to, &words), limit)?;
        let wanted = if transport == "raas" { "lane" } else { "tcp" };
        ensure!(report["path"] == wanted, "the bytes went over {}, not {wanted}", report["path"]);
        Ok(report)
    }
}

/// Each wire of ours beside the TCP that did better in the round.
fn rows(cell: Cell, sides: &[Side], runs: &[Vec<Run>]) -> Vec<Row> {
    let values = |which: usize| -> Vec<f64> { runs[which].iter().map(|run| run.gbit_per_s).collect() };
    let rivals: Vec<Vec<f64>> = (0..sides.len()).filter(|which| !sides[*which].is_ours()).map(values).collect();
    let rounds = runs.first().map_or(0, Vec::len);
    let better = |round: usize| rivals.iter().map(|values| values[round]).fold(f64::NAN, f64::max);
    let is_whole = rivals.len() == RIVALS.len();
    let ours = sides.iter().enumerate().filter_map(|(which, side)| match side {
        Side::Raas { wire, .. } => Some((which, *wire)),
        Side::Tcp { .. } => None,
    });
    ours.map(|(which, wire)| Row {
        series: Series {
            case: format!("{wire}: {}", cell.name()),
            unit: "gbit_per_s".to_owned(),
            better: Better::Higher,
            ours: values(which),
            rival: BETTER_TCP.to_owned(),
            rival_values: (0..rounds).map(better).collect(),
        },
        bar: cell.bar(wire).filter(|_| is_whole),
    })
    .collect()
}

/// All sides of a cell: what they carried, how evenly, and what the link and the relay did.
fn figure(cell: Cell, sides: &[Side], runs: &[Vec<Run>]) -> Value {
    let side = |runs: &[Run]| {
        let median = |of: &dyn Fn(&Run) -> Option<f64>| spread(&runs.iter().filter_map(of).collect::<Vec<_>>());
        let reported = |key: &str| median(&|run| run.report[key].as_f64()).map(|s| s.median);
        let rate = median(&|run| Some(run.gbit_per_s));
        json!({
            "gbit_per_s": rate.map(|s| s.median), "fairness": reported("fairness"),
            "slowest_gbit_per_s": reported("slowest_gbit_per_s"), "fastest_gbit_per_s": reported("fastest_gbit_per_s"),
            "failed": runs.iter().filter(|run| run.report.is_null()).count(),
            "frames": median(&|run| Some(run.carried.frames as f64)).map(|s| s.median),
            "lost": median(&|run| Some(run.carried.lost as f64)).map(|s| s.median),
            "queue_full": median(&|run| Some(run.carried.queue_full as f64)).map(|s| s.median),
            "marked": median(&|run| Some(run.carried.marked as f64)).map(|s| s.median),
            "relay_dropped": runs.iter().map(|run| run.carried.relay_dropped).sum::<u64>(),
            "relay_late_p50_us": median(&|run| Some(run.carried.late_us[0])).map(|s| s.median),
            "relay_late_p99_us": median(&|run| Some(run.carried.late_us[1])).map(|s| s.median),
        })
    };
    let all: Map<String, Value> = sides.iter().zip(runs).map(|(of, runs)| (of.name(), side(runs))).collect();
    json!({
        "case": cell.name(), "loss_per_million": cell.loss_per_million, "rtt_us": cell.rtt_us,
        "streams": cell.streams, "has_marks": cell.has_marks, "sides": all,
    })
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    const CARRIED: Carried =
        Carried { frames: 9, lost: 1, queue_full: 0, marked: 0, relay_dropped: 0, late_us: [0.5, 2.0] };

    fn run(gbit_per_s: f64) -> Run {
        Run { gbit_per_s, report: json!({"fairness": 0.9}), carried: CARRIED }
    }

    fn cell(loss_per_million: u32, rtt_us: u64) -> Cell {
        Cell { loss_per_million, rtt_us, streams: 1, has_marks: false }
    }

    #[test]
    fn the_rival_of_a_round_is_the_tcp_that_did_better_in_it() {
        let sides = [&WIRES[..], &RIVALS].concat();
        let alternate = |even: f64, odd: f64| (0..9).map(|n| run(if n % 2 == 0 { even } else { odd })).collect();
        let runs = vec![alternate(0.5, 0.5), alternate(0.95, 0.95), alternate(1.0, 0.1), alternate(0.2, 0.9)];
        let rows = rows(cell(10_000, 1_000), &sides, &runs);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].series.rival_values[..2], [1.0, 0.9]);
        assert_eq!(rows.iter().map(Row::verdict).collect::<Vec<_>>(), [None, Some(Verdict::Met)]);
    }

    #[test]
    fn a_run_that_failed_misses_its_bar() {
        let sides = [&WIRES[..], &RIVALS].concat();
        let runs = vec![vec![run(0.1); 9], vec![run(NOTHING); 9], vec![run(0.1); 9], vec![run(0.1); 9]];
        assert_eq!(rows(cell(0, 100), &sides, &runs)[1].verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn without_a_rival_nothing_is_judged() {
        let sides = [&WIRES[..], &RIVALS[..1]].concat();
        let runs = vec![vec![run(1.0); 9]; 3];
        assert!(rows(cell(0, 100), &sides, &runs).iter().all(|row| row.bar.is_none()));
    }

    #[test]
    fn bars_are_where_the_wires_have_them() {
        assert!(cell(50_000, 100_000).bar("iwarp").is_some() && cell(0, 100).bar("roce").is_none());
        assert_eq!(Cell { has_marks: true, ..cell(0, 1_000) }.bar("iwarp"), None);
    }

    #[test]
    fn cells_have_names_to_choose_by() {
        assert_eq!(cell(100, 100).name(), "0.01% lost, 0.1 ms, 1 stream");
        assert_eq!(Cell { streams: 100, ..cell(50_000, 100_000) }.name(), "5% lost, 100 ms, 100 streams");
        let marked = Cell { has_marks: true, ..cell(0, 1_000) };
        assert_eq!(marked.name(), "0% lost, 1 ms, 1 stream, marks");
        assert_eq!(cell(0, 100_000).seconds(1.0), [2.0, 3.0]);
        assert_eq!(cell(0, 100).seconds(1.0), [0.5, 1.0]);
    }

    #[test]
    fn a_figure_tells_of_every_side() {
        let sides = [&WIRES[..], &RIVALS].concat();
        let told = figure(cell(0, 100), &sides, &vec![vec![run(1.0); 3]; 4]);
        for side in ["raas roce", "raas iwarp", "tcp cubic", "tcp bbr"] {
            assert_eq!(told["sides"][side]["gbit_per_s"], 1.0, "{told}");
            assert_eq!(told["sides"][side]["failed"], 0);
        }
    }
}
