//! Bench `fairness`: a program with one connection beside a program that floods 1,000 on the same lane. Owns the bars.
//!
//! In each round the polite program runs alone and beside the flood, in an order that changes. Its fair share of the
//! lane is half of what both carry: lanes are shared by program. What the processors take, and not the lane, two other
//! cells show: the same ping-pong over kernel TCP beside the flood, and the ping-pong on the lane beside the same flood
//! over kernel TCP, in which the daemons have nothing else to do.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Args;
use super::loads::{self, stream_client};
use super::place::Place;
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Bar, Better, Kind, Row, Series};
use harness::repo::Repo;

/// Connections of the flood, and bytes of its messages.
const CONNECTIONS: u32 = 1000;
const FLOOD_BYTES: u32 = 16 << 10;
/// Bytes of a write of the polite program's stream, and of its ping-pong.
const STREAM_BYTES: u32 = 64 << 10;
const PING_BYTES: u32 = 64;
/// Seconds of one measurement.
const SECONDS: f64 = 1.0;
/// The polite program keeps this part of its fair share.
const SHARE: f64 = 0.9;
/// Its ping-pong takes at most so many times what it takes alone, at p99.
const SLOWER: f64 = 2.0;
/// Opening the connections takes its time, on a busy machine more.
const LIMIT: Duration = Duration::from_secs(180);
/// All on the lane, which is what is shared; room for the rings of the flood. With several engines each program has one.
fn config(engines: u32) -> String {
    let keys = format!("tcp_direct = \"off\"\nengines = {engines}\nengines_by = \"programs\"\n");
    // Each engine has its part of a program's rings.
    let rings = u64::from(engines) << 34;
    format!("{keys}[limits]\nring_memory_per_app_max = {rings}\n")
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (rounds, seconds) = (args.rounds(), args.seconds(SECONDS));
    let place = Place::two_hosts(repo, "fairness", args.mtu, &config(args.engines))?;
    let (mut alone, mut beside, mut tcp_alone, mut beside_tcp) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds {
        for step in 0..2 {
            if (round + step) % 2 == 0 {
                alone.push(polite(&place, seconds, None)?);
                tcp_alone.push(ping(&place, "tcp", seconds)?);
            } else {
                beside.push(beside_flood(&place, "raas", |flood| polite(&place, seconds, Some(flood)))?);
                beside_tcp.push(beside_flood(&place, "tcp", |_| ping(&place, "raas", seconds))?);
            }
        }
        println!("round {} of {rounds} done", round + 1);
    }
    let setting = json!({
        "seconds": seconds, "link": "veth", "mtu": args.mtu, "engines": args.engines, "flood_connections": CONNECTIONS,
        "flood_bytes": FLOOD_BYTES, "stream_bytes": STREAM_BYTES, "ping_bytes": PING_BYTES,
    });
    Ok(Findings { rounds, setting, rows: rows(&alone, &beside, &tcp_alone, &beside_tcp), ..Findings::default() })
}

/// What the polite program reached in a round.
#[derive(Debug, Clone, Copy)]
struct Polite {
    gbit_per_s: f64,
    trip: Trip,
    /// What the flood reached meanwhile.
    flood_gbit_per_s: f64,
    /// The same ping-pong over kernel TCP, beside the flood.
    tcp: Option<Trip>,
}

/// Half round trips, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Trip {
    p50_us: f64,
    p99_us: f64,
}

fn rows(alone: &[Polite], beside: &[Polite], tcp_alone: &[Trip], beside_tcp: &[Trip]) -> Vec<Row> {
    let of = |list: &[Polite], value: fn(&Polite) -> f64| list.iter().map(value).collect::<Vec<_>>();
    let row = |case: &str, unit: &str, better, (ours, rival, rival_values): (_, &str, _), bar: Option<Bar>| Row {
        series: Series { case: case.into(), unit: unit.into(), better, ours, rival: rival.into(), rival_values },
        bar: bar.map(|bar| (bar, Kind::Must)),
    };
    let share = of(beside, |b| f64::midpoint(b.gbit_per_s, b.flood_gbit_per_s));
    let stream = (of(beside, |b| b.gbit_per_s), "half of both", share);
    let [p50, p99] = [|b: &Polite| b.trip.p50_us, |b: &Polite| b.trip.p99_us];
    let tcp: Vec<Trip> = beside.iter().filter_map(|b| b.tcp).collect();
    let p99s = |trips: &[Trip]| trips.iter().map(|trip| trip.p99_us).collect::<Vec<_>>();
    let lower = |case, pair, bar| row(case, "us", Better::Lower, pair, bar);
    vec![
        row("a stream beside 1,000", "gbit_per_s", Better::Higher, stream, Some(Bar::RatioAtLeast(SHARE))),
        lower("p99 of 64 B beside 1,000", (of(beside, p99), "alone", of(alone, p99)), Some(Bar::RatioAtMost(SLOWER))),
        lower("p50 of 64 B beside 1,000", (of(beside, p50), "alone", of(alone, p50)), None),
        lower("p99 of 64 B, not on the lane", (of(beside, p99), "kernel TCP beside 1,000", p99s(&tcp)), None),
        lower("p99 of kernel TCP beside 1,000", (p99s(&tcp), "kernel TCP alone", p99s(tcp_alone)), None),
        lower("p99 of 64 B beside 1,000 on kernel TCP", (p99s(beside_tcp), "alone", of(alone, p99)), None),
    ]
}

