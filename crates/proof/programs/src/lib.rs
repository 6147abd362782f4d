//! Programs that nobody changed, on kernel TCP and under `raas run`: the conformance of sockets (`tests/sockets`), and a
//! table of real programs, each with its own client and its data checked. Owns the command line and the stage.
//!
//! Everything runs in network namespaces of its own, so that ports and addresses are free and nothing else is heard.
#![forbid(unsafe_code)]

mod install;
mod place;
mod sockets;
mod table;

use anyhow::{Context, Result};
use harness::child::{self, Stream};
use harness::repo::Repo;
use harness::tally::{self, Tally};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

pub use install::{install, lacking};

/// Set in the process that is already in a namespace of its own.
const INSIDE: &str = "RAAS_PROGRAMS_INSIDE";
/// The whole stage with `--full`.
const STAGE_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Programs look into /sys for the interfaces of the namespace.
const ENTER: &str = "mount -t sysfs none /sys 2>/dev/null; ip link set lo up && exec \"$@\"";

/// What `cargo xtask programs` takes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// One part of it.
    #[arg(value_enum)]
    part: Option<Part>,
    /// Only cases or programs whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Beside kernel TCP only this way: same-host, two-hosts (over the lane),
    /// two-hosts-polled (as daemons are by default), client-only or server-only.
    #[arg(long)]
    way: Option<String>,
    /// Cases of sockets only with connections that are still on TCP when they begin.
    #[arg(long)]
    cold: bool,
    /// Only on kernel TCP.
    #[arg(long)]
    tcp: bool,
    /// Cases of sockets on kernel TCP so many times, which must all be equal; programs in all ways so many times in
    /// turn, with the median of their speeds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// More data and longer loads.
    #[arg(long)]
    full: bool,
    /// Show more of what differs and of what fails.
    #[arg(long)]
    show: bool,
    /// This `raas`, with the library of `raas run` beside it, instead of a release build.
    #[arg(long)]
    raas: Option<PathBuf>,
}

/// The parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The conformance of sockets.
    Sockets,
    /// The table of programs.
    Table,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.part.is_none_or(|own| own == part)
    }

    fn wants_way(&self, way: place::Way) -> bool {
        self.way.as_ref().is_none_or(|own| way.name() == own)
    }

    fn wants_name(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// `cargo xtask programs`.
pub fn run(args: &Args) -> Result<ExitCode> {
    let repo = Repo::open()?;
    if std::env::var_os(INSIDE).is_none() {
        if args.wants(Part::Table) {
            // Where there is a network.
            install::install(&table::wanted(args));
        }
        let mut again = inside(&std::env::args().skip(1).collect::<Vec<_>>())?;
        let status = again.status().context("cannot start `unshare`")?;
        return Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
    }
    let tally = run_here(&repo, args)?;
    println!("{tally}");
    Ok(if tally.failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Stage `programs`: this very program again, in a namespace; its lines are shown and counted.
pub fn run_stage(repo: &Repo, full: bool) -> Result<Tally> {
    let words: &[&str] = if full { &["programs", "--full"] } else { &["programs"] };
    install::install(&table::wanted_by_all());
    let mut again = inside(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())?;
    again.current_dir(&repo.root);
    let ended = child::run(&mut again, STAGE_LIMIT, |_, line| println!("{line}"))?;
    let mut tally = Tally::default();
    for line in ended.text(Stream::Out).lines() {
        tally.passed += u64::from(line.starts_with("ok   "));
        tally.failed += u64::from(line.starts_with("FAIL "));
        tally.skipped += u64::from(tally::skip_line(line).is_some());
    }
    let findings = if ended.success() == (tally.failed == 0) { vec![] } else { vec![ended.describe()] };
    tally.case("programs: came to its end", ended.took, &findings);
    Ok(tally)
}

/// This program with other words, in a network namespace of its own.
fn inside(words: &[String]) -> Result<Command> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--", "sh", "-c", ENTER, "sh"]).arg(harness::itself::path()?).args(words).env(INSIDE, "1");
    Ok(command)
}

fn run_here(repo: &Repo, args: &Args) -> Result<Tally> {
    let mut tally = Tally::default();
    let place = if args.tcp { None } else { Some(place::built(repo, args.raas.as_deref())?) };
    if args.wants(Part::Sockets) {
        tally.add(sockets::run(repo, args, place.as_ref())?);
    }
    if args.wants(Part::Table) {
        tally.add(table::run(repo, args, place.as_ref())?);
    }
    Ok(tally)
}
