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
/// The judges, in order, the wire of the lanes under them, the engines of each daemon, and the fewest cases that each must
/// have judged.
const JUDGES: &[(&str, &str, &str, u64)] = &[
    ("siege", "iwarp", "1", 26),
    ("kills", "iwarp", "1", 29),
    ("kernels", "iwarp", "1", 13),
    ("network", "iwarp", "1", 22),
    ("transfers", "iwarp", "1", 3),
    ("direct", "iwarp", "1", 29),
    ("siege", "roce", "1", 26),
    ("kills", "roce", "1", 29),
    ("kernels", "roce", "1", 13),
    ("network", "roce", "1", 16),
    ("transfers", "roce", "1", 3),
    ("forger", "roce", "1", 12),
    ("restarts", "iwarp", "1", 15),
    ("restarts", "roce", "1", 15),
    ("restarts", "auto", "2", 15),
    ("siege", "auto", "2", 26),
    ("kills", "auto", "2", 29),
];

/// Deaths of daemons in each of the judges `restarts` when everything is run: 200 or more together.
const RESTARTS_FULL: &str = "70";

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    let build = programs::build(&context.repo)?;
    let built = if build.success() { vec![] } else { vec![build.describe()] };
    tally.case("hostile: build", build.took, &built);
    if !build.success() {
        return Ok(tally);
    }
    let [hostile, raas] = ["hostile", "raas"].map(|name| programs::path(&context.repo, name));
    for (judge, wire, engines, least) in JUDGES {
        let path = raas.to_string_lossy();
        let mut args = vec![*judge, "--wire", wire, "--engines", engines, "--raas", &path];
        if *judge == "restarts" && context.full {
            args.extend(["--count", RESTARTS_FULL]);
        }
        println!("     {judge} over {wire}, engines {engines}");
        let mut command = context.repo.command(&hostile.to_string_lossy(), &args);
        let ended = child::run(&mut command, JUDGE_LIMIT, |_, line| println!("{line}"))?;
        let (counted, findings) = verdict(&ended, judge, *least);
        tally.add(counted);
        tally.case(&format!("hostile: {judge} over {wire}, engines {engines}, came to its end"), ended.took, &findings);
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
