//! Figures of the kernel's device: a guest has it, so the same command runs there and hands what it measured to this
//! one, which judges, draws and writes. Owns what goes into the guest and what comes out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::child::{self, Stream};
use harness::repo::Repo;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Device, Effort, Figure, Hosts, chosen, measure};
use crate::{Args, machine, with_priority};

const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Seconds of a guest: far beyond what it takes on a machine that is busy too.
const GUEST_LIMIT_S: u64 = 3600;
/// Beyond that the guest is ended from outside.
const LIMIT: Duration = Duration::from_secs(GUEST_LIMIT_S + 300);
/// A guest has this variable: the directory that the host sees too.
const RESULTS: &str = "VM_RESULTS";

/// What comes out of a guest for each figure.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Handed {
    pub(super) figure: Figure,
    /// The guest.
    pub(super) machine: Value,
}

/// What a guest left.
#[derive(Debug)]
pub(super) struct Left {
    /// In the order in which they were wanted.
    pub(super) found: Vec<(u32, Handed)>,
    /// Numbers of those that it did not come to.
    pub(super) missing: Vec<u32>,
}

/// The directory for results, in a guest.
pub(super) fn results() -> Option<PathBuf> {
    std::env::var_os(RESULTS).map(PathBuf::from)
}

/// In the guest: measures, and hands over each figure as soon as it is done.
pub(super) fn inside(args: &Args, results: &Path) -> Result<()> {
    let root = std::env::current_dir()?;
    // Cargo would take seconds here to say what is known.
    let repo = Repo { target: root.join("target"), root, packages: vec![] };
    let machine = machine::describe();
    let mut hosts = Hosts::new(&repo, args, "roce")?;
    let failed = measure(&mut hosts, args, Effort::of(args), &mut |number, figure| {
        put(results, number, &Handed { figure, machine: machine.clone() })
    })?;
    ensure!(failed.is_empty(), "figures {failed:?} could not be measured in the guest");
    Ok(())
}

fn file(results: &Path, number: u32) -> PathBuf {
    results.join(format!("{}.handed.json", Device::Rxe.name_of(number)))
}

