//! Bench `kernels`: a lookup in a chain of another host's region, by a kernel and by READs. Owns the bars; the measuring
//! is in bench/src/kernelbench.rs.

use super::Args;
use super::remus::measure;
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series};
use anyhow::{Context, Result};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::time::Duration;

/// Of one round of all cases, without the time that they measure.
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// Sides of all cases of a round.
const SIDES: u32 = 10;
const SECONDS: f64 = 0.3;
/// From this length on a kernel must be faster than READs.
const FASTER_FROM: u64 = 2;
/// A kernel in the longest chain may take so many times what it takes in the shortest, and is flat.
const FLAT: f64 = 1.5;

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let measured = Duration::from_secs_f64(args.seconds(SECONDS)) * SIDES;
    findings(&measure(repo, args, ("kernelbench", SECONDS), (ROUND_LIMIT + measured) * args.rounds())?)
}

fn values(side: &Value) -> Vec<f64> {
    side["values"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// A row for each length beside READs, and one for the longest chain beside the shortest.
fn findings(file: &Value) -> Result<Findings> {
    let mut findings = Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        setting: json!({ "hosts": "two daemons in one process on loopback", "device": "softnic" }),
        ..Findings::default()
    };
    let cases = file["cases"].as_array().context("the results have no cases")?;
    let series = |case: String, ours: &Value, rival: String, rival_values: &Value| Series {
        case,
        unit: "us".to_owned(),
        better: Better::Lower,
        ours: values(ours),
        rival,
        rival_values: values(rival_values),
    };
    for case in cases {
        let name = case["case"].as_str().context("a case without a name")?;
        let length = case["length"].as_u64().context("a case without a length")?;
        let series = series(name.to_owned(), &case["sides"][0], "READs".to_owned(), &case["sides"][1]);
        let bar = (length >= FASTER_FROM).then_some((Bar::RatioAtMost(1.0), Kind::Must));
        findings.rows.push(Row { series, bar });
    }
    if let [first, .., last] = cases.as_slice() {
        let rival = format!("kernel, {}", first["case"].as_str().unwrap_or_default());
        let name = format!("{} by a kernel", last["case"].as_str().unwrap_or_default());
        let series = series(name, &last["sides"][0], rival, &first["sides"][0]);
        findings.rows.push(Row { series, bar: Some((Bar::RatioAtMost(FLAT), Kind::Must)) });
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    #[test]
    fn a_kernel_must_be_flat_and_faster_from_length_two() -> Result<()> {
        let side = |value: f64| json!({ "values": vec![value; 9] });
        let case = |length: u64, kernel: f64, reads: f64| {
            let name = format!("chain of {length}");
            json!({ "case": name, "length": length, "sides": [side(kernel), side(reads)] })
        };
        let cases = [case(1, 30.0, 20.0), case(2, 30.0, 40.0), case(64, 60.0, 900.0)];
        let found = findings(&json!({ "rounds": 9, "cases": cases }))?;
        let verdicts: Vec<_> = found.rows.iter().map(Row::verdict).collect();
        assert_eq!(verdicts, [None, Some(Verdict::Met), Some(Verdict::Met), Some(Verdict::Missed)]);
        Ok(())
    }
}
