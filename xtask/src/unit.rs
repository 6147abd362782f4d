//! Stage `unit`: every crate's unit and integration tests (cargo-nextest where installed, else cargo test) and the doc
//! tests. Owns the reading of the runners' closing lines; a run that cannot be read counts as failed, never as passed.

use crate::context::Context;
use anyhow::Result;
use harness::child::{self, Stream};
use harness::packages::{self, Need};
use harness::result_lines::libtest_result;
use harness::tally::{Tally, fail, skip_line};
use harness::{build, ledger};
use std::process::Command;
use std::time::Duration;

/// All tests, on a machine that is busy too; each single test has its own, shorter limit in .config/nextest.toml.
const RUN_LIMIT: Duration = Duration::from_secs(90 * 60);
/// Asking for a version.
const ASK_LIMIT: Duration = Duration::from_secs(60);
/// Tests at a time where nextest is missing; with it .config/nextest.toml says how many.
const AT_ONCE: &str = "6";
/// Judges and tools of the tests that are not ours, each with its Debian package. Without one its test says SKIP.
pub(crate) const JUDGES: &[Need] = &[
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("/usr/lib/python3/dist-packages/prometheus_client/parser.py", "python3-prometheus-client"),
    ("chromium-headless-shell", "chromium-headless-shell"),
    ("etcd", "etcd-server"),
    ("iptables", "iptables"),
    // What the pages give to a shell.
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("curl", "curl"),
    ("ip", "iproute2"),
    ("cc", "gcc"),
];
/// What has tests. Examples have none: stage `lint` compiles each once, and linking them as test programs would only cost
/// time.
const TARGETS: &[&str] = &["--tests"];
/// Cases per property with `--full`.
const FULL_PROPERTY_CASES: &str = "1024";

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    packages::install(JUDGES);
    let nextest = child::run_quiet(&mut context.repo.command("cargo", &["nextest", "--version"]), ASK_LIMIT)
        .is_ok_and(|ended| ended.success());
    let built = |words: &[&str]| build::must(&mut command(context, words));
    if nextest {
        built(&[NEXTEST, TARGETS, &["--no-run"]].concat())?;
        tally.add(run_nextest(context)?);
    } else {
        println!("note: cargo-nextest is not installed, running cargo test");
        let args = [&["test", "--workspace"], TARGETS, &["--no-fail-fast"]].concat();
        built(&[&args[..], &["--no-run"]].concat())?;
        tally.add(run_libtest(context, "cargo test", &[&args[..], &["--", "--show-output"]].concat())?);
    }
    tally.add(run_libtest(context, "doc tests", &["test", "--workspace", "--doc", "--no-fail-fast"])?);
    Ok(tally)
}

fn command(context: &Context, args: &[&str]) -> Command {
    let mut command = context.repo.command("cargo", args);
    command.env("RUST_TEST_THREADS", AT_ONCE);
    if context.full {
        command.env("PROPTEST_CASES", FULL_PROPERTY_CASES).env("RAAS_TEST_FULL", "1");
    }
    command
}

const NEXTEST: &[&str] = &["nextest", "run", "--workspace"];

fn run_nextest(context: &Context) -> Result<Tally> {
    let how = [
        "--no-fail-fast",
        "--no-tests=fail",
        "--success-output=immediate",
        "--failure-output=final",
        "--status-level=pass",
    ];
    let args = [NEXTEST, TARGETS, &how].concat();
    // Passing tests' output is read for skips and not shown; failures and the summary are. All is read as it comes,
    // because tests print more lines than a child's end keeps.
    let mut summary = None;
    let mut skips: Vec<(String, String)> = Vec::new();
    let ended = child::run(&mut command(context, &args), RUN_LIMIT, |_, line| {
        summary = summary.take().or_else(|| nextest_summary(line));
        skips.extend(skip_line(line).map(|(name, reason)| (name.to_owned(), reason.to_owned())));
        if let Some((name, took)) = passed_in(line) {
            ledger::case(name, took);
        }
        // Each failure is said twice: when it happens, and after the summary.
        if summary.is_none() && is_failure(line) {
            ledger::failure(line.trim());
        }
        if summary.is_some() || is_trouble(line) {
            println!("{line}");
        }
    })?;
    let Some(mut tally) = summary else {
        fail(&format!("nextest: no summary ({})", ended.describe()));
        return Ok(Tally { failed: 1, ..Tally::default() });
    };
    if !ended.success() && tally.failed == 0 {
        fail(&format!("nextest: {}", ended.describe()));
        tally.failed += 1;
    }
    if tally.skipped > 0 {
        println!("SKIP nextest: {} test(s) are switched off", tally.skipped);
    }
    count_skips(skips.iter().map(|(name, reason)| (name.as_str(), reason.as_str())), &mut tally);
    Ok(tally)
}

