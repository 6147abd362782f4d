//! Cases by sides: in each round of a case every side runs once, in an order that turns from round to round, and the
//! rows come from the rounds. Owns the alternation; what runs where is in place.rs and rivals.rs.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::loads::{self, stream_client};
use super::measured::Measured;
use super::place::{End, Place, at};
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::rivals::{Rival, any_port};
use super::stats::{Bar, Better, Kind, Row, Series, spread};

/// Connections of a case with several streams.
const STREAMS: &str = "8";
/// Beyond its own time a run of ours is given this long, on a machine that is busy too.
const SLACK: Duration = Duration::from_secs(60);

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
    /// As [`Runner::Sock`], with messages of so many bytes instead of the case's.
    SockOf(&'static str, bool, u32),
    /// Over RaaS by the place's second daemons.
    SecondDaemons,
    /// Our ping-pong of messages by reference.
    Reference,
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
/// The limit on one host: two processes and two rings, asking again and again.
pub(crate) const BARE_RING: Side = Side { name: "bare-ring", runner: Runner::Sock(BARE, true) };
/// The limit between two hosts: a ring, a relay, UDP, a relay, a ring; all four processes yield.
pub(crate) const BARE_RELAY: Side = Side { name: "bare-relay", runner: Runner::Sock(BARE, false) };
/// The transport of both.
const BARE: &str = "bare";

/// A row of a case: our figure beside a rival's, with a bar or reported alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) name: &'static str,
    pub(crate) metric: Metric,
    pub(crate) rival: &'static str,
    pub(crate) bar: Option<(Bar, Kind)>,
}

/// A bar.
pub(crate) const fn claim(name: &'static str, metric: Metric, rival: &'static str, bar: Bar, kind: Kind) -> Claim {
    Claim { name, metric, rival, bar: Some((bar, kind)) }
}

/// A rival that is shown and decides nothing.
pub(crate) const fn reported(name: &'static str, metric: Metric, rival: &'static str) -> Claim {
    Claim { name, metric, rival, bar: None }
}

