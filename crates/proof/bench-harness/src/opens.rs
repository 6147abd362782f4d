//! Cases of bench `connections`: opening a connection between two hosts, using it once and closing it, beside blocking
//! kernel TCP in the same rounds. Owns the bars.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Args;
use super::loads::{stream_client, stream_server};
use super::place::Place;
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Bar, Better, Kind, Row, Series};

/// Bytes of the one message, each way.
const SIZE: u32 = 64;
/// Beyond the time of a run: a busy machine, and batches that were begun.
const SLACK: Duration = Duration::from_secs(60);

/// Programs that open at the same time, each toward a server of its own, and how many connections each has at a time.
struct Case {
    name: &'static str,
    programs: u32,
    at_a_time: u32,
}

const CASES: [Case; 4] = [
    Case { name: "open, use, close, 1 program", programs: 1, at_a_time: 1 },
    Case { name: "open, use, close, 8 programs", programs: 8, at_a_time: 1 },
    Case { name: "open 1000, use, close, 1 program", programs: 1, at_a_time: 1000 },
    Case { name: "open 1000, use, close, 8 programs", programs: 8, at_a_time: 125 },
];

/// Measures those that were asked for.
pub(super) fn run(args: &Args, place: &Place, (rounds, seconds): (u32, f64), findings: &mut Findings) -> Result<()> {
    for case in CASES.iter().filter(|case| args.wants(case.name)) {
        let (mut ours, mut theirs) = (vec![], vec![]);
        for round in 0..rounds {
            for step in 0..2 {
                let (transport, values) =
                    if (round + step) % 2 == 0 { ("raas", &mut ours) } else { ("tcp", &mut theirs) };
                let measured = measure(place, case, transport, seconds);
                values.push(measured.with_context(|| format!("{} over {transport}", case.name))?);
            }
        }
        println!("{}: {rounds} rounds done", case.name);
        findings.rows.extend(rows(case, ours, theirs));
    }
    Ok(())
}

fn rows(case: &Case, ours: Vec<f64>, rival_values: Vec<f64>) -> [Row; 2] {
    let (case, unit, rival) = (case.name.to_owned(), "us".to_owned(), "tcp".to_owned());
    let series = Series { case, unit, better: Better::Lower, ours, rival, rival_values };
    let row = |most, kind| Row { series: series.clone(), bar: Some((Bar::RatioAtMost(most), kind)) };
    [row(2.5, Kind::Must), row(1.0, Kind::Goal)]
}

/// Microseconds of one connection, all programs together.
fn measure(place: &Place, case: &Case, transport: &str, seconds: f64) -> Result<f64> {
    let [size, at_a_time] = [SIZE, case.at_a_time].map(|n| n.to_string());
    let seconds_text = seconds.to_string();
    let words = ["opens", "--size", &size, "--connections", &at_a_time, "--seconds", &seconds_text];
    let mut both = vec![];
    for _ in 0..case.programs {
        let (server, to) = stream_server(place, transport, &any_port(place))?;
        both.push((server, Beside::start(&mut stream_client(place, transport, &to, &words))?));
    }
    for (_, client) in &mut both {
        client.wait_line("warm", READY_WITHIN)?;
    }
    for (_, client) in &mut both {
        client.say("go")?;
    }
    let within = Duration::from_secs_f64(seconds) + SLACK;
    let mut a_second = 0.0;
    for (_, client) in &mut both {
        let report = client.wait_line("{", within)?;
        let report: Value = serde_json::from_str(&format!("{{{report}"))?;
        let path = if transport == "raas" { "lane" } else { transport };
        ensure!(report["path"] == path, "the bytes went over {}, not {path}", report["path"]);
        a_second += 1e6 / report["us"].as_f64().context("a time")?;
    }
    both.into_iter().for_each(|(server, client)| {
        client.end();
        server.end();
    });
    Ok(1e6 / a_second)
}
