//! Stage `hostile`: daemons under tenants, processes and strangers that misbehave. The judges are in crate `hostile`;
//! each prints a line for each case and its seed at the end. Owns which of them run, which at the same time, and the
//! reading of their lines; a judge that cannot be read failed.

use crate::context::Context;
use anyhow::Result;
use harness::child::{self, Ended, Stream};
use harness::programs;
use harness::tally::{self, Tally};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One judge, on a machine that is busy too; each has its own, shorter limits inside.
const JUDGE_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Judges at a time, of those that may have company.
const AT_ONCE: usize = 2;
/// Deaths of daemons in each of the judges `restarts` when everything is run: 200 or more together.
const RESTARTS_FULL: &str = "70";
/// Requests of the judge `requests` when everything is run.
const REQUESTS_FULL: &str = "1000000";

struct Judge {
    name: &'static str,
    /// The wire of the lanes.
    wire: &'static str,
    /// Of each daemon.
    engines: &'static str,
    /// The fewest cases that it must have judged.
    least: u64,
    /// It compares rates, so nothing else runs beside it.
    alone: bool,
    full_only: bool,
}

const fn judge(name: &'static str, wire: &'static str, least: u64) -> Judge {
    Judge { name, wire, engines: "1", least, alone: false, full_only: false }
}

const fn alone(name: &'static str, wire: &'static str, least: u64) -> Judge {
    Judge { alone: true, ..judge(name, wire, least) }
}

const fn with_two_engines(name: &'static str, least: u64) -> Judge {
    Judge { engines: "2", full_only: true, ..judge(name, "auto", least) }
}

/// The judges; the long ones first, so that the last one of two at a time does not run for long by itself.
const JUDGES: &[Judge] = &[
    judge("descriptors", "auto", 18),
    judge("memory", "auto", 9),
    judge("storm", "auto", 11),
    judge("requests", "auto", 10),
    judge("groups", "iwarp", 7),
    judge("groups", "roce", 7),
    judge("writers", "iwarp", 5),
    judge("writers", "roce", 5),
    judge("tensors", "iwarp", 9),
    judge("tensors", "roce", 9),
    judge("restarts", "iwarp", 15),
    judge("restarts", "roce", 15),
    judge("forger", "roce", 12),
    judge("direct", "iwarp", 29),
    judge("network", "iwarp", 22),
    judge("network", "roce", 16),
    judge("kills", "iwarp", 29),
    judge("kills", "roce", 29),
    judge("transfers", "iwarp", 3),
    judge("transfers", "roce", 3),
    with_two_engines("restarts", 15),
    with_two_engines("kills", 29),
    alone("siege", "iwarp", 26),
    alone("siege", "roce", 26),
    alone("numbers", "auto", 8),
    alone("kernels", "iwarp", 13),
    alone("kernels", "roce", 13),
    Judge { alone: true, ..with_two_engines("siege", 26) },
];

pub(crate) fn run(context: &Context) -> Result<Tally> {
    programs::build(&context.repo)?;
    let due = |judge: &&Judge| context.full || !judge.full_only;
    let (alone, together): (Vec<&Judge>, Vec<&Judge>) = JUDGES.iter().filter(due).partition(|judge| judge.alone);
    let mut tally = at_once(context, &together, AT_ONCE)?;
    tally.add(at_once(context, &alone, 1)?);
    Ok(tally)
}

/// Runs judges, so many at a time. What one says is shown when it has ended.
fn at_once(context: &Context, judges: &[&Judge], count: usize) -> Result<Tally> {
    let [hostile, raas] = ["hostile", "raas"].map(|name| programs::path(&context.repo, name));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Tally::default())));
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while let Some(judge) = judges.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ended = start(context, &hostile, &raas, judge);
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    match (ended, done.as_mut()) {
                        (Ok(ended), Ok(tally)) => tally.add(said(judge, &ended)),
                        (Err(error), Ok(_)) => *done = Err(error),
                        (_, Err(_)) => return,
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn start(context: &Context, hostile: &Path, raas: &Path, judge: &Judge) -> Result<Ended> {
    let raas = raas.to_string_lossy();
    let mut args = vec![judge.name, "--wire", judge.wire, "--engines", judge.engines, "--raas", &raas];
    match judge.name {
        "restarts" if context.full => args.extend(["--count", RESTARTS_FULL]),
        "requests" if context.full => args.extend(["--count", REQUESTS_FULL]),
        _ => {}
    }
    // What is counted takes as long as the machine is busy.
    let limit = if context.full { 3 * JUDGE_LIMIT } else { JUDGE_LIMIT };
    child::run_quiet(&mut context.repo.command(&hostile.to_string_lossy(), &args), limit)
}

/// Shows what a judge said, and counts it.
fn said(judge: &Judge, ended: &Ended) -> Tally {
    let name = format!("{} over {}, engines {}", judge.name, judge.wire, judge.engines);
    println!("     {name}");
    ended.lines.iter().for_each(|(_, line)| println!("{line}"));
    let (mut tally, findings) = verdict(ended, judge.name, judge.least);
    tally.case(&format!("hostile: {name}, came to its end"), ended.took, &findings);
    tally
}

/// The judge's own cases, and what is wrong with the judge.
fn verdict(ended: &Ended, judge: &str, least: u64) -> (Tally, Vec<String>) {
    let mut tally = Tally::default();
    let text = ended.text(Stream::Out);
    text.lines().for_each(|line| tally::count_line(line, &mut tally));
    let mut findings = vec![];
    // A judge that cannot work here at all says so by its own name.
    let is_skipped = text.lines().filter_map(tally::skip_line).any(|(name, _)| name == judge);
    if !is_skipped && tally.passed + tally.failed < least {
        findings.push(format!("{} cases were judged, not at least {least}", tally.passed + tally.failed));
    }
    let seed = text.lines().rev().find(|line| line.starts_with("hostile: seed "));
    if seed.is_none() {
        findings.push("it printed no seed".to_owned());
    }
    if ended.success() != (tally.failed == 0) {
        findings.push(ended.describe());
    }
    (tally, findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(text: &str) -> Ended {
        let mut command = std::process::Command::new("printf");
        child::run_quiet(command.arg(text), Duration::from_secs(60)).expect("printf starts")
    }

    #[test]
    fn a_judge_that_says_too_little_failed() {
        let (tally, findings) = verdict(&ended("ok   a (0.1 s)\\nhostile: seed 7\\n"), "kills", 2);
        assert_eq!(tally, Tally { passed: 1, failed: 0, skipped: 0 });
        assert_eq!(findings, ["1 cases were judged, not at least 2"]);
        let (_, findings) = verdict(&ended("ok   a (0.1 s)\\n"), "kills", 1);
        assert_eq!(findings, ["it printed no seed"]);
    }

    #[test]
    fn both_wires_are_judged_each_time() {
        for name in ["siege", "kills", "kernels", "network", "transfers", "restarts"] {
            for wire in ["iwarp", "roce"] {
                let found = JUDGES.iter().any(|judge| judge.name == name && judge.wire == wire && !judge.full_only);
                assert!(found, "{name} over {wire}");
            }
        }
    }
}
