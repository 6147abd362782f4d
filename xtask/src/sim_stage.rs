//! Stage `sim`: whole hosts in virtual time, from seeds. The same seeds in each run judge a change, and nothing but it; with
//! `--full` fresh ones look for what nobody looked for. The first of these is printed, and a seed that breaks a promise is
//! printed with the command that runs it again.

use crate::context::Context;
use anyhow::{Context as _, Result};
use harness::child::{self, Ended, Stream};
use harness::programs;
use harness::tally::Tally;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seeds that every run goes through, and a full one.
const FIXED: u64 = 500;
const FIXED_FULL: u64 = 4_000;
/// Time for fresh seeds, in a full run.
const FRESH_SECONDS: u64 = 900;
/// Fewer fresh seeds than these say that something is wrong with the machine or the simulator.
const FRESH_MIN: u64 = 50;
/// In so many seeds each thing that is drawn comes to pass.
const DRAWN_IN: u64 = 300;
/// The longest run, on a machine that is busy too.
const RUN_LIMIT: Duration = Duration::from_secs(60 * 60);

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    programs::build(&context.repo)?;
    let count = if context.full { FIXED_FULL } else { FIXED };
    let fixed = sweep(context, &["--seed", "1", "--count", &count.to_string()])?;
    tally.case(&format!("seeds 1 to {count}"), fixed.took, &findings(&fixed, count));
    if !context.full {
        return Ok(tally);
    }
    // Any number will do, as long as it is another one each time and people can type it.
    let base = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64 % 1_000_000_000_000);
    println!("fresh seeds from {base}");
    let fresh = sweep(context, &["--seed", &base.to_string(), "--seconds", &FRESH_SECONDS.to_string()])?;
    tally.case(&format!("fresh seeds from {base} for {FRESH_SECONDS} s"), fresh.took, &findings(&fresh, FRESH_MIN));
    Ok(tally)
}

fn sweep(context: &Context, which: &[&str]) -> Result<Ended> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get()).to_string();
    let mut args = vec!["--json", "--jobs", &jobs];
    args.extend(which);
    let sim = programs::path(&context.repo, "sim");
    child::run_quiet(&mut context.repo.command(&sim.to_string_lossy(), &args), RUN_LIMIT)
}

/// What is wrong with a sweep that was to run `count_min` seeds at least; prints what it did.
fn findings(ended: &Ended, count_min: u64) -> Vec<String> {
    match report(ended) {
        Ok((summary, mut findings)) => {
            println!("     {}", summary.line());
            if summary.count < count_min && findings.is_empty() {
                findings.push(format!("{} seeds were run, not at least {count_min}", summary.count));
            }
            if !ended.success() && findings.is_empty() {
                findings.push(ended.describe());
            }
            findings
        }
        Err(error) => vec![format!("{error:#}"), ended.describe(), ended.text(Stream::Err)],
    }
}

#[derive(Debug, PartialEq)]
struct Summary {
    count: u64,
    seconds: f64,
    virtual_seconds: f64,
    bytes: u64,
}

impl Summary {
    fn line(&self) -> String {
        format!(
            "{} seeds in {:.1} s, {:.0} virtual seconds, {} bytes checked",
            self.count, self.seconds, self.virtual_seconds, self.bytes
        )
    }
}

fn report(ended: &Ended) -> Result<(Summary, Vec<String>)> {
    parse(&ended.text(Stream::Out))
}

fn parse(output: &str) -> Result<(Summary, Vec<String>)> {
    let line = output.lines().rev().find(|line| line.starts_with('{')).context("the simulator printed no JSON")?;
    let value: Value = serde_json::from_str(line).context("the simulator's JSON cannot be read")?;
    let number = |key: &str| value[key].as_u64().with_context(|| format!("no {key} in the simulator's JSON"));
    let real = |key: &str| value[key].as_f64().with_context(|| format!("no {key} in the simulator's JSON"));
    let summary = Summary {
        count: number("count")?,
        seconds: real("seconds")?,
        virtual_seconds: real("virtual_seconds")?,
        bytes: number("total_bytes_checked")?,
    };
    let violations = value["violations"].as_array().context("no violations in the simulator's JSON")?;
    let mut findings: Vec<String> = violations
        .iter()
        .map(|v| format!("{}: {}", v["kind"].as_str().unwrap_or("?"), v["detail"].as_str().unwrap_or("?")))
        .collect();
    if !findings.is_empty() {
        let seed = number("seed")?;
        findings.push(format!("seed {seed}; again: cargo run --release -p sim -- --seed {seed}"));
        findings.push(format!("trace: {}", value["trace_file"].as_str().unwrap_or("none")));
    } else if summary.count >= DRAWN_IN {
        let drawn = value["total_drawn"].as_object().context("no total_drawn in the simulator's JSON")?;
        let never = drawn.iter().filter(|(_, times)| times.as_u64() == Some(0));
        findings.extend(never.map(|(what, _)| format!("{} seeds drew no {what}", summary.count)));
    }
    Ok((summary, findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"seed":9,"violations":[],"trace_file":null,"count":5,"seconds":0.5,"virtual_seconds":8.0,"total_bytes_checked":77}"#;

    #[test]
    fn a_good_sweep_has_no_findings() {
        let (summary, findings) = parse(&format!("some line\n{GOOD}\n")).unwrap();
        assert_eq!(summary, Summary { count: 5, seconds: 0.5, virtual_seconds: 8.0, bytes: 77 });
        assert_eq!(findings, Vec::<String>::new());
    }

    #[test]
    fn a_bad_one_names_its_seed_and_no_output_is_an_error() {
        let bad = GOOD
            .replace("[]", r#"[{"kind":"order","detail":"byte 3 is wrong"}]"#)
            .replace("null", r#""target/sim/seed-9.trace""#);
        let (_, findings) = parse(&bad).unwrap();
        assert_eq!(
            findings,
            [
                "order: byte 3 is wrong",
                "seed 9; again: cargo run --release -p sim -- --seed 9",
                "trace: target/sim/seed-9.trace"
            ]
        );
        assert!(parse("").is_err() && parse("{}").is_err());
    }

    #[test]
    fn what_many_seeds_never_drew_is_a_finding() {
        let of = |count, times| {
            let drawn = format!(r#""total_drawn":{{"ways_back":{times},"others":1}},"count":{count}"#);
            parse(&GOOD.replace(r#""count":5"#, &drawn)).unwrap().1
        };
        assert_eq!(of(300, 0), ["300 seeds drew no ways_back"]);
        assert_eq!((of(300, 1), of(299, 0)), (vec![], vec![]));
    }
}
