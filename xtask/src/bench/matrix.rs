//! Cases by sides: in each round of a case every side runs once, in an order that turns from round to round, and the rows come
//! from the rounds. Owns the alternation; what runs where is in place.rs and rivals.rs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::place::{End, Place};
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::rivals::{Rival, any_port};
use super::stats::{Bar, Better, Kind, Row, Series, spread};
use crate::child::{self, Stream};

/// Beyond its own time a run of ours is given this long, on a machine that is busy too.
const SLACK: Duration = Duration::from_secs(60);

/// What one run of one side told; what it did not measure is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) half_rtt_us: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) gbit_per_s: Option<f64>,
    pub(crate) msgs_per_s: Option<f64>,
    pub(crate) cpu_seconds_per_gb: Option<f64>,
}

/// A figure of [`Measured`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    HalfRtt,
    P50,
    P99,
    Gbit,
    Msgs,
    Cpu,
}

impl Metric {
    const ALL: [Self; 6] = [Self::HalfRtt, Self::P50, Self::P99, Self::Gbit, Self::Msgs, Self::Cpu];

    fn of(self, measured: &Measured) -> Option<f64> {
        match self {
            Self::HalfRtt => measured.half_rtt_us,
            Self::P50 => measured.p50_us,
            Self::P99 => measured.p99_us,
            Self::Gbit => measured.gbit_per_s,
            Self::Msgs => measured.msgs_per_s,
            Self::Cpu => measured.cpu_seconds_per_gb,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::HalfRtt | Self::P50 | Self::P99 => "us",
            Self::Gbit => "gbit_per_s",
            Self::Msgs => "msgs_per_s",
            Self::Cpu => "seconds_per_gb",
        }
    }

    fn better(self) -> Better {
        match self {
            Self::Gbit | Self::Msgs => Better::Higher,
            _ => Better::Lower,
        }
    }
}

/// Who runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Runner {
    /// Our program over this transport, busy or blocking.
    Sock(&'static str, bool),
    Rival(Rival),
}

/// One side of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) runner: Runner,
}

/// Over RaaS.
pub(crate) const RAAS: Side = Side { name: "raas", runner: Runner::Sock("raas", false) };
/// Kernel TCP, waiting in the kernel.
pub(crate) const TCP: Side = Side { name: "tcp", runner: Runner::Sock("tcp", false) };
/// Kernel TCP, asking again and again.
pub(crate) const TCP_BUSY: Side = Side { name: "tcp-busy", runner: Runner::Sock("tcp", true) };
pub(crate) const UNIX: Side = Side { name: "unix", runner: Runner::Sock("unix", false) };
pub(crate) const UNIX_BUSY: Side = Side { name: "unix-busy", runner: Runner::Sock("unix", true) };

/// A bar of a case: our figure against a rival's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) name: &'static str,
    pub(crate) ours: Metric,
    pub(crate) rival: &'static str,
    pub(crate) theirs: Metric,
    pub(crate) bar: Bar,
    pub(crate) kind: Kind,
}

/// A claim about the same figure of both.
pub(crate) fn claim(name: &'static str, metric: Metric, rival: &'static str, bar: Bar, kind: Kind) -> Claim {
    Claim { name, ours: metric, rival, theirs: metric, bar, kind }
}

/// A load and who runs it; the first side is ours.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// `lat` or `bw`.
    pub(crate) test: &'static str,
    pub(crate) bytes: u32,
    pub(crate) sides: Vec<Side>,
    pub(crate) claims: Vec<Claim>,
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
}

/// Runs the cases; a side that fails in a round has no value there, and one of ours that fails ends the bench.
pub(crate) fn run(place: &Place, cases: &[Case], effort: Effort, findings: &mut Findings) -> Result<()> {
    for case in cases {
        let mut values: Vec<Vec<Measured>> = vec![vec![]; case.sides.len()];
        for round in 0..effort.rounds as usize {
            for step in 0..case.sides.len() {
                let which = (round + step) % case.sides.len();
                let side = case.sides[which];
                let measured = match measure(place, case, side, effort) {
                    Ok(measured) => measured,
                    Err(e) if matches!(side.runner, Runner::Rival(_)) => {
                        eprintln!("{} over {}: {e:#}", case.name, side.name);
                        note(&mut findings.rivals_missing, format!("{} failed in {}", side.name, case.name));
                        Measured::default()
                    }
                    Err(e) => return Err(e.context(format!("{} over {}", case.name, side.name))),
                };
                values[which].push(measured);
            }
        }
        println!("{}: {} rounds done", case.name, effort.rounds);
        findings.rows.extend(case.claims.iter().filter_map(|claim| row(case, claim, &values)));
        findings.figures.push(figures(case, &values));
    }
    Ok(())
}

fn note(list: &mut Vec<String>, line: String) {
    if !list.contains(&line) {
        list.push(line);
    }
}

fn measure(place: &Place, case: &Case, side: Side, effort: Effort) -> Result<Measured> {
    match side.runner {
        Runner::Sock(transport, busy) => sock(place, case, transport, busy, effort.seconds),
        Runner::Rival(rival) => rival.measure(place),
    }
}

