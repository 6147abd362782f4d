//! Stage `hostile`: daemons under tenants, processes and strangers that misbehave. The judges are in crate `hostile`;
//! each prints a line for each case and its seed at the end. Owns the reading of these lines; a judge that cannot be
//! read failed.

use crate::context::Context;
use anyhow::Result;
use harness::child::{self, Ended, Stream};
use harness::programs;
use harness::tally::{self, Tally};
use std::time::Duration;

/// One judge; each has its own, shorter limits inside.
const JUDGE_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The judges, in order, and the fewest cases that each must have judged.
const JUDGES: &[(&str, u64)] = &[("siege", 25), ("kills", 28), ("network", 14), ("transfers", 2), ("forger", 12)];

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    let build = programs::build(&context.repo)?;
    let built = if build.success() { vec![] } else { vec![build.describe()] };
    tally.case("hostile: build", build.took, &built);
    if !build.success() {
        return Ok(tally);
    }
    let [hostile, raas] = ["hostile", "raas"].map(|name| programs::path(&context.repo, name));
    for (judge, least) in JUDGES {
        let args = [judge, "--raas", &raas.to_string_lossy()];
        let mut command = context.repo.command(&hostile.to_string_lossy(), &args);
        let ended = child::run(&mut command, JUDGE_LIMIT, |_, line| println!("{line}"))?;
        let (counted, findings) = verdict(&ended, judge, *least);
        tally.add(counted);
        tally.case(&format!("hostile: {judge} came to its end"), ended.took, &findings);
    }
    Ok(tally)
}

/// The judge's own cases, and what is wrong with the judge.
fn verdict(ended: &Ended, judge: &str, least: u64) -> (Tally, Vec<String>) {
    let mut tally = Tally::default();
    let text = ended.text(Stream::Out);
    for line in text.lines() {
        tally.passed += u64::from(line.starts_with("ok   "));
        tally.failed += u64::from(line.starts_with("FAIL "));
        tally.skipped += u64::from(tally::skip_line(line).is_some());
    }
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
