//! Bench `tensor`: a tensor of another program of the host, by reference and with a copy. Owns the bars; the measuring is
//! in bench/src/tensorbench.rs.

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
const SIDES: u32 = 8;
const SECONDS: f64 = 0.3;
/// From so many bytes on a get must be faster than one with a copy.
const FASTER_FROM: u64 = 1 << 20;
/// The largest tensor may take so many times what the smallest takes, and the time does not depend on the size.
const FLAT: f64 = 1.5;

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let measured = Duration::from_secs_f64(args.seconds(SECONDS)) * SIDES;
    findings(&measure(repo, args, ("tensorbench", SECONDS), (ROUND_LIMIT + measured) * args.rounds())?)
}

fn values(side: &Value) -> Vec<f64> {
    side["values"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// A row for each size beside a copy, and one for the largest beside the smallest.
fn findings(file: &Value) -> Result<Findings> {
    let mut findings = Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        setting: json!({ "hosts": "one daemon in the process of owner and reader", "device": "softnic" }),
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
        let bytes = case["bytes"].as_u64().context("a case without bytes")?;
        let series = series(name.to_owned(), &case["sides"][0], "get and copy".to_owned(), &case["sides"][1]);
        let bar = (bytes >= FASTER_FROM).then_some((Bar::RatioAtMost(1.0), Kind::Must));
        findings.rows.push(Row { series, bar });
    }
    if let [first, .., last] = cases.as_slice() {
        let rival = first["case"].as_str().unwrap_or_default().to_owned();
        let name = format!("{}, flat", last["case"].as_str().unwrap_or_default());
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
    fn a_get_must_not_depend_on_the_size_and_beat_a_copy_from_a_mebibyte_on() -> Result<()> {
        let side = |value: f64| json!({ "values": vec![value; 9] });
        let case = |bytes: u64, get: f64, copy: f64| json!({ "case": format!("get of {bytes}"), "bytes": bytes, "sides": [side(get), side(copy)] });
        let cases = [case(4096, 30.0, 20.0), case(1 << 20, 30.0, 200.0), case(1 << 28, 60.0, 9e4)];
        let found = findings(&json!({ "rounds": 9, "cases": cases }))?;
        let verdicts: Vec<_> = found.rows.iter().map(Row::verdict).collect();
        assert_eq!(verdicts, [None, Some(Verdict::Met), Some(Verdict::Met), Some(Verdict::Missed)]);
        Ok(())
    }
}
