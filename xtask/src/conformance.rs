//! Stage `conformance`: the suite of verbs semantics between two software NICs over real UDP sockets. The same bodies run in
//! virtual time in stage `unit` and on kernel rxe in stage `vm`.

use crate::child;
use crate::tally::Tally;
use crate::test::Context;
use crate::vm::suite::counted;
use anyhow::Result;
use std::time::Duration;

/// A cold build and the suite.
const RUN_LIMIT: Duration = Duration::from_secs(30 * 60);
/// The suite has this many cases at least.
const CASES_MIN: u64 = 100;

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let args = ["run", "--quiet", "--package", "interop", "--", "softnic"];
    let ended = child::run_quiet(&mut context.repo.command("cargo", &args), RUN_LIMIT)?;
    let mut tally = counted(ended.lines.iter().map(|(_, line)| line.as_str()));
    let mut trouble: Vec<String> =
        ended.lines.iter().filter(|(_, line)| line.starts_with("FAIL ")).map(|(_, line)| line.clone()).collect();
    if tally.passed + tally.failed < CASES_MIN {
        trouble.push(format!("{} cases, not at least {CASES_MIN}", tally.passed + tally.failed));
    }
    if !ended.success() {
        trouble.push(ended.describe());
    }
    tally.case("the suite ended well", ended.took, &trouble);
    Ok(tally)
}
