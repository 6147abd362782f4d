//! `cargo xtask quick`: the command of a person who edits. It judges what changed: format, the rules of the lint stage,
//! clippy, then the tests of the changed crates, then those of the crates that use them, as many as there is time for.
//! What it left out it names. Owns the choice of crates; `cargo xtask test` judges everything.

use crate::context::Context;
use crate::lint;
use anyhow::{Result, bail, ensure};
use harness::build;
use harness::child::{self, Stream};
use harness::repo::{Package, Repo};
use harness::tally::Tally;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// What `cargo xtask quick` takes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Packages to judge as if they had changed, in place of those that have.
    packages: Vec<String>,
    /// What changed since this commit, beside what is not committed; without it, since the last one that another branch
    /// has too.
    #[arg(long)]
    since: Option<String>,
    /// Seconds after which no further crate's tests are begun.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

/// All tests of one crate.
const TESTS_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Files outside of crates whose change is one of every crate.
const OF_ALL: &[&str] = &["Cargo.toml", "Cargo.lock", ".cargo/config.toml", "lints/", "rustfmt.toml"];

/// What changed.
#[derive(Debug, Default, PartialEq)]
struct Changed {
    /// Crates with a changed file.
    own: BTreeSet<String>,
    /// Others that use them, nearest first.
    users: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let begin = Instant::now();
    let context = Context { repo: Repo::open()?, full: false };
    let changed = match &args.packages[..] {
        [] => of_files(&context.repo, &changed_files(&context.repo, args.since.as_deref())?),
        named => of_crates(&context.repo, named)?,
    };
    let mut tally = Tally::default();
    cargo(&context.repo, "fmt", &["fmt", "--all", "--", "--check", "-l"], &[], &mut tally)?;
    lint::rules(&context, &mut tally)?;
    let judged: Vec<&String> = changed.own.iter().chain(&changed.users).collect();
    if judged.is_empty() {
        println!("     no crate has changed");
    } else {
        println!("     changed: {}", words(changed.own.iter()));
        println!("     they are used by: {}", words(changed.users.iter()));
        cargo(&context.repo, "clippy", &["clippy", "--quiet", "--all-targets"], &judged, &mut tally)?;
        tests(&context.repo, args, &changed, begin, &mut tally)?;
    }
    println!("{tally} in {:.0} seconds", begin.elapsed().as_secs_f64());
    Ok(if tally.failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn words<'n>(names: impl Iterator<Item = &'n String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

/// One command of Cargo's over packages, as one case.
fn cargo(repo: &Repo, name: &str, args: &[&str], packages: &[&String], tally: &mut Tally) -> Result<()> {
    let mut command = repo.command("cargo", args);
    of_packages(&mut command, packages);
    if name == "clippy" {
        command.args(["--", "-D", "warnings"]);
    }
    let ended = build::run_quiet(&mut command)?;
    let findings =
        if ended.success() { vec![] } else { vec![ended.describe(), ended.text(Stream::Out), ended.text(Stream::Err)] };
    tally.case(name, ended.took, &findings);
    Ok(())
}

fn of_packages(command: &mut Command, packages: &[&String]) {
    for package in packages {
        command.args(["--package", package.as_str()]);
    }
}

/// The tests of the changed crates in any case; then of one crate after the other that uses them, until time is over.
fn tests(repo: &Repo, args: &Args, changed: &Changed, begin: Instant, tally: &mut Tally) -> Result<()> {
    let judged: Vec<&String> = changed.own.iter().chain(&changed.users).collect();
    let own: Vec<&String> = changed.own.iter().collect();
    test(repo, &judged, &own, tally)?;
    let mut users = changed.users.iter();
    while begin.elapsed() < Duration::from_secs(args.seconds) {
        let Some(user) = users.next() else { return Ok(()) };
        test(repo, &judged, &[user], tally)?;
    }
    let left: Vec<&String> = users.collect();
    if !left.is_empty() {
        println!("     NOT TESTED, since {} s are over: {}", args.seconds, words(left.into_iter()));
    }
    Ok(())
}

/// Runs the tests of `packages`. All of `judged` are named to Cargo each time: another choice would have other features, and
/// so other builds, of what they use.
fn test(repo: &Repo, judged: &[&String], packages: &[&String], tally: &mut Tally) -> Result<()> {
    let mut command = repo.command("cargo", &["nextest", "run", "--no-tests=pass", "--status-level=slow"]);
    of_packages(&mut command, judged);
    let filter: Vec<String> = packages.iter().map(|package| format!("package(={package})")).collect();
    command.args(["-E", &filter.join(" | ")]);
    let name = format!("tests of {}", words(packages.iter().copied()));
    let ended = child::run_quiet(&mut command, TESTS_LIMIT)?;
    let text = ended.text(Stream::Err);
    if text.contains("no such command: `nextest`") {
        bail!("cargo-nextest is not installed: `cargo install cargo-nextest --locked`, or `cargo xtask test unit`");
    }
    let summary = text.lines().rev().find(|line| line.trim_start().starts_with("Summary ["));
    let findings = if ended.success() { vec![] } else { vec![ended.describe(), text.clone()] };
    tally.case(&format!("{name}:{}", summary.unwrap_or_default().replace("Summary", "")), ended.took, &findings);
    Ok(())
}

/// Files that differ from `since`, and those that git does not know yet.
fn changed_files(repo: &Repo, since: Option<&str>) -> Result<Vec<String>> {
    let base = match since {
        Some(given) => given.to_owned(),
        None => base_of(repo),
    };
    let differ = git(repo, &["diff", "--name-only", &base])?;
    let new = git(repo, &["ls-files", "--others", "--exclude-standard"])?;
    Ok(differ.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// The last commit that the remote's branch has too; the last one where there is no remote.
fn base_of(repo: &Repo) -> String {
    let found = git(repo, &["merge-base", "HEAD", "@{upstream}"]).or_else(|_| git(repo, &["rev-parse", "HEAD"]));
    found.map_or_else(|_| "HEAD".to_owned(), |text| text.trim().to_owned())
}

fn git(repo: &Repo, args: &[&str]) -> Result<String> {
    let ended = child::run_quiet(&mut repo.command("git", args), Duration::from_secs(60))?;
    ensure!(ended.success(), "git {}: {}", args.join(" "), ended.text(Stream::Err));
    Ok(ended.text(Stream::Out))
}

fn of_files(repo: &Repo, files: &[String]) -> Changed {
    let dirs: Vec<(&Path, &str)> =
        repo.packages.iter().map(|package| (repo.relative(&package.dir), package.name.as_str())).collect();
    let all = files.iter().any(|file| OF_ALL.iter().any(|one| file.starts_with(one)));
    let own = if all {
        repo.packages.iter().map(|package| package.name.clone()).collect()
    } else {
        files.iter().filter_map(|file| owner(&dirs, file)).collect()
    };
    let users = users(&repo.packages, &own);
    Changed { own, users }
}

/// The package in whose directory a file lies: the innermost.
fn owner(dirs: &[(&Path, &str)], file: &str) -> Option<String> {
    let around = dirs.iter().filter(|(dir, _)| Path::new(file).starts_with(dir));
    around.max_by_key(|(dir, _)| dir.components().count()).map(|(_, name)| (*name).to_owned())
}

fn of_crates(repo: &Repo, named: &[String]) -> Result<Changed> {
    for name in named {
        ensure!(repo.packages.iter().any(|package| package.name == *name), "no package named {name} in this workspace");
    }
    let own = named.iter().cloned().collect();
    let users = users(&repo.packages, &own);
    Ok(Changed { own, users })
}

/// The crates that use some of `own`, in any way, by distance.
fn users(packages: &[Package], own: &BTreeSet<String>) -> Vec<String> {
    let used_by: BTreeMap<&str, BTreeSet<&str>> = packages.iter().fold(BTreeMap::new(), |mut map, package| {
        for dependency in &package.dependencies {
            map.entry(dependency.name.as_str()).or_insert_with(BTreeSet::new).insert(package.name.as_str());
        }
        map
    });
    let mut seen: BTreeSet<&str> = own.iter().map(String::as_str).collect();
    let mut ring: Vec<&str> = seen.iter().copied().collect();
    let mut found = vec![];
    while !ring.is_empty() {
        let next: BTreeSet<&str> = ring
            .iter()
            .filter_map(|name| used_by.get(name))
            .flatten()
            .copied()
            .filter(|name| seen.insert(name))
            .collect();
        found.extend(next.iter().map(|name| (*name).to_owned()));
        ring = next.into_iter().collect();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::repo::Dependency;
    use std::path::PathBuf;

    fn package(name: &str, uses: &[&str]) -> Package {
        let dependency = |name: &&str| Dependency {
            name: (*name).to_owned(),
            kind: "dev".to_owned(),
            features: vec![],
            default_features: true,
        };
        Package {
            name: name.to_owned(),
            dir: PathBuf::from(name),
            dependencies: uses.iter().map(dependency).collect(),
            targets: vec![],
        }
    }

    #[test]
    fn users_come_by_distance_and_once() {
        let packages = [
            package("a", &[]),
            package("b", &["a"]),
            package("c", &["b", "a"]),
            package("d", &["c"]),
            package("e", &[]),
        ];
        let own = BTreeSet::from(["a".to_owned()]);
        assert_eq!(users(&packages, &own), ["b", "c", "d"]);
        assert_eq!(users(&packages, &BTreeSet::from(["e".to_owned()])), Vec::<String>::new());
    }

    #[test]
    fn a_file_belongs_to_the_innermost_package() {
        let dirs =
            [(Path::new("crates/a"), "a"), (Path::new("crates/a/inner"), "inner"), (Path::new("xtask"), "xtask")];
        assert_eq!(owner(&dirs, "crates/a/inner/src/lib.rs").as_deref(), Some("inner"));
        assert_eq!(owner(&dirs, "crates/a/src/lib.rs").as_deref(), Some("a"));
        assert_eq!(owner(&dirs, "docs/start/run.md"), None);
    }
}
