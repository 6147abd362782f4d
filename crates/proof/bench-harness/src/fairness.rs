//! Bench `fairness`: a program with one connection beside a program that floods 1,000 on the same lane. Owns the bars.
//!
//! In each round the polite program runs alone and beside the flood, in an order that changes. Its fair share of the
//! lane is half of what both carry: lanes are shared by program.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Args;
use super::place::{End, Place};
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Bar, Better, Kind, Row, Series};
use harness::child::{self, Stream};
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
/// All on the lane, which is what is shared; room for the rings of the flood.
const CONFIG: &str = "tcp_direct = \"off\"\n[limits]\nring_memory_per_app_max = 17179869184\n";

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (rounds, seconds) = (args.rounds(), args.seconds(SECONDS));
    let place = Place::two_hosts(repo, "fairness", args.mtu, CONFIG)?;
    let (mut alone, mut beside) = (vec![], vec![]);
    for round in 0..rounds {
        for step in 0..2 {
            if (round + step) % 2 == 0 {
                alone.push(polite(&place, seconds, None)?);
            } else {
                beside.push(beside_flood(&place, seconds)?);
            }
        }
        println!("round {} of {rounds} done", round + 1);
    }
    let setting = json!({
        "seconds": seconds, "link": "veth", "mtu": args.mtu, "flood_connections": CONNECTIONS,
        "flood_bytes": FLOOD_BYTES, "stream_bytes": STREAM_BYTES, "ping_bytes": PING_BYTES,
    });
    Ok(Findings { rounds, setting, rows: rows(&alone, &beside), ..Findings::default() })
}

/// What the polite program reached in a round.
#[derive(Debug, Clone, Copy)]
struct Polite {
    gbit_per_s: f64,
    p99_us: f64,
    /// What the flood reached meanwhile.
    flood_gbit_per_s: f64,
}

fn rows(alone: &[Polite], beside: &[Polite]) -> Vec<Row> {
    let of = |list: &[Polite], value: fn(&Polite) -> f64| list.iter().map(value).collect::<Vec<_>>();
    let row = |case: &str, unit: &str, better, (ours, rival, rival_values): (_, &str, _), bar| Row {
        series: Series { case: case.into(), unit: unit.into(), better, ours, rival: rival.into(), rival_values },
        bar: Some((bar, Kind::Must)),
    };
    let share = of(beside, |b| f64::midpoint(b.gbit_per_s, b.flood_gbit_per_s));
    let stream = (of(beside, |b| b.gbit_per_s), "half of both", share);
    let ping = (of(beside, |b| b.p99_us), "alone", of(alone, |a| a.p99_us));
    vec![
        row("a stream beside 1,000", "gbit_per_s", Better::Higher, stream, Bar::RatioAtLeast(SHARE)),
        row("p99 of 64 B beside 1,000", "us", Better::Lower, ping, Bar::RatioAtMost(SLOWER)),
    ]
}

fn server(place: &Place) -> Result<(Beside, String)> {
    let (program, at) = (place.program("sockbench"), any_port(place));
    let words = [&program, "server", "--transport", "raas", "--at", &at];
    let mut server = Beside::start(&mut place.command(End::Server, &words))?;
    let to = server.wait_line("ready ", READY_WITHIN)?;
    Ok((server, to))
}

/// A stream, then a ping-pong. Of the flood is counted what it sends during the stream.
fn polite(place: &Place, seconds: f64, flood: Option<&mut Beside>) -> Result<Polite> {
    let test = |test: &str, size: u32| -> Result<Value> {
        let (server, to) = server(place)?;
        let (program, size, seconds) = (place.program("sockbench"), size.to_string(), seconds.to_string());
        let words = [&program, "client", "--transport", "raas", "--to", &to, "--test", test];
        let words = [&words[..], &["--size", &size, "--seconds", &seconds]].concat();
        let ended = child::run_quiet(&mut place.command(End::Client, &words), LIMIT)?;
        ensure!(ended.success(), "{test}: {}\n{}", ended.describe(), ended.text(Stream::Err));
        server.end();
        serde_json::from_str(&ended.text(Stream::Out)).context("the client's report is not JSON")
    };
    let number = |report: &Value, key: &str| report[key].as_f64().with_context(|| format!("no {key} in {report}"));
    let (stream, flood_gbit_per_s) = match flood {
        Some(flood) => {
            let (before, begin) = (messages(flood)?, Instant::now());
            let stream = test("bw", STREAM_BYTES)?;
            let bytes = (messages(flood)? - before) as f64 * f64::from(FLOOD_BYTES);
            (stream, bytes * 8.0 / 1e9 / begin.elapsed().as_secs_f64())
        }
        None => (test("bw", STREAM_BYTES)?, 0.0),
    };
    let ping = test("lat", PING_BYTES)?;
    Ok(Polite { gbit_per_s: number(&stream, "gbit_per_s")?, p99_us: number(&ping, "p99_us")?, flood_gbit_per_s })
}

/// Messages that the flood has sent so far.
fn messages(flood: &mut Beside) -> Result<u64> {
    flood.say("how many")?;
    Ok(flood.wait_line("messages ", READY_WITHIN)?.parse()?)
}

fn beside_flood(place: &Place, seconds: f64) -> Result<Polite> {
    let (server, to) = server(place)?;
    let (program, size, count) = (place.program("sockbench"), FLOOD_BYTES.to_string(), CONNECTIONS.to_string());
    let words = [&program, "client", "--transport", "raas", "--to", &to, "--test", "flood", "--connections", &count];
    let words = [&words[..], &["--size", &size, "--seconds", "1"]].concat();
    let mut flood = Beside::start(&mut place.command(End::Client, &words))?;
    flood.wait_line("flooding ", LIMIT)?;
    let measured = polite(place, seconds, Some(&mut flood))?;
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
        let alone = [Polite { gbit_per_s: 9.0, p99_us: 20.0, flood_gbit_per_s: 0.0 }; 9];
        let fair = [Polite { gbit_per_s: 3.0, p99_us: 39.0, flood_gbit_per_s: 3.2 }; 9];
        let starved = [Polite { gbit_per_s: 1.0, p99_us: 41.0, flood_gbit_per_s: 3.2 }; 9];
        let verdicts = |beside: &[Polite]| rows(&alone, beside).iter().map(Row::verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&fair), [Some(Verdict::Met); 2]);
        assert_eq!(verdicts(&starved), [Some(Verdict::Missed); 2]);
    }
}
