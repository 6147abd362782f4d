//! Bench `peers`: one daemon with 1, 16, 64 and 200 others, each a process with an address of its own; what an idle lane
//! costs, and how long one at rest takes to wake. Owns the bars; the measuring is in bench/src/peersbench. All daemons share
//! the processors of one machine, so many of them stand beside as many bare relays.

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
/// What is told of each number of peers.
const FIGURES: [(&str, &str); 7] = [
    ("throughput", "gbit_per_s"),
    ("bare relays", "bare_gbit_per_s"),
    ("processor time of the one daemon", "center_seconds_per_gb"),
    ("processor time of the one bare relay", "bare_center_seconds_per_gb"),
    ("processor time of all others", "peers_seconds_per_gb"),
    ("times on a processor of the one daemon", "center_runs_per_message"),
    ("times on a processor of all others", "peers_runs_per_message"),
];
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
    let (bench, raas) = (program("bench"), program("raas"));
    let (rounds, seconds) = (args.rounds().to_string(), args.seconds(SECONDS).to_string());
    let (peers, idle) = if args.quick { PEERS_QUICK } else { PEERS };
    let mut words = vec!["--net"];
    if !rustix::process::geteuid().is_root() {
        words.extend(["--user", "--map-root-user"]);
    }
    // Sessions with hundreds of daemons take descriptors.
    words.extend(["sh", "-c", "ulimit -n $(ulimit -Hn); exec \"$@\"", "sh"]);
    words.extend([bench.as_str(), "peersbench", "--raas", &raas, "--rounds", &rounds, "--seconds", &seconds]);
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
        for (what, unit) in FIGURES {
            let values = numbers(&case[unit]);
            let s = spread(&values).with_context(|| format!("{} peers have no {unit}", case["peers"]))?;
            findings.figures.push(json!({
                "case": format!("{} peers, {what}", case["peers"]), "unit": unit, "values": values, "median": s.median,
            }));
        }
    }
    let (most, base) = (cases.last().context("no cases")?, cases.get(BASE).context("too few cases")?);
    findings.rows.extend(rows_of_many(most, base));
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

/// The most peers beside fewer: all daemons on this machine's processors, which bare relays share in the same way, and the
/// work of the one daemon in the middle, which is its own.
fn rows_of_many(most: &Value, base: &Value) -> [Row; 3] {
    let share = |of: &str| -> Vec<f64> {
        numbers(&most[of]).into_iter().zip(numbers(&base[of])).map(|(most, base)| most / base).collect()
    };
    let (case, of_base) = (format!("{} peers", most["peers"]), format!("{} peers", base["peers"]));
    let plain = Series {
        case: case.clone(),
        unit: "gbit_per_s".to_owned(),
        better: Better::Higher,
        ours: numbers(&most["gbit_per_s"]),
        rival: of_base.clone(),
        rival_values: numbers(&base["gbit_per_s"]),
    };
    let beside_bare = Series {
        case: format!("{case}, of {of_base}"),
        unit: "share".to_owned(),
        better: Better::Higher,
        ours: share("gbit_per_s"),
        rival: "as many bare relays".to_owned(),
        rival_values: share("bare_gbit_per_s"),
    };
    let own_work = Series {
        case: format!("{case}, processor time of the one daemon, of {of_base}"),
        unit: "share".to_owned(),
        better: Better::Lower,
        ours: share("center_seconds_per_gb"),
        rival: "as many bare relays".to_owned(),
        rival_values: share("bare_center_seconds_per_gb"),
    };
    [
        Row { series: plain, bar: None },
        Row { series: beside_bare, bar: Some((Bar::RatioAtLeast(SHARE_MIN), Kind::Must)) },
        Row { series: own_work, bar: Some((Bar::RatioAtMost(1.0 / SHARE_MIN), Kind::Must)) },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    fn file(most: f64, bare: f64, work: f64, idle: f64) -> Value {
        let case = |peers: u32, value: f64, bare: f64, work: f64| {
            let nine = |value: f64| vec![value; 9];
            json!({
                "peers": peers, "gbit_per_s": nine(value), "bare_gbit_per_s": nine(bare),
                "center_seconds_per_gb": nine(work), "bare_center_seconds_per_gb": nine(0.2), "peers_seconds_per_gb": nine(1.0),
                "center_runs_per_message": nine(1.0), "peers_runs_per_message": nine(2.0),
            })
        };
        let cases = [case(1, 9.0, 20.0, 0.3), case(16, 8.0, 20.0, 0.4), case(200, most, bare, work)];
        json!({
            "rounds": 9, "connections": 400, "cases": cases,
            "idle": {"idle_bytes": vec![idle; 9], "resting_bytes": vec![1.0; 9], "wake_ms": vec![2.0; 9], "cores": [0.0001]},
        })
    }

    #[test]
    fn many_peers_are_judged_beside_as_many_relays_and_lanes_by_their_limits() -> Result<()> {
        let verdicts = |file: Value| -> Result<Vec<_>> { Ok(findings(&file)?.rows.iter().map(Row::verdict).collect()) };
        let (met, missed) = (Some(Verdict::Met), Some(Verdict::Missed));
        // Half of what 16 carry, and bare relays lose half as well.
        assert_eq!(verdicts(file(4.0, 10.0, 0.5, 40_000.0))?, [None, met, met, met, met, met]);
        assert_eq!(verdicts(file(3.0, 10.0, 0.4, 40_000.0))?, [None, missed, met, met, met, met]);
        assert_eq!(verdicts(file(6.0, 20.0, 0.6, 70_000.0))?, [None, missed, missed, missed, met, met]);
        assert_eq!(findings(&file(6.5, 20.0, 0.4, 1.0))?.figures.len(), 3 * FIGURES.len() + 1);
        assert!(findings(&json!({"rounds": 1, "cases": []})).is_err());
        Ok(())
    }
}