fn put(results: &Path, number: u32, handed: &Handed) -> Result<()> {
    let path = file(results, number);
    let text = serde_json::to_vec(handed)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What the guest left of the figures that were wanted.
fn take(results: &Path, wanted: &[u32]) -> Result<Left> {
    let (mut found, mut missing) = (vec![], vec![]);
    for number in wanted {
        let path = file(results, *number);
        match std::fs::read(&path) {
            Ok(bytes) => {
                let handed = serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?;
                found.push((*number, handed));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing.push(*number),
            Err(e) => bail!("cannot read {}: {e}", path.display()),
        }
    }
    Ok(Left { found, missing })
}

/// On the host: builds, boots the guest, and takes what it measured.
pub(super) fn outside(repo: &Repo, args: &Args) -> Result<Left> {
    let programs = match &args.figures.programs {
        Some(programs) => std::fs::canonicalize(programs)?,
        None => {
            let words = ["build", "--release", "--package", "raas-cli", "--package", "bench"];
            let build = child::run_quiet(&mut repo.command("cargo", &words), BUILD_LIMIT)?;
            ensure!(build.success(), "building the programs: {}\n{}", build.describe(), build.text(Stream::Err));
            repo.target.join("release")
        }
    };
    let results = repo.target.join("vm/results/bench-figures");
    match std::fs::remove_dir_all(&results) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => bail!("cannot empty {}: {e}", results.display()),
        _ => std::fs::create_dir_all(&results)?,
    }
    // A copy: Cargo may replace the file of the running one, and the guest knows no descriptors of this process.
    let xtask = repo.target.join("vm/bench-figures-xtask");
    std::fs::copy(harness::itself::path()?, &xtask).context("cannot copy this program for the guest")?;
    let ended = boot(repo, args, &xtask, &programs, &results);
    let wanted: Vec<u32> = chosen(args)?.into_iter().map(|(number, _)| number).collect();
    let left = take(&results, &wanted)?;
    match ended {
        Err(e) if left.found.is_empty() => Err(e),
        Err(e) => {
            eprintln!("{e:#}");
            Ok(left)
        }
        Ok(()) => Ok(left),
    }
}

fn boot(repo: &Repo, args: &Args, xtask: &Path, programs: &Path, results: &Path) -> Result<()> {
    let limit = GUEST_LIMIT_S.to_string();
    let itself = harness::itself::path()?;
    let itself = text(&itself)?;
    let mut words =
        [itself, "vm", "--timeout-s", &limit, "--results", text(results)?, "--"].map(str::to_owned).to_vec();
    words.extend(command(args, text(xtask)?, text(programs)?));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = with_priority(&words);
    let (program, arguments) = words.split_first().context("a command has words")?;
    let ended = child::run(&mut repo.command(program, arguments), LIMIT, |_, line| println!("{line}"))?;
    ensure!(ended.success(), "the guest failed: {}", ended.describe());
    Ok(())
}

/// What the guest runs: this very bench.
fn command(args: &Args, xtask: &str, programs: &str) -> Vec<String> {
    let mut words = [xtask, "bench", "figures", "--device", "rxe", "--programs", programs].map(str::to_owned).to_vec();
    let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
    let effort = Effort::of(args);
    add("--mtu", args.mtu.to_string());
    add("--rounds", effort.rounds.to_string());
    add("--seconds", effort.seconds.to_string());
    add("--points", effort.points.to_string());
    if let Some(only) = &args.only {
        add("--only", only.clone());
    }
    words
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::data::{Scale, tests::example};
    use super::*;
    use crate::stats::{Bar, Better, Kind, Row, Series, Verdict};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> Args {
        Cli::parse_from([&["xtask", "figures"], words].concat()).args
    }

    #[test]
    fn what_a_guest_hands_over_is_judged_as_if_it_had_been_measured_here() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("raas-handed-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut figure = example(Scale::Log);
        let series = Series {
            case: "figure 6: x".to_owned(),
            unit: "us".to_owned(),
            better: Better::Lower,
            ours: vec![1.0; 9],
            rival: "r".to_owned(),
            rival_values: vec![2.0; 9],
        };
        figure.rows.push(Row { series, bar: Some((Bar::RatioAtMost(0.95), Kind::Must)) });
        let before = serde_json::to_value(&figure)?;
        put(&folder, 6, &Handed { figure, machine: serde_json::json!({ "cores": 2 }) })?;
        let taken = take(&folder, &[1, 6]);
        std::fs::remove_dir_all(&folder)?;
        let Left { found, missing } = taken?;
        assert_eq!(missing, [1], "what the guest did not come to is told");
        let [(6, handed)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(serde_json::to_value(&handed.figure)?, before);
        assert_eq!(handed.figure.rows[0].verdict(), Some(Verdict::Met));
        assert_eq!(handed.machine["cores"], 2);
        Ok(())
    }

    #[test]
    fn the_guest_measures_what_was_asked_for_outside() {
        let outside = parsed(&["--device", "rxe", "--only", "6,7", "--rounds", "2", "--mtu", "4200"]);
        let words = command(&outside, "/x/xtask", "/x/release");
        assert_eq!(words[..3], ["/x/xtask", "bench", "figures"]);
        let inside = parsed(&words[3..].iter().map(String::as_str).collect::<Vec<_>>());
        let (outside_effort, inside_effort) = (Effort::of(&outside), Effort::of(&inside));
        assert_eq!(format!("{outside_effort:?}"), format!("{inside_effort:?}"));
        assert_eq!((inside.mtu, inside.only.as_deref(), inside.figures.device), (4200, Some("6,7"), Device::Rxe));
    }

    #[test]
    fn the_kernels_device_has_its_figures_and_names_of_its_own() {
        let numbers = |args: &Args| chosen(args).map(|all| all.into_iter().map(|(n, _)| n).collect::<Vec<_>>());
        assert_eq!(numbers(&parsed(&["--device", "rxe"])).expect("six"), [1, 2, 6, 7, 11, 12]);
        let told = numbers(&parsed(&["--device", "rxe", "--only", "8"])).expect_err("it has none").to_string();
        assert!(told.contains("there are 1, 2, 6, 7, 11, 12"), "{told}");
        assert_eq!(Device::Rxe.name_of(6), "fig06-rxe");
        assert_eq!(Device::Softnic.name_of(6), "fig06");
    }
}
