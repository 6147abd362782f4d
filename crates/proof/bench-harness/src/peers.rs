//! Bench `peers`: one daemon with 1, 16, 64 and 200 others, each a process with an address of its own; what an idle lane
//! costs, and how long one at rest takes to wake. Owns the bars; the measuring is in bench/src/peersbench.

use super::Args;
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series, spread};
use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Of all daemons' starts, and of looks at idle lanes; then of each round.
const START_LIMIT: Duration = Duration::from_secs(300);
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// Seconds of a turn.
const SECONDS: f64 = 0.5;
/// Numbers of peers, and those where idle lanes are looked at; then of a quick run.
const PEERS: (&str, &str) = ("1,16,64,200", "64");
const PEERS_QUICK: (&str, &str) = ("1,4,16", "8");
/// What the most peers are compared with: the second of the list.
const BASE: usize = 1;
/// Of the throughput with [`BASE`].
const SHARE_MIN: f64 = 0.8;
/// An idle lane may cost so much of a daemon's memory.
const IDLE_BYTES_MAX: f64 = 64.0 * 1024.0;
/// A lane at rest may take so long to carry a message.
const WAKE_MS_MAX: f64 = 5.0;

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let packages = ["build", "--release", "--package", "bench", "--package", "raas-cli"];
    let build = child::run_quiet(&mut repo.command("cargo", &packages), BUILD_LIMIT)?;
    ensure!(build.success(), "building peersbench: {}\n{}", build.describe(), build.text(Stream::Err));
    let program = |name: &str| repo.target.join("release").join(name).to_string_lossy().into_owned();
    let (peersbench, raas) = (program("peersbench"), program("raas"));
    let (rounds, seconds) = (args.rounds().to_string(), args.seconds(SECONDS).to_string());
    let (peers, idle) = if args.quick { PEERS_QUICK } else { PEERS };
    let mut words = vec!["--net"];
    if !rustix::process::geteuid().is_root() {
        words.extend(["--user", "--map-root-user"]);
    }
    // Sessions with hundreds of daemons take descriptors.
    words.extend(["sh", "-c", "ulimit -n $(ulimit -Hn); exec \"$@\"", "sh"]);
    words.extend([peersbench.as_str(), "--raas", &raas, "--rounds", &rounds, "--seconds", &seconds]);
    words.extend(["--peers", peers, "--idle-peers", idle]);
    let limit = START_LIMIT + ROUND_LIMIT * args.rounds();
    let ended = child::run(&mut repo.command("unshare", &words), limit, |stream, line| {
        if stream == Stream::Err {
            println!("{line}");
        }
    })?;
    ensure!(ended.success(), "peersbench failed: {}", ended.describe());
    findings(&serde_json::from_str(&ended.text(Stream::Out)).context("peersbench's results are not JSON")?)
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn findings(file: &Value) -> Result<Findings> {
    let mut findings = Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        setting: json!({
            "hosts": "daemons on addresses of loopback in a network namespace", "device": "softnic",
            "connections": file["connections"], "size_bytes": 16384,
        }),
        ..Findings::default()
    };
    let cases = file["cases"].as_array().context("the results have no cases")?;
    for case in cases {
        let values = numbers(&case["gbit_per_s"]);
        let s = spread(&values).with_context(|| format!("{} peers have no values", case["peers"]))?;
        findings.figures.push(json!({
            "case": format!("{} peers", case["peers"]), "unit": "gbit_per_s", "values": values, "median": s.median,
        }));
    }
    let (most, base) = (cases.last().context("no cases")?, cases.get(BASE).context("too few cases")?);
    findings.rows.push(Row {
        series: Series {
            case: format!("{} peers", most["peers"]),
            unit: "gbit_per_s".to_owned(),
            better: Better::Higher,
            ours: numbers(&most["gbit_per_s"]),
            rival: format!("{} peers", base["peers"]),
            rival_values: numbers(&base["gbit_per_s"]),
        },
        bar: Some((Bar::RatioAtLeast(SHARE_MIN), Kind::Must)),
    });
    let idle = &file["idle"];
    let cores = numbers(&idle["cores"]);
    let median = spread(&cores).context("the cost of a link has no values")?.median;
    findings
        .figures
        .push(json!({ "case": "a peer whose lane rests", "unit": "cores", "values": cores, "median": median }));
    for (case, unit, values, limit) in [
        ("memory of an idle lane", "bytes", numbers(&idle["idle_bytes"]), IDLE_BYTES_MAX),
        ("memory of a resting lane", "bytes", numbers(&idle["resting_bytes"]), IDLE_BYTES_MAX),
        ("first message over a resting lane", "ms", numbers(&idle["wake_ms"]), WAKE_MS_MAX),
    ] {
        ensure!(!values.is_empty(), "{case} has no values");
        let series = Series {
            case: case.to_owned(),
            unit: unit.to_owned(),
            better: Better::Lower,
            rival: "limit".to_owned(),
            rival_values: vec![limit; values.len()],
            ours: values,
        };
        findings.rows.push(Row { series, bar: Some((Bar::RatioAtMost(1.0), Kind::Must)) });
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    fn file(most: f64, idle: f64) -> Value {
        let case = |peers: u32, value: f64| json!({"peers": peers, "gbit_per_s": vec![value; 9]});
        json!({
            "rounds": 9, "connections": 400, "cases": [case(1, 9.0), case(16, 8.0), case(64, 7.0), case(200, most)],
            "idle": {"idle_bytes": vec![idle; 9], "resting_bytes": vec![1.0; 9], "wake_ms": vec![2.0; 9], "cores": [0.0001]},
        })
    }

    #[test]
    fn the_most_peers_are_judged_beside_sixteen_and_lanes_by_their_limits() -> Result<()> {
        let verdicts = |file: Value| -> Result<Vec<_>> { Ok(findings(&file)?.rows.iter().map(Row::verdict).collect()) };
        let (met, missed) = (Some(Verdict::Met), Some(Verdict::Missed));
        assert_eq!(verdicts(file(6.5, 40_000.0))?, [met, met, met, met]);
        assert_eq!(verdicts(file(6.3, 70_000.0))?, [missed, missed, met, met]);
        assert_eq!(findings(&file(6.5, 1.0))?.figures.len(), 5);
        assert!(findings(&json!({"rounds": 1, "cases": []})).is_err());
        Ok(())
    }
}