fn sock(place: &Place, case: &Case, transport: &str, busy: bool, seconds: f64) -> Result<Measured> {
    let program = place.program("sockbench");
    let path = place.file("unix.sock");
    let at = if transport == "unix" {
        // A server that has ended leaves its name behind.
        let _ = std::fs::remove_file(&path);
        path.display().to_string()
    } else {
        any_port(place)
    };
    let busy: &[&str] = if busy { &["--busy"] } else { &[] };
    let words = [&[program.as_str(), "server", "--transport", transport, "--at", &at], busy].concat();
    let mut server = Beside::start(&mut place.command(End::Server, &words))?;
    let to = server.wait_line("ready ", READY_WITHIN)?;
    let (bytes, seconds_text) = (case.bytes.to_string(), seconds.to_string());
    let mut words = [&[program.as_str(), "client", "--transport", transport, "--to", &to], busy].concat();
    words.extend(["--test", case.test, "--size", &bytes, "--seconds", &seconds_text]);
    let daemons = place.daemon_pids().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if transport == "raas" {
        words.extend(["--cpu-of", &daemons]);
    }
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let ended = child::run_quiet(&mut place.command(End::Client, &words), limit)?;
    ensure!(ended.success(), "client: {}\n{}", ended.describe(), ended.text(Stream::Err));
    server.end();
    let report: Value = serde_json::from_str(&ended.text(Stream::Out)).context("the client's report is not JSON")?;
    let wanted = match (transport, place.is_two_hosts()) {
        ("raas", true) => "lane",
        ("raas", false) => "shm",
        (other, _) => other,
    };
    ensure!(report["path"] == wanted, "the bytes went over {}, not {wanted}", report["path"]);
    let value = |key: &str| report[key].as_f64();
    Ok(Measured {
        half_rtt_us: value("half_rtt_us"),
        p50_us: value("p50_us"),
        p99_us: value("p99_us"),
        gbit_per_s: value("gbit_per_s"),
        msgs_per_s: value("msgs_per_s"),
        cpu_seconds_per_gb: value("cpu_seconds_per_gb"),
    })
}

fn column(values: &[Measured], metric: Metric) -> Vec<f64> {
    // What is not measured is no number, so that rounds stay aligned and the ratio leaves it out.
    values.iter().map(|m| metric.of(m).unwrap_or(f64::NAN)).collect()
}

fn row(case: &Case, claim: &Claim, values: &[Vec<Measured>]) -> Option<Row> {
    let rival = case.sides.iter().position(|side| side.name == claim.rival)?;
    let series = Series {
        case: claim.name.to_owned(),
        unit: claim.ours.unit().to_owned(),
        better: claim.ours.better(),
        ours: column(values.first()?, claim.ours),
        rival: claim.rival.to_owned(),
        rival_values: column(values.get(rival)?, claim.theirs),
    };
    Some(Row { series, bar: claim.bar, kind: claim.kind })
}

/// Medians of everything that every side measured.
fn figures(case: &Case, values: &[Vec<Measured>]) -> Value {
    let sides: serde_json::Map<String, Value> = case
        .sides
        .iter()
        .zip(values)
        .map(|(side, values)| {
            let medians = Metric::ALL.iter().filter_map(|metric| {
                let median = spread(&column(values, *metric))?.median;
                Some((key(*metric).to_owned(), json!(median)))
            });
            (side.name.to_owned(), Value::Object(medians.collect()))
        })
        .collect();
    json!({ "case": case.name, "size_bytes": case.bytes, "medians": sides })
}

fn key(metric: Metric) -> &'static str {
    match metric {
        Metric::HalfRtt => "half_rtt_us",
        Metric::P50 => "p50_us",
        Metric::P99 => "p99_us",
        Metric::Gbit => "gbit_per_s",
        Metric::Msgs => "msgs_per_s",
        Metric::Cpu => "cpu_seconds_per_gb",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_compares_the_rounds_of_two_sides() {
        let claim = Claim {
            name: "p99 against p50",
            ours: Metric::P99,
            rival: "tcp",
            theirs: Metric::P50,
            bar: Bar::RatioAtMost(1.0),
            kind: Kind::Must,
        };
        let case = Case { name: "c", test: "lat", bytes: 64, sides: vec![RAAS, TCP], claims: vec![claim] };
        let side = |p50: f64, p99: f64| Measured { p50_us: Some(p50), p99_us: Some(p99), ..Measured::default() };
        let values = vec![vec![side(1.0, 2.0), Measured::default()], vec![side(4.0, 9.0), side(1.0, 1.0)]];
        let found = row(&case, &claim, &values).expect("both sides are there");
        assert_eq!(found.series.ratios(), [0.5]);
        let told = figures(&case, &values);
        assert_eq!(told["medians"]["raas"]["p99_us"], 2.0);
        assert!(told["medians"]["raas"]["gbit_per_s"].is_null());
    }
}
