//! Stage `conformance`: the suite of verbs semantics between two software NICs over real sockets, on both wires. The same bodies
//! run in virtual time in stage `unit` and on kernel rxe in stage `vm`.

use crate::context::Context;
use anyhow::Result;
use harness::child;
use harness::programs;
use harness::result_lines::counted;
use harness::tally::Tally;
use std::path::Path;
use std::time::Duration;

/// The suite.
const RUN_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Over UDP and over TCP.
const PAIRINGS: [&str; 2] = ["softnic", "softnic-tcp"];
/// The suite has this many cases at least.
const CASES_MIN: u64 = 100;

pub(crate) fn run(context: &Context) -> Result<Tally> {
    programs::build(&context.repo)?;
    let interop = programs::path(&context.repo, "interop");
    let mut tally = Tally::default();
    for pairing in PAIRINGS {
        tally.add(run_one(context, &interop, pairing)?);
    }
    Ok(tally)
}

fn run_one(context: &Context, interop: &Path, pairing: &str) -> Result<Tally> {
    let ended = child::run_quiet(&mut context.repo.command(&interop.to_string_lossy(), &[pairing]), RUN_LIMIT)?;
    let mut tally = counted(ended.lines.iter().map(|(_, line)| line.as_str()));
    let mut trouble: Vec<String> =
        ended.lines.iter().filter(|(_, line)| line.starts_with("FAIL ")).map(|(_, line)| line.clone()).collect();
    if tally.passed + tally.failed < CASES_MIN {
        trouble.push(format!("{} cases, not at least {CASES_MIN}", tally.passed + tally.failed));
    }
    if !ended.success() {
        trouble.push(ended.describe());
    }
    tally.case(&format!("the suite ended well ({pairing})"), ended.took, &trouble);
    Ok(tally)
}
