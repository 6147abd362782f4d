//! Bench `connections`: messages of 16 KiB on many connections between two namespaces, in turn, beside the same on a
//! few; the same NIC with one queue pair for each connection; what a resting connection costs the daemons; and `opens`.
//! Owns the bars of all but these.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Args;
use super::loads::{self, stream_client, stream_server};
use super::memory::{self, Cost};
use super::opens;
use super::place::{End, Place};
use super::process::Beside;
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Bar, Better, Kind, Row, Series, spread};
use harness::repo::Repo;

const SIZE: u32 = 16 << 10;
/// Numbers of connections, each measured beside [`BASE`].
const COUNTS: [u32; 6] = [1, 10, 100, 1000, 4000, 20_000];
const BASE: u32 = 10;
/// The number that the bars are about.
const JUDGED: u32 = 1000;
/// The number that the goal is about.
const GOAL: u32 = 20_000;
/// Largest number of a quick run.
const QUICK_MAX: u32 = 1000;
/// Seconds of half a round.
const SECONDS: f64 = 0.3;
/// How long connections rest before the daemons are looked at.
const REST: Duration = Duration::from_secs(2);
/// A resting connection may cost so much of a daemon's memory.
const IDLE_BYTES_MAX: f64 = 12.0 * 1024.0;
/// Descriptors for 1,000 connections that are no descriptor for each: chunks of rings.
const DESCRIPTORS_MAX: f64 = 20.0;
/// Opening thousands of connections takes its time, on a busy machine more.
const LIMIT: Duration = Duration::from_secs(180);
/// Rings of 64 KiB, so that those of 20,000 connections fit this machine's memory.
const CONFIG: &str = "ring_bytes = 65536\n[limits]\nring_memory_per_app_max = 17179869184\n";
/// Rings of one message. In larger ones the messages of a few connections lie behind each other and leave several in
/// one WRITE, which those of a thousand that are written in turn never do; here neither do.
const CONFIG_ALONE: &str = "ring_bytes = 16384\n";

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (rounds, seconds) = (args.rounds(), args.seconds(SECONDS));
    let place = Place::two_hosts(repo, "connections", args.mtu, CONFIG)?;
    let mut findings = Findings { rounds, ..Findings::default() };
    findings.setting = json!({ "seconds": seconds, "size_bytes": SIZE, "base": BASE, "link": "veth", "mtu": args.mtu, "ring_bytes": 65536 });
    for count in COUNTS.into_iter().filter(|count| !args.quick || *count <= QUICK_MAX) {
        if args.wants(&format!("{count} connections")) {
            let report = compare(&place, count, BASE.min(count), rounds, seconds)?;
            println!("{count} connections: {rounds} rounds done");
            findings.rows.extend(rows(&report, count));
            findings.figures.push(figure(&report));
        }
    }
    if args.wants("queue pairs") {
        findings.rows.push(beside_queue_pairs(&place, rounds, seconds)?);
        println!("one queue pair for each: {rounds} rounds done");
    }
    opens::run(args, &place, (rounds, seconds), &mut findings)?;
    if args.wants("memory") {
        let costs = (0..rounds).map(|_| resting(&place)).collect::<Result<Vec<_>>>()?;
        findings.rows.extend(memory_rows(&costs));
        findings
            .figures
            .extend(costs.first().map(|cost| json!({ "case": "memory", "of_a_connection": cost.to_json() })));
        println!("memory: {rounds} rounds done");
    }
    drop(place);
    if args.wants("rings of one message") {
        let place = Place::two_hosts(repo, "connections-alone", args.mtu, CONFIG_ALONE)?;
        let mut figure = figure(&compare(&place, JUDGED, BASE, rounds, seconds)?);
        figure["case"] = json!(format!("{JUDGED} connections, rings of one message"));
        println!(
            "{JUDGED} connections, rings of one message: {rounds} rounds done, {} of {BASE} connections",
            figure["ratio"]
        );
        findings.figures.push(figure);
    }
    Ok(findings)
}

/// A server, and a client with the words of its test; the client's report.
fn client(place: &Place, words: &[&str]) -> Result<Value> {
    let (server, to) = stream_server(place, "raas", &any_port(place))?;
    let report = loads::report(&mut stream_client(place, "raas", &to, words), LIMIT)?;
    server.end();
    Ok(report)
}

fn compare(place: &Place, count: u32, base: u32, rounds: u32, seconds: f64) -> Result<Value> {
    let [size, count, base, rounds] = [SIZE, count, base, rounds].map(|n| n.to_string());
    let seconds = seconds.to_string();
    let words = ["many", "--size", &size, "--connections", &count, "--base", &base, "--rounds", &rounds];
    client(place, &[&words[..], &["--seconds", &seconds]].concat()).with_context(|| format!("{count} connections"))
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().map_or(vec![], |list| list.iter().filter_map(Value::as_f64).collect())
}

