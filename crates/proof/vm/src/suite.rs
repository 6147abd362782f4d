//! Runs the suites of guests, one boot each. Owns the reading of result lines. A suite
//! says `PASS name`, `FAIL name: reason` or `SKIP name: reason` per case, or runs a Rust test binary; one that ends
//! early cannot pass, because each states how many cases it has at least.

use super::artifacts::{self, Artifacts};
use super::guest::{self, Boot};
use super::registry::{self, Stage, Suite};
use anyhow::Result;
use harness::child;
use harness::programs;
use harness::repo::Repo;
use harness::result_lines::counted;
use harness::tally::Tally;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The judges of one suite's results.
const JUDGES_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Fetches and unpacks what the stage's guests are made of, on a thread beside other stages: it waits for the network
/// most of the time. The suite that needs a part which failed tries again, and reports it; a suite that comes earlier
/// waits.
pub fn prepare_ahead(repo: &Repo, stage: Stage, full: bool) {
    let cache = repo.target.join("vm");
    std::thread::spawn(move || {
        for suite in registry::due(stage, full) {
            if artifacts::prepare(&cache, suite.kernel, suite.packages, suite.device).is_err() {
                return;
            }
        }
    });
}

/// Every suite of the stage that is due.
pub fn run(repo: &Repo, stage: Stage, full: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    for suite in registry::due(stage, full) {
        let start = Instant::now();
        println!("vm suite {}: {} ({} guest(s), kernel {})", suite.name, suite.about, suite.guests, suite.kernel);
        let counts = run_suite(repo, suite)?;
        println!("vm suite {}: {counts} in {:.1} s", suite.name, start.elapsed().as_secs_f64());
        tally.add(counts);
    }
    Ok(tally)
}

/// Runs one suite by its name, for `cargo xtask vm --suite`.
pub(super) fn run_named(repo: &Repo, name: &str) -> Result<Tally> {
    let Some(suite) = registry::all().find(|suite| suite.name == name) else {
        let known: Vec<&str> = registry::all().map(|suite| suite.name).collect();
        anyhow::bail!("no suite named {name}; there are: {}", known.join(", "));
    };
    run_suite(repo, suite)
}

fn run_suite(repo: &Repo, suite: &Suite) -> Result<Tally> {
    let mut tally = Tally::default();
    if suite.programs {
        programs::build(repo)?;
    }
    let cache = repo.target.join("vm");
    let artifacts = match artifacts::prepare(&cache, suite.kernel, suite.packages, suite.device) {
        Ok(artifacts) => artifacts,
        Err(error) => {
            // Without the guest's parts no case can run: that is a skip, which is loud and fails in CI.
            tally.skip(suite.name, &format!("{error:#}"));
            return Ok(tally);
        }
    };
    let results = fresh(cache.join("results").join(suite.name))?;
    let boot = Boot {
        guests: suite.guests,
        device: suite.device,
        cpus: 2,
        memory_mib: if suite.guests == 1 { 2048 } else { 1024 },
        mtu: suite.mtu,
        timeout: Duration::from_secs(suite.timeout_s),
        results: results.clone(),
        command: suite.command.iter().map(|word| (*word).to_owned()).collect(),
    };
    let show = |index: u32, _, line: &str| println!("  {}", labelled(suite.guests, index, line));
    let outcomes = guest::run(&artifacts, &boot, &repo.root, &cache.join("runs"), show)?;
    let mut trouble = vec![];
    for (index, outcome) in (1..).zip(&outcomes) {
        tally.add(counted(outcome.lines.iter().map(|(_, line)| line.as_str())));
        if outcome.code != 0 {
            trouble.push(labelled(suite.guests, index, &format!("exit code {}", outcome.code)));
        }
    }
    if let Some(judges) = suite.judges {
        let mut command = on_host(repo, &artifacts, judges, &results);
        let ended = child::run(&mut command, JUDGES_LIMIT, |_, line| println!("  {line}"))?;
        println!("  judged in {:.1} s", ended.took.as_secs_f64());
        tally.add(counted(ended.lines.iter().map(|(_, line)| line.as_str())));
        if !ended.success() {
            trouble.push(format!("{judges}: {}", ended.describe()));
        }
    }
    let cases = tally.passed + tally.failed + tally.skipped;
    if cases < suite.cases_min {
        trouble.push(format!("{cases} cases, not at least {}", suite.cases_min));
    }
    let took = outcomes.iter().map(|outcome| outcome.took).max().unwrap_or_default();
    tally.case(&format!("{}: the guest ended well", suite.name), took, &trouble);
    Ok(tally)
}

/// A program of the guests' packages, or a script that uses them, on the host itself.
fn on_host(repo: &Repo, artifacts: &Artifacts, program: &str, results: &Path) -> Command {
    let mut command = repo.command(program, &[]);
    let usr = artifacts.layer.join("usr");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", usr.join("bin").display()));
    command.env("LD_LIBRARY_PATH", artifacts.layer.join(super::apt::LIBRARIES)).env("VM_RESULTS", results);
    // Wireshark looks for its tables where its package would have put them, and must not follow this user's
    // preferences.
    command
        .env("WIRESHARK_DATA_DIR", usr.join("share/wireshark"))
        .env("WIRESHARK_CONFIG_DIR", results.join("wireshark"));
    command
}

/// The folder, empty: what an earlier boot left there must not be taken for this one's.
pub(super) fn fresh(results: PathBuf) -> Result<PathBuf> {
    match std::fs::remove_dir_all(&results) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(results),
    }
}

/// A guest's line with its name in front, where there are two.
pub(super) fn labelled(guests: u32, index: u32, line: &str) -> String {
    if guests == 1 { line.to_owned() } else { format!("[vm{index}] {line}") }
}