/// A load and who runs it; the first side is ours.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// `lat`, `bw` or `streams`.
    pub(crate) test: &'static str,
    pub(crate) bytes: u32,
    /// Bytes of a bare ring on one host: as many as a ring of ours has under this load.
    pub(crate) ring_bytes: u64,
    /// How our bytes must have gone, as `raas ss` says it.
    pub(crate) path: &'static str,
    /// Each end has a processor of its own, which its programs do not leave.
    pub(crate) pinned: bool,
    /// On each processor another program computes.
    pub(crate) crowded: bool,
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
pub(crate) fn run(place: &mut Place, cases: &[Case], effort: Effort, findings: &mut Findings) -> Result<()> {
    for case in cases {
        place.pin(case.pinned)?;
        let _others = if case.crowded { place.crowd()? } else { vec![] };
        let mut values: Vec<Vec<Measured>> = vec![vec![]; case.sides.len()];
        for round in 0..effort.rounds as usize {
            for step in 0..case.sides.len() {
                let which = (round + step) % case.sides.len();
                let side = case.sides[which];
                place.use_second_daemons(matches!(side.runner, Runner::SecondDaemons));
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
        Runner::SecondDaemons => sock(place, case, "raas", false, effort.seconds),
        Runner::SockOf(transport, busy, bytes) => {
            sock(place, &Case { bytes, ..case.clone() }, transport, busy, effort.seconds)
        }
        Runner::Reference => reference(place, case, effort.seconds),
        Runner::Rival(rival) => rival.measure(place),
    }
}

/// The bare relays of both ends, and the paths of their rings.
#[derive(Debug)]
pub(crate) struct Relays {
    pub(crate) client_ring: String,
    pub(crate) server_ring: String,
    _processes: [Beside; 2],
}

impl Relays {
    pub(crate) fn start(place: &Place) -> Result<Self> {
        let start = |end: End, words: &[&str]| -> Result<(Beside, String, String)> {
            let local = at(place.address(end), 0);
            let words = [&["barerelay", "--local", &local], words].concat();
            let mut relay = Beside::start(&mut loads::command(place, end, &words))?;
            let bound = relay.wait_line("bound ", READY_WITHIN)?;
            let ring = relay.wait_line("ready ", READY_WITHIN)?;
            Ok((relay, bound, ring))
        };
        let (far, far_at, server_ring) = start(End::Server, &[])?;
        let (near, _, client_ring) = start(End::Client, &["--peer", &far_at])?;
        Ok(Self { client_ring, server_ring, _processes: [near, far] })
    }
}

/// Where the server of a transport listens.
fn listen_at(place: &Place, transport: &str, relays: Option<&Relays>) -> String {
    match (transport, relays) {
        (BARE, Some(relays)) => relays.server_ring.clone(),
        (BARE, None) => "new".to_owned(),
        ("unix", _) => {
            let path = place.file("unix.sock");
            // A server that has ended leaves its name behind.
            let _ = std::fs::remove_file(&path);
            path.display().to_string()
        }
        _ => any_port(place),
    }
}

fn sock(place: &Place, case: &Case, transport: &str, busy: bool, seconds: f64) -> Result<Measured> {
    let relays = if transport == BARE && place.is_two_hosts() { Some(Relays::start(place)?) } else { None };
    let (listen, ring_bytes) = (listen_at(place, transport, relays.as_ref()), case.ring_bytes.to_string());
    let busy: &[&str] = if busy { &["--busy"] } else { &[] };
    let words = ["sockbench", "server", "--transport", transport, "--at", &listen, "--ring-bytes", &ring_bytes];
    let (server, mut to) = loads::serve(place, End::Server, &[&words, busy].concat())?;
    if let Some(relays) = &relays {
        to.clone_from(&relays.client_ring);
    }
    let (bytes, seconds_text) = (case.bytes.to_string(), seconds.to_string());
    let mut words = [&[case.test, "--size", &bytes, "--seconds", &seconds_text], busy].concat();
    if case.test == "streams" {
        words.extend(["--connections", STREAMS]);
    }
    let daemons = place.daemon_pids().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if transport == "raas" {
        words.extend(["--cpu-of", &daemons]);
    }
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let report = loads::report(&mut stream_client(place, transport, &to, &words), limit)?;
    if relays.is_none() {
        // A server behind relays does not learn of its client's end, so it is ended when this is over.
        server.end();
    }
    let wanted = if transport == "raas" { case.path } else { transport };
    ensure!(report["path"] == wanted, "the bytes went over {}, not {wanted}", report["path"]);
    Ok(Measured::of_report(&report))
}

/// Two processes that lend slices to each other.
fn reference(place: &Place, case: &Case, seconds: f64) -> Result<Measured> {
    let (size, seconds_text) = (case.bytes.to_string(), seconds.to_string());
    let (server, to) = loads::serve(place, End::Server, &["refbench", "server", "--size", &size])?;
    let words = ["refbench", "client", "--size", &size, "--to", &to, "--seconds", &seconds_text];
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let report = loads::report(&mut loads::command(place, End::Client, &words), limit)?;
    server.end();
    ensure!(report["path"] == case.path, "the slices went over {}, not {}", report["path"], case.path);
    Ok(Measured::of_report(&report))
}

fn column(values: &[Measured], metric: Metric) -> Vec<f64> {
    // A value that was not measured is NaN, so that rounds stay aligned and the ratio leaves it out.
    values.iter().map(|m| metric.of(m).unwrap_or(f64::NAN)).collect()
}

fn row(case: &Case, claim: &Claim, values: &[Vec<Measured>]) -> Option<Row> {
    let rival = case.sides.iter().position(|side| side.name == claim.rival)?;
    let series = Series {
        case: claim.name.to_owned(),
        unit: claim.metric.unit().to_owned(),
        better: claim.metric.better(),
        ours: column(values.first()?, claim.metric),
        rival: claim.rival.to_owned(),
        rival_values: column(values.get(rival)?, claim.metric),
    };
    Some(Row { series, bar: claim.bar })
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
    json!({ "case": case.name, "size_bytes": case.bytes, "pinned": case.pinned, "crowded": case.crowded, "medians": sides })
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
        let claim = claim("p99", Metric::P99, "tcp", Bar::RatioAtMost(1.0), Kind::Must);
        let sides = vec![RAAS, TCP];
        let case = Case {
            name: "c",
            test: "lat",
            bytes: 64,
            ring_bytes: 4096,
            path: "lane",
            pinned: false,
            crowded: false,
            sides,
            claims: vec![claim],
        };
        let side = |p50: f64, p99: f64| Measured { p50_us: Some(p50), p99_us: Some(p99), ..Measured::default() };
        let values = vec![vec![side(1.0, 2.0), Measured::default()], vec![side(3.0, 4.0), side(1.0, 1.0)]];
        let found = row(&case, &claim, &values).expect("both sides are there");
        assert_eq!(found.series.ratios(), [0.5]);
        assert_eq!(found.bar, claim.bar);
        let beside = reported("p50", Metric::P50, "tcp");
        assert_eq!(row(&case, &beside, &values).expect("both sides are there").bar, None);
        let told = figures(&case, &values);
        assert_eq!(told["medians"]["raas"]["p99_us"], 2.0);
        assert!(told["medians"]["raas"]["gbit_per_s"].is_null());
    }
}