fn server(place: &Place, transport: &str) -> Result<(Beside, String)> {
    loads::stream_server(place, transport, &any_port(place))
}

/// A client of a test of its own.
fn client(place: &Place, (transport, test, size): (&str, &str, u32), to: &str, seconds: f64) -> std::process::Command {
    let (size, seconds) = (size.to_string(), seconds.to_string());
    stream_client(place, transport, to, &[test, "--announce", "--size", &size, "--seconds", &seconds])
}

fn number(report: &Value, key: &str) -> Result<f64> {
    report[key].as_f64().with_context(|| format!("no {key} in {report}"))
}

fn ping(place: &Place, transport: &str, seconds: f64) -> Result<Trip> {
    let (server, to) = server(place, transport)?;
    let report = loads::report(&mut client(place, (transport, "lat", PING_BYTES), &to, seconds), LIMIT)?;
    server.end();
    Ok(Trip { p50_us: number(&report, "p50_us")?, p99_us: number(&report, "p99_us")? })
}

/// Gigabits a second of a stream, and of the flood in the same time.
fn stream(place: &Place, seconds: f64, mut flood: Option<&mut Beside>) -> Result<(f64, f64)> {
    let (server, to) = server(place, "raas")?;
    let mut client = Beside::start(&mut client(place, ("raas", "bw", STREAM_BYTES), &to, seconds))?;
    let mut sent = || flood.as_deref_mut().map_or(Ok(0), messages);
    client.wait_line("measuring", LIMIT)?;
    let (before, begin) = (sent()?, Instant::now());
    client.wait_line("measured", LIMIT)?;
    let (bytes, took) = ((sent()? - before) as f64 * f64::from(FLOOD_BYTES), begin.elapsed());
    let report = client.wait_line("{", READY_WITHIN)?;
    client.finish(READY_WITHIN)?;
    server.end();
    let report = serde_json::from_str(&format!("{{{report}")).context("the client's report is not JSON")?;
    Ok((number(&report, "gbit_per_s")?, bytes * 8.0 / 1e9 / took.as_secs_f64()))
}

/// A stream, then ping-pongs.
fn polite(place: &Place, seconds: f64, mut flood: Option<&mut Beside>) -> Result<Polite> {
    let (gbit_per_s, flood_gbit_per_s) = stream(place, seconds, flood.as_deref_mut())?;
    let tcp = flood.map(|_| ping(place, "tcp", seconds)).transpose()?;
    Ok(Polite { gbit_per_s, trip: ping(place, "raas", seconds)?, flood_gbit_per_s, tcp })
}

/// Messages that the flood has sent so far.
fn messages(flood: &mut Beside) -> Result<u64> {
    flood.say("how many")?;
    Ok(flood.wait_line("messages ", READY_WITHIN)?.parse()?)
}

/// Measures beside the flood, which goes over this transport.
fn beside_flood<T>(place: &Place, transport: &str, measure: impl FnOnce(&mut Beside) -> Result<T>) -> Result<T> {
    let (server, to) = server(place, transport)?;
    let (size, count) = (FLOOD_BYTES.to_string(), CONNECTIONS.to_string());
    let words = ["flood", "--connections", &count, "--size", &size, "--seconds", "1"];
    let mut flood = Beside::start(&mut stream_client(place, transport, &to, &words))?;
    flood.wait_line("flooding ", LIMIT)?;
    let measured = measure(&mut flood)?;
    flood.finish(LIMIT)?;
    server.end();
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    #[test]
    fn a_share_is_half_of_both_and_a_ping_is_beside_itself() {
        let trip = |p99_us| Trip { p50_us: 9.0, p99_us };
        let of = |gbit_per_s, p99_us, flood_gbit_per_s| {
            [Polite { gbit_per_s, trip: trip(p99_us), flood_gbit_per_s, tcp: Some(trip(60.0)) }; 9]
        };
        let alone = of(9.0, 20.0, 0.0);
        let verdicts = |beside: &[Polite]| {
            rows(&alone, beside, &[trip(30.0); 9], &[trip(50.0); 9]).iter().map(Row::verdict).collect::<Vec<_>>()
        };
        let (met, missed) = (Some(Verdict::Met), Some(Verdict::Missed));
        assert_eq!(verdicts(&of(3.0, 39.0, 3.2)), [met, met, None, None, None, None]);
        assert_eq!(verdicts(&of(1.0, 41.0, 3.2)), [missed, missed, None, None, None, None]);
    }
}