fn rows(report: &Value, count: u32) -> Option<Row> {
    let (bar, kind) = match count {
        JUDGED => (0.95, Kind::Must),
        GOAL => (0.9, Kind::Goal),
        _ => return None,
    };
    let series = Series {
        case: format!("{count} connections, 16 KiB messages"),
        unit: "gbit_per_s".to_owned(),
        better: Better::Higher,
        ours: numbers(&report["gbit_per_s"]),
        rival: format!("{BASE} connections"),
        rival_values: numbers(&report["base_gbit_per_s"]),
    };
    Some(Row { series, bar: Some((Bar::RatioAtLeast(bar), kind)) })
}

fn figure(report: &Value) -> Value {
    let (all, base) = (numbers(&report["gbit_per_s"]), numbers(&report["base_gbit_per_s"]));
    let ratios: Vec<f64> = all.iter().zip(&base).map(|(a, b)| a / b).collect();
    let median = |values: &[f64]| spread(values).map(|s| s.median);
    json!({
        "case": format!("{} connections", report["connections"]), "gbit_per_s": median(&all),
        "base": report["base"], "base_gbit_per_s": median(&base), "ratio": median(&ratios),
        "open_seconds": report["open_seconds"],
    })
}

/// The service beside the bare NIC with one queue pair for each of as many connections.
fn beside_queue_pairs(place: &Place, rounds: u32, seconds: f64) -> Result<Row> {
    let (mut ours, mut theirs) = (vec![], vec![]);
    for round in 0..rounds {
        for step in 0..2 {
            if (round + step) % 2 == 0 {
                let report = compare(place, JUDGED, JUDGED, 1, seconds)?;
                ours.extend(numbers(&report["gbit_per_s"]));
            } else {
                theirs.push(queue_pairs(place, JUDGED, seconds)?);
            }
        }
    }
    let series = Series {
        case: format!("{JUDGED} connections beside the bare NIC"),
        unit: "gbit_per_s".to_owned(),
        better: Better::Higher,
        ours,
        rival: "queue pair each".to_owned(),
        rival_values: theirs,
    };
    Ok(Row { series, bar: Some((Bar::RatioAtLeast(0.9), Kind::Must)) })
}

fn queue_pairs(place: &Place, count: u32, seconds: f64) -> Result<f64> {
    let own = |end| ["qpbench", "--address", place.address(end)];
    let (server, to) = loads::serve(place, End::Server, &own(End::Server))?;
    let [count, size] = [count, SIZE].map(|n| n.to_string());
    let seconds = seconds.to_string();
    let words = ["--to", &to, "--connections", &count, "--size", &size, "--seconds", &seconds];
    let words = [&own(End::Client)[..], &words].concat();
    let report = loads::report(&mut loads::command(place, End::Client, &words), LIMIT)?;
    server.end();
    report["gbit_per_s"].as_f64().context("qpbench measured nothing")
}

/// What [`JUDGED`] resting connections cost the daemon that they cost most.
fn resting(place: &Place) -> Result<Cost> {
    // A few come and go first, so that what the first connection makes is not counted.
    hold(place, BASE, || Ok(()))?;
    let before = place.daemon_pids().into_iter().map(memory::of).collect::<Result<Vec<_>>>()?;
    let after = hold(place, JUDGED, || {
        std::thread::sleep(REST);
        place.daemon_pids().into_iter().map(memory::of).collect::<Result<Vec<_>>>()
    })?;
    let costs = before.iter().zip(&after).map(|(before, after)| after.since(before, JUDGED));
    costs.max_by(|a, b| a.bytes().total_cmp(&b.bytes())).context("no daemon")
}

/// Looks while so many connections rest that have carried something.
fn hold<T>(place: &Place, count: u32, look: impl FnOnce() -> Result<T>) -> Result<T> {
    let (server, to) = stream_server(place, "raas", &any_port(place))?;
    let [count, size] = [count, SIZE].map(|n| n.to_string());
    let words = ["hold", "--connections", &count, "--size", &size, "--seconds", "1"];
    let mut client = Beside::start(&mut stream_client(place, "raas", &to, &words))?;
    client.wait_line("holding ", LIMIT)?;
    let seen = look()?;
    client.end();
    server.end();
    Ok(seen)
}

fn memory_rows(costs: &[Cost]) -> Vec<Row> {
    let row = |case: &str, unit: &str, ours: Vec<f64>, limit: f64, rival: &str| Row {
        series: Series {
            case: case.to_owned(),
            unit: unit.to_owned(),
            better: Better::Lower,
            rival_values: vec![limit; ours.len()],
            ours,
            rival: rival.to_owned(),
        },
        bar: Some((Bar::RatioAtMost(1.0), Kind::Must)),
    };
    // Where the daemons held less afterwards than before, less than can be measured was used: a byte.
    let bytes = costs.iter().map(|cost| cost.bytes().max(1.0)).collect();
    // None at all would be no measured value; one is added to both sides.
    let descriptors = costs.iter().map(|cost| cost.descriptors * f64::from(JUDGED) + 1.0).collect();
    vec![
        row("memory of a resting connection", "bytes", bytes, IDLE_BYTES_MAX, "limit"),
        row("descriptors of 1,000 connections, and 1", "descriptors", descriptors, DESCRIPTORS_MAX + 1.0, "limit"),
    ]
}
