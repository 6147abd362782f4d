//! `cargo xtask bench`: measures against rivals in alternating rounds, writes a file with values, ratios and verdicts, and
//! prints a table. Owns the command line; each bench lives in its own module, and what figures mean stands in
//! docs/benchmarks.md.

mod faults;
mod machine;
mod nic;
mod report;
mod stats;

use crate::repo::Repo;
use anyhow::Result;
use clap::ValueEnum;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `cargo xtask bench` takes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What to measure.
    #[arg(value_enum)]
    name: Name,
    /// Where the results go, instead of bench/results/NAME/COMMIT.json.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rounds, in each of which every side runs once; bars are judged from 9 on.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of one side in one round of one case.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Of `nic`: 1 has both ends on a veth pair in one guest, 2 has them in two guests.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    guests: u32,
}

/// The benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// The software NIC against kernel rxe, in a guest.
    Nic,
    /// What applications wait when something fails.
    Faults,
}

/// Runs the bench. The exit code says whether it was measured, not whether bars were met.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let repo = Repo::open()?;
    let origin = report::Origin::now(&repo)?;
    let _first = SessionFirst::begin();
    let (name, findings) = match args.name {
        Name::Nic => (if args.guests == 2 { "nic-two-guests" } else { "nic" }, nic::run(&repo, args)?),
        Name::Faults => ("faults", faults::run(&repo, args)?),
    };
    let path = origin.write(&repo, name, &findings, args.json.as_deref())?;
    print!("\n{}", report::table(&findings));
    println!("{}", repo.relative(&path).display());
    Ok(ExitCode::SUCCESS)
}

/// How far ahead of other work a measured program runs where that is allowed.
const PRIORITY: &str = "-20";

/// The command ahead of other work of this machine, since a side that waits for a processor measures the others. Without
/// the right to do so, as it is.
fn with_priority<'w>(words: &[&'w str]) -> Vec<&'w str> {
    let mut all = vec![];
    if rustix::process::geteuid().is_root() {
        all.extend(["nice", "-n", PRIORITY]);
    }
    all.extend(words);
    all
}

/// While it lives, this session's processes together go before those of other sessions; where the kernel groups processes by
/// session, their own priorities do not reach beyond it.
#[derive(Debug)]
struct SessionFirst {
    /// The session's priority before, if it was changed.
    before: Option<String>,
}

/// The session's priority.
const AUTOGROUP: &str = "/proc/self/autogroup";

impl SessionFirst {
    fn begin() -> Self {
        let text = std::fs::read_to_string(AUTOGROUP).unwrap_or_default();
        // The line reads `/autogroup-N nice P`.
        let before = text.split_whitespace().last().map(str::to_owned);
        let changed = before.is_some() && std::fs::write(AUTOGROUP, PRIORITY).is_ok();
        Self { before: before.filter(|_| changed) }
    }
}

impl Drop for SessionFirst {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // What was allowed a moment ago, or else the session stays ahead, which spoils nothing but fairness.
            let _ = std::fs::write(AUTOGROUP, before);
        }
    }
}