/// Reads `        PASS [   0.251s] (  1/2) package::binary module::test`: the name and the time.
fn passed_in(line: &str) -> Option<(&str, Duration)> {
    let (took, rest) = line.trim_start().strip_prefix("PASS [")?.split_once("s] ")?;
    let name = rest.split_once(") ").map_or(rest, |(_, name)| name);
    Some((name.trim(), Duration::try_from_secs_f64(took.trim().parse().ok()?).ok()?))
}

fn is_trouble(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    is_failure(line) || matches!(first, "SLOW" | "TERMINATING" | "LEAK" | "TRY")
}

fn is_failure(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    matches!(first, "FAIL" | "TIMEOUT" | "SIGSEGV" | "SIGABRT" | "SIGKILL")
}

fn run_libtest(context: &Context, name: &str, args: &[&str]) -> Result<Tally> {
    let ended = child::run_quiet(&mut command(context, args), RUN_LIMIT)?;
    let lines: Vec<&str> = ended.lines.iter().map(|(_, line)| line.as_str()).collect();
    let mut tally = Tally::default();
    for line in &lines {
        if let Some(counts) = libtest_result(line) {
            tally.add(counts);
        }
    }
    count_skips(lines.iter().filter_map(|line| skip_line(line)), &mut tally);
    if !ended.success() {
        println!("{}\n{}", ended.text(Stream::Err), ended.text(Stream::Out));
        fail(&format!("{name}: {}", ended.describe()));
        tally.failed = tally.failed.max(1);
    }
    println!("{name}: {tally} ({:.1} s)", ended.took.as_secs_f64());
    Ok(tally)
}

/// A test that could not run says `SKIP name: reason` and returns, which its runner counts as passed.
fn count_skips<'l>(skips: impl Iterator<Item = (&'l str, &'l str)>, tally: &mut Tally) {
    for (name, reason) in skips {
        tally.passed = tally.passed.saturating_sub(1);
        tally.skip(name, reason);
    }
}

/// Reads `Summary [ 0.1s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 2 skipped`.
fn nextest_summary(line: &str) -> Option<Tally> {
    let counts = line.trim_start().strip_prefix("Summary [")?.split_once(" run: ")?.1;
    let mut plain = String::new();
    let mut depth = 0_u32;
    for letter in counts.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let mut tally = Tally::default();
    for part in plain.split(',') {
        let (count, what) = part.trim().split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match what.trim() {
            "passed" => tally.passed += count,
            "skipped" => tally.skipped += count,
            _ => tally.failed += count,
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tests_are_read() {
        let line = "        PASS [   2.251s] (  1/2342) roce::it distance::far";
        assert_eq!(passed_in(line), Some(("roce::it distance::far", Duration::from_millis(2251))));
        assert_eq!(
            passed_in("        PASS [   0.5s] roce::it far"),
            Some(("roce::it far", Duration::from_millis(500)))
        );
        assert_eq!(passed_in("        SLOW [> 60.000s] roce::it far"), None);
    }

    #[test]
    fn nextest_summaries_are_read() {
        let line = "     Summary [   0.006s] 9 tests run: 6 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 4 skipped";
        assert_eq!(nextest_summary(line), Some(Tally { passed: 6, failed: 3, skipped: 4 }));
        let one = "     Summary [   0.006s] 1 test run: 1 passed, 0 skipped";
        assert_eq!(nextest_summary(one), Some(Tally { passed: 1, failed: 0, skipped: 0 }));
        assert_eq!(nextest_summary("Summary [ 1s] nonsense"), None);
    }
}
