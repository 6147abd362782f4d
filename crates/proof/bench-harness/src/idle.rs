//! Bench `idle`: what two daemons that are joined by a lane cost the processor while nobody wants anything. Owns the
//! bar.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::Args;
use super::loads::{stream_client, stream_server};
use super::place::Place;
use super::process::{Beside, READY_WITHIN};
use super::report::Findings;
use super::rivals::any_port;
use super::stats::{Bar, Better, Kind, Row, Series};
use harness::repo::Repo;

/// Share of a core that a daemon may take.
const SHARE_MAX: f64 = 0.005;
/// Seconds of a round.
const SECONDS: f64 = 2.0;
/// Connections that rest in the second case.
const CONNECTIONS: u32 = 100;
/// From the last work to the first look.
const REST: Duration = Duration::from_secs(2);

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (rounds, seconds) = (args.rounds(), args.seconds(SECONDS));
    let place = Place::two_hosts(repo, "idle", args.mtu, "")?;
    let mut findings = Findings { rounds, setting: json!({ "seconds": seconds }), ..Findings::default() };
    findings.rows.push(row("no program", &look(&place, rounds, seconds)?));
    let (server, to) = stream_server(&place, "raas", &any_port(&place))?;
    let count = CONNECTIONS.to_string();
    let hold = ["hold", "--size", "64", "--seconds", "1", "--connections", &count];
    let mut client = Beside::start(&mut stream_client(&place, "raas", &to, &hold))?;
    client.wait_line("holding ", READY_WITHIN)?;
    findings.rows.push(row("100 resting connections", &look(&place, rounds, seconds)?));
    client.end();
    server.end();
    Ok(findings)
}

/// Shares of a core, of the daemon that takes more, round by round.
fn look(place: &Place, rounds: u32, seconds: f64) -> Result<Vec<f64>> {
    std::thread::sleep(REST);
    let pids = place.daemon_pids();
    let now = || pids.iter().map(|pid| cpu_seconds(*pid)).collect::<Result<Vec<_>>>();
    let mut shares = vec![];
    for _ in 0..rounds {
        let (before, begin) = (now()?, Instant::now());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let took = begin.elapsed().as_secs_f64();
        let most = now()?.iter().zip(&before).map(|(after, before)| (after - before) / took).fold(0.0, f64::max);
        // None at all would be no measured value.
        shares.push(most.max(1e-9));
    }
    Ok(shares)
}

/// Processor time of a process so far.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut ns = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("a daemon's threads")?.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat"))?;
        let first: f64 = text.split_whitespace().next().and_then(|word| word.parse().ok()).context("schedstat")?;
        ns += first;
    }
    Ok(ns / 1e9)
}

fn row(case: &str, shares: &[f64]) -> Row {
    let series = Series {
        case: format!("idle daemon, {case}"),
        unit: "cores".to_owned(),
        better: Better::Lower,
        ours: shares.to_vec(),
        rival: "limit".to_owned(),
        rival_values: vec![SHARE_MAX; shares.len()],
    };
    Row { series, bar: Some((Bar::RatioAtMost(1.0), Kind::Must)) }
}
