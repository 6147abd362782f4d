//! Bench `faults`: how long applications wait when an application or a daemon dies, a lane is reset, a partition heals,
//! an interface goes down and comes up.
//! Owns the limits; the measuring is in bench/src/faultbench.

use super::Args;
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series, spread};
use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Of one round, with a partition of twelve seconds in it.
const ROUND_LIMIT: Duration = Duration::from_secs(180);

/// Cases with a limit, in milliseconds.
const LIMITS_MS: [(&str, f64); 8] = [
    ("application-death", 1000.0),
    ("lane-reset-pause", 100.0),
    ("daemon-death", 1000.0),
    ("both-daemons-death", 1000.0),
    ("interface-down", 1000.0),
    ("interface-up", 1000.0),
    ("roce-interface-down", 1000.0),
    ("roce-interface-up", 1000.0),
];

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let packages = ["build", "--release", "--package", "bench", "--package", "raas-cli"];
    let build = child::run_quiet(&mut repo.command("cargo", &packages), BUILD_LIMIT)?;
    ensure!(build.success(), "building faultbench: {}\n{}", build.describe(), build.text(Stream::Err));
    let program = |name: &str| repo.target.join("release").join(name).to_string_lossy().into_owned();
    let (bench, raas, rounds) = (program("bench"), program("raas"), args.rounds().to_string());
    // The partition takes loopback down, which nobody else may notice.
    let mut words = vec!["--net"];
    if !rustix::process::geteuid().is_root() {
        words.extend(["--user", "--map-root-user"]);
    }
    words.extend([bench.as_str(), "faultbench", "run", "--raas", &raas, "--rounds", &rounds]);
    if let Some(only) = &args.only {
        words.extend(["--only", only]);
    }
    let limit = ROUND_LIMIT * args.rounds();
    let ended = child::run(&mut repo.command("unshare", &words), limit, |stream, line| {
        if stream == Stream::Err {
            println!("{line}");
        }
    })?;
    ensure!(ended.success(), "faultbench failed: {}", ended.describe());
    let text = ended.text(Stream::Out);
    findings(&serde_json::from_str(&text).context("faultbench's results are not JSON")?)
}

/// Cases with a limit become rows whose rival is the limit; the others are figures.
fn findings(file: &Value) -> Result<Findings> {
    let mut findings = Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        setting: json!({ "hosts": "two daemons on loopback in a network namespace", "device": "softnic" }),
        ..Findings::default()
    };
    for case in file["cases"].as_array().context("the results have no cases")? {
        let name = case["case"].as_str().context("a case without a name")?;
        let values: Vec<f64> = case["values"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let s = spread(&values).with_context(|| format!("{name} has no values"))?;
        findings.figures.push(json!({
            "case": name, "unit": "ms", "values": values, "median": s.median, "p10": s.p10, "p90": s.p90,
        }));
        if let Some((_, limit)) = LIMITS_MS.iter().find(|(n, _)| *n == name) {
            let series = Series {
                case: name.to_owned(),
                unit: "ms".to_owned(),
                better: Better::Lower,
                rival: "limit".to_owned(),
                rival_values: vec![*limit; values.len()],
                ours: values,
            };
            findings.rows.push(Row { series, bar: Some((Bar::RatioAtMost(1.0), Kind::Must)) });
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    #[test]
    fn cases_with_a_limit_are_judged_and_all_are_figures() -> Result<()> {
        let case = |name: &str, value: f64| json!({"case": name, "unit": "ms", "values": vec![value; 9]});
        let file = json!({"rounds": 9, "cases": [
            case("application-death", 3.0), case("lane-reset-pause", 101.0), case("heal-short-partition", 400.0),
        ]});
        let found = findings(&file)?;
        let verdicts: Vec<_> = found.rows.iter().map(Row::verdict).collect();
        assert_eq!(verdicts, [Some(Verdict::Met), Some(Verdict::Missed)]);
        assert_eq!((found.figures.len(), &found.figures[2]["median"]), (3, &json!(400.0)));
        Ok(())
    }
}
