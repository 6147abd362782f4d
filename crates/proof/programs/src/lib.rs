//! Programs that nobody changed, on kernel TCP and under `raas run`: the conformance of sockets (`tests/sockets`), and a
//! table of real programs, each with its own client and its data checked. Owns the command line and the stage.
//!
//! Everything runs in network namespaces of its own, so that ports and addresses are free and nothing else is heard.
//!
//! It must never excuse a difference that its pages do not list. May use `harness`. Order of calls: the programs are
//! built, then both parts, each in namespaces of its own.
#![forbid(unsafe_code)]

mod place;
mod sockets;
mod table;
pub mod verbs;

use anyhow::{Context, Result, anyhow};
use harness::child::{self, Ended, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;
use harness::tally::{self, Tally};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Set in the process that is already in a namespace of its own.
const INSIDE: &str = "RAAS_PROGRAMS_INSIDE";
/// One part of the stage with `--full`, on a machine that is busy too.
const PART_LIMIT: Duration = Duration::from_secs(90 * 60);
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
    /// Only the ways and the programs of the test command without `--full`.
    #[arg(long, conflicts_with = "full")]
    short: bool,
    /// Show more of what differs and of what fails.
    #[arg(long)]
    show: bool,
    /// This `raas`, with the library of `raas run` beside it, instead of the one that tests have.
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
            packages::install(&table::wanted(args));
        }
        let mut again = inside(&std::env::args().skip(1).collect::<Vec<_>>())?;
        let status = again.status().context("cannot start `unshare`")?;
        return Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
    }
    let tally = run_here(&repo, args)?;
    println!("{tally}");
    Ok(if tally.failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the stage needs of Debian.
pub fn needs(full: bool) -> Vec<Need> {
    let programs = if full { table::wanted_by_all() } else { table::wanted_by_short() };
    [&[("cc", "gcc"), ("unshare", "util-linux"), ("ip", "iproute2")], &programs[..]].concat()
}

/// Stage `programs`: this very program again for each part, at the same time, each in a namespace of its own. Nearly all
/// of it waits. The lines of a part are shown when it has ended.
pub fn run_stage(repo: &Repo, full: bool) -> Result<Tally> {
    packages::install(&needs(full));
    place::built(repo, None)?;
    let size = if full { "--full" } else { "--short" };
    let mut tally = Tally::default();
    let parts = std::thread::scope(|scope| {
        let parts = ["sockets", "table"].map(|part| (part, scope.spawn(move || run_part(repo, part, size))));
        parts.map(|(part, running)| (part, running.join().unwrap_or_else(|_| Err(anyhow!("its thread failed")))))
    });
    for (part, ended) in parts {
        let ended = ended?;
        let mut counted = Tally::default();
        for (stream, line) in &ended.lines {
            println!("{line}");
            if *stream == Stream::Out {
                tally::count_line(line, &mut counted);
            }
        }
        let findings = if ended.success() == (counted.failed == 0) { vec![] } else { vec![ended.describe()] };
        counted.case(&format!("programs: {part} came to its end"), ended.took, &findings);
        tally.add(counted);
    }
    Ok(tally)
}

fn run_part(repo: &Repo, part: &str, size: &str) -> Result<Ended> {
    let mut again = inside(&["programs", part, size].map(str::to_owned))?;
    child::run_quiet(again.current_dir(&repo.root), PART_LIMIT)
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
