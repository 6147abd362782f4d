//! Bench `nic`: the software NIC against kernel rxe, over the same veth pair in one guest, in one boot. Owns the bars;
//! the load is in bench/src/nicbench.

use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series};
use super::{Args, with_priority};
use anyhow::{Context, Result, bail, ensure};
use harness::child::{self, Stream};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Packets of 1024 and of 4096 bytes; and each side's packets received on its own processor, as between two machines.
const LINKS: &str = "1500,4200,4200:steered";
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Seconds of one boot.
const GUEST_LIMIT_S: u64 = 1500;
/// Beyond that the guest is ended from outside.
const LIMIT: Duration = Duration::from_secs(GUEST_LIMIT_S + 300);

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let build =
        child::run_quiet(&mut repo.command("cargo", &["build", "--release", "--package", "bench"]), BUILD_LIMIT)?;
    ensure!(build.success(), "building nicbench: {}\n{}", build.describe(), build.text(Stream::Err));
    let results = repo.target.join("vm/results/bench-nic");
    std::fs::create_dir_all(&results)?;
    let file = results.join("nic.json");
    if file.exists() {
        std::fs::remove_file(&file)?;
    }
    boot(repo, args, &results)?;
    let text = std::fs::read_to_string(&file).context("the guest left no results")?;
    findings(&serde_json::from_str(&text).context("the guest's results are not JSON")?)
}

fn boot(repo: &Repo, args: &Args, results: &Path) -> Result<()> {
    let program = repo.target.join("release/bench");
    let rounds = args.rounds().to_string();
    let limit = GUEST_LIMIT_S.to_string();
    let xtask = harness::itself::path()?;
    let (xtask, results, program) = (text(&xtask)?, text(results)?, text(&program)?);
    let mut words = vec![xtask, "vm", "--timeout-s", &limit, "--results", results];
    if args.guests == 2 {
        words.extend(["--guests", "2", "--mtu", "4200"]);
    }
    words.extend(["--", program, "nicbench", if args.guests == 2 { "pair" } else { "veth" }]);
    if args.guests == 1 {
        words.extend(["--links", LINKS]);
    }
    let seconds = args.seconds(0.5).to_string();
    words.extend(["--rounds", &rounds, "--seconds", &seconds, "--out", "/run/results/nic.json"]);
    if let Some(only) = &args.only {
        words.extend(["--only", only]);
    }
    let words = with_priority(&words);
    let (program, arguments) = words.split_first().context("a command has words")?;
    let ended = child::run(&mut repo.command(program, arguments), LIMIT, |_, line| println!("{line}"))?;
    ensure!(ended.success(), "the guest failed: {}", ended.describe());
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Rows out of the guest's file: each case against the bar, throughput against the goal too.
fn findings(file: &Value) -> Result<Findings> {
    let mut rows = vec![];
    let mut figures = vec![];
    let cases = file["cases"].as_array().context("the results have no cases")?;
    for case in cases {
        if let Some(error) = case["error"].as_str() {
            bail!("{}: {error}", case["case"]);
        }
        let unit = case["unit"].as_str().unwrap_or_default();
        let lower = unit == "us";
        let series = Series {
            case: case["case"].as_str().unwrap_or_default().to_owned(),
            unit: unit.to_owned(),
            better: if lower { Better::Lower } else { Better::Higher },
            ours: values(&case["values"]["softnic"]),
            rival: "rxe".to_owned(),
            rival_values: values(&case["values"]["rxe"]),
        };
        let must = if lower { Bar::RatioAtMost(1.0) } else { Bar::RatioAtLeast(1.0) };
        rows.push(Row { series: series.clone(), bar: Some((must, Kind::Must)) });
        if unit == "gbit_per_s" {
            rows.push(Row { series, bar: Some((Bar::RatioAtLeast(2.0), Kind::Goal)) });
        }
        figures.push(json!({ "case": case["case"], "p99_us": case["p99_us"], "counters": case["counters"] }));
    }
    let setting = json!({
        "guest_kernel": file["kernel"], "link": file["link"], "seconds": file["seconds"], "emulation": "qemu tcg",
    });
    Ok(Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        rows,
        figures,
        setting,
        ..Findings::default()
    })
}

fn values(list: &Value) -> Vec<f64> {
    list.as_array().map_or(vec![], |list| list.iter().filter_map(Value::as_f64).collect())
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    #[test]
    fn a_guests_file_becomes_rows_with_their_bars() -> Result<()> {
        let case = |name: &str, unit: &str, ours: f64, rival: f64| json!({"case": name, "unit": unit, "error": null, "values": {"softnic": vec![ours; 9], "rxe": vec![rival; 9]}});
        let file = json!({"rounds": 9, "cases": [
            case("latency", "us", 9.0, 10.0), case("throughput", "gbit_per_s", 3.0, 2.0), case("rate", "ops_per_s", 1.0, 2.0),
        ]});
        let rows = findings(&file)?.rows;
        let verdicts: Vec<_> = rows.iter().map(|row| (row.bar.map(|(_, kind)| kind), row.verdict())).collect();
        assert_eq!(
            verdicts,
            [
                (Kind::Must, Verdict::Met),
                (Kind::Must, Verdict::Met),
                (Kind::Goal, Verdict::Missed),
                (Kind::Must, Verdict::Missed),
            ]
            .map(|(kind, verdict)| (Some(kind), Some(verdict)))
        );
        Ok(())
    }

    #[test]
    fn a_failed_case_fails_the_bench() {
        let file = json!({"rounds": 9, "cases": [{"case": "send", "unit": "us", "error": "stalled", "values": {}}]});
        assert!(findings(&file).is_err());
    }
}
