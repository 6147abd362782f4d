//! Bench `remus`: structures and locks in the memory of two hosts, beside simpler ones on the same device. Owns the
//! bars; the measuring is in bench/src/remusbench.

use super::Args;
use super::figures::data::{Figure, Line, Point, Scale};
use super::figures::{folder, write};
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series};
use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Of one round of all cases, without the time that they measure.
const ROUND_LIMIT: Duration = Duration::from_secs(120);
/// Sides of all cases of a round, rounded up.
const SIDES: u32 = 50;
const SECONDS: f64 = 0.3;
/// What stands below the points of a drawing.
const BELOW: &str = "two hosts, software NIC";

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let measured = Duration::from_secs_f64(args.seconds(SECONDS)) * SIDES;
    let limit = (ROUND_LIMIT + measured) * args.rounds();
    let file = measure(repo, args, ("remusbench", SECONDS), limit)?;
    let findings = findings(&file)?;
    for (locks, figure) in figures(&file) {
        write(&folder(repo, args), &format!("remus-locks-{locks}"), &figure, BELOW)?;
    }
    Ok(findings)
}

/// For each number of locks what every kind of lock reaches, by how many operations are on the thread's own host.
fn figures(file: &Value) -> BTreeMap<u64, Figure> {
    let mut figures = BTreeMap::new();
    for case in file["cases"].as_array().into_iter().flatten() {
        let Some((locks, locality)) = case["case"].as_str().and_then(locks_and_locality) else { continue };
        let figure = figures.entry(locks).or_insert_with(|| Figure {
            number: None,
            title: format!("{locks} locks on two hosts"),
            x: "operations on locks of the thread's own host, %".to_owned(),
            y: "operations/s".to_owned(),
            scale: Scale::Log,
            lines: vec![],
            rows: vec![],
            beside: Value::Null,
        });
        for side in case["sides"].as_array().into_iter().flatten() {
            let name = side["side"].as_str().unwrap_or_default();
            let values = side["values"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
            let point = Point { x: locality, values };
            match figure.lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => figure.lines.push(Line { name: name.to_owned(), points: vec![point] }),
            }
        }
    }
    figures
}

fn locks_and_locality(case: &str) -> Option<(u64, f64)> {
    let (locks, locality) = case.strip_prefix("locks ")?.split_once(", locality ")?;
    Some((locks.parse().ok()?, locality.strip_suffix('%')?.parse().ok()?))
}

/// Runs a program of `bench` that measures rounds by itself, and prints JSON.
pub(super) fn measure(repo: &Repo, args: &Args, (program, seconds): (&str, f64), limit: Duration) -> Result<Value> {
    let packages = ["build", "--release", "--package", "bench"];
    let build = child::run_quiet(&mut repo.command("cargo", &packages), BUILD_LIMIT)?;
    ensure!(build.success(), "building {program}: {}\n{}", build.describe(), build.text(Stream::Err));
    let path = repo.target.join("release/bench").to_string_lossy().into_owned();
    let (rounds, seconds) = (args.rounds().to_string(), args.seconds(seconds).to_string());
    let mut words = super::with_priority(&[&path, program, "--rounds", &rounds, "--seconds", &seconds]);
    if let Some(only) = &args.only {
        words.extend(["--only", only]);
    }
    let (first, rest) = words.split_first().context("no program")?;
    let ended = child::run(&mut repo.command(first, rest), limit, |stream, line| {
        if stream == Stream::Err {
            println!("{line}");
        }
    })?;
    ensure!(ended.success(), "{program} failed: {}", ended.describe());
    serde_json::from_str(&ended.text(Stream::Out)).with_context(|| format!("{program}'s results are not JSON"))
}

/// A row for each rival of each case. The aim is to be as fast as the fastest simple lock at least where most
/// operations are on locks of the own host; elsewhere the ratio is reported.
fn findings(file: &Value) -> Result<Findings> {
    let mut findings = Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        setting: json!({
            "hosts": "two daemons in one process on loopback", "device": "softnic",
            "threads_of_each_host": file["threads_of_each_host"],
        }),
        ..Findings::default()
    };
    for case in file["cases"].as_array().context("the results have no cases")? {
        let name = case["case"].as_str().context("a case without a name")?;
        let sides = case["sides"].as_array().context("a case without sides")?;
        let values = |side: &Value| side["values"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let (ours, rivals) = sides.split_first().context("a case without sides")?;
        for rival in rivals {
            let series = Series {
                case: name.to_owned(),
                unit: "ops/s".to_owned(),
                better: Better::Higher,
                ours: values(ours),
                rival: rival["side"].as_str().unwrap_or_default().to_owned(),
                rival_values: values(rival),
            };
            findings.rows.push(Row { series, bar: has_bar(name).then_some((Bar::RatioAtLeast(1.0), Kind::Goal)) });
        }
    }
    Ok(findings)
}

/// Where structure and lock should win.
fn has_bar(case: &str) -> bool {
    case == "intset" || case.ends_with("locality 95%") || case.ends_with("locality 85%")
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    #[test]
    fn each_rival_is_a_row() -> Result<()> {
        let side = |name: &str, value: f64| json!({ "side": name, "values": vec![value; 9] });
        let sides = json!([side("ALock", 30.0), side("spin lock", 20.0), side("MCS lock", 40.0)]);
        let case = |name: &str| json!({ "case": name, "unit": "ops/s", "sides": sides });
        let cases = [case("locks 20, locality 95%"), case("locks 20, locality 50%")];
        let found = findings(&json!({ "rounds": 9, "threads_of_each_host": 2, "cases": cases }))?;
        let verdicts: Vec<_> = found.rows.iter().map(Row::verdict).collect();
        assert_eq!(verdicts, [Some(Verdict::Met), Some(Verdict::Missed), None, None]);
        Ok(())
    }

    #[test]
    fn each_number_of_locks_is_drawn() {
        let case = |name: &str, value: f64| {
            let sides = ["ALock", "spin lock"].map(|side| json!({ "side": side, "values": [value, value] }));
            json!({ "case": name, "sides": sides })
        };
        let cases = [case("intset", 1.0), case("locks 20, locality 50%", 2.0), case("locks 20, locality 100%", 4.0)];
        let drawn = figures(&json!({ "cases": cases }));
        assert_eq!(drawn.keys().collect::<Vec<_>>(), [&20]);
        let line = drawn[&20].line("spin lock");
        assert_eq!(line.points.iter().map(|p| (p.x, p.values[0])).collect::<Vec<_>>(), [(50.0, 2.0), (100.0, 4.0)]);
    }
}
