//! Stage `lint`: what can be judged without running the product. Owns the calls of Cargo's own tools; the rules of this
//! repository are in the submodules. Each tool and each rule is one case.

mod circles;
mod crate_pages;
mod dependencies;
mod errors;
mod floors;
mod levels;
mod modules;
mod pages;
mod source;
mod tidy;

use crate::context::Context;
use anyhow::{Result, ensure};
use harness::build;
use harness::child::Stream;
use harness::repo::Repo;
use harness::tally::Tally;
use std::process::ExitCode;

/// Lines of a failing tool that are shown.
const SHOWN_LINES_MAX: usize = 150;

struct Tool {
    name: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    full_only: bool,
}

const RUSTDOC_FLAGS: (&str, &str) = ("RUSTDOCFLAGS", "-D warnings");

/// Library and binary documentation are built one after the other: `raas` names a library and a binary, and their pages
/// would land in one place at the same time. With examples among them the features are those of clippy's check, so that
/// no dependency is checked again. Both take long and find little, so they are for full runs.
const TOOLS: &[Tool] = &[
    Tool { name: "fmt", args: &["fmt", "--all", "--", "--check", "-l"], env: &[], full_only: false },
    Tool { name: "lockfile", args: &["metadata", "--locked", "--format-version", "1"], env: &[], full_only: false },
    Tool {
        name: "clippy",
        args: &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: &[],
        full_only: false,
    },
    Tool {
        name: "rustdoc, libraries",
        args: &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items", "--lib", "--examples"],
        env: &[RUSTDOC_FLAGS],
        full_only: true,
    },
    Tool {
        name: "rustdoc, binaries",
        args: &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items", "--bins", "--examples"],
        env: &[RUSTDOC_FLAGS],
        full_only: true,
    },
];

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    for tool in TOOLS.iter().filter(|tool| context.full || !tool.full_only) {
        let mut command = context.repo.command("cargo", tool.args);
        command.envs(tool.env.iter().copied());
        let ended = build::run_quiet(&mut command)?;
        let mut findings = vec![];
        if ended.status.is_none() {
            findings.push(build::failure(&tool.args.join(" "), &ended));
        } else if !ended.success() {
            findings.push(format!("cargo {}: {}", tool.args.join(" "), ended.describe()));
            // Standard output of `cargo metadata` is the metadata, not a finding.
            let said = if tool.name == "lockfile" { ended.text(Stream::Err) } else { all_text(&ended.lines) };
            findings.extend(said.lines().take(SHOWN_LINES_MAX).map(str::to_owned));
        }
        tally.case(tool.name, ended.took, &findings);
    }
    rules(context, &mut tally)?;
    Ok(tally)
}

/// The rules of this repository.
pub(crate) fn rules(context: &Context, tally: &mut Tally) -> Result<()> {
    let sources = source::Sources::read(&context.repo)?;
    tally.check("tidy: every Rust file says what it owns", || Ok(tidy::headers(&sources)));
    tally.check("tidy: files above 600 lines say why", || Ok(tidy::long_files(&sources)));
    tally.check("tidy: nothing left to do, no test switched off", || Ok(tidy::banned_words(&sources)));
    tally.check("tidy: no drawer modules", || Ok(tidy::drawers(&sources)));
    tally.check("errors: those of libraries print words", || Ok(errors::debug_is_words(&sources)));
    tally.check("lints: the same for all, unsafe code in nine crates", || levels::levels(&context.repo));
    tally.check("lints: state machines and their lists", || levels::disallowed(&context.repo));
    tally.check("dependencies: licences, bans and sources", || dependencies::dependencies(&context.repo));
    tally.check("no circle among the modules of a crate", || circles::check(&context.repo));
    tally.check("floors: nothing imports upward", || Ok(floors::floors(&context.repo)));
    tally.check("pages: the files that they name are there", || pages::paths(&context.repo));
    tally.check("pages: figures are those of the result files", || bench_harness::pages::findings(&context.repo));
    tally.check("pages: versions are the code's", || pages::versions(&context.repo));
    tally.check("pages: fuzz targets and suites are listed", || pages::lists(&context.repo));
    tally.check("pages: links lead somewhere", || pages::links(&context.repo));
    tally.check("pages: the book has each of them", || pages::book(&context.repo));
    tally.check("pages: lengths of pages, cells and lines", || pages::lengths(&context.repo));
    tally.check("pages: what is, not what was", || pages::history(&context.repo));
    tally.check("pages: names of code exist", || pages::names(&context.repo));
    tally.check("pages: results and figures are small", || pages::results(&context.repo));
    tally.check("floors: the page of each crate says what it owns, never does and uses", || {
        crate_pages::said(&context.repo)
    });
    tally.check("floors: the table of crates is true", || floors::described(&context.repo));
    tally.check("floors: only the command knows the daemon", || Ok(floors::daemon(&context.repo.packages)));
    tally.check("floors: no I/O in the state machines", || floors::io_free(&context.repo));
    Ok(())
}

/// What `cargo xtask circles` takes.
#[derive(clap::Args, Debug)]
pub(crate) struct CirclesArgs {
    /// Packages; all of the workspace if none is named.
    packages: Vec<String>,
}

/// Prints the circles among the modules of the packages, excused or not, and fails if there is one.
pub(crate) fn circles(args: &CirclesArgs) -> Result<ExitCode> {
    let repo = Repo::open()?;
    for name in &args.packages {
        ensure!(repo.packages.iter().any(|package| package.name == *name), "no package named {name} in this workspace");
    }
    let mut count = 0;
    for package in &repo.packages {
        if args.packages.is_empty() || args.packages.contains(&package.name) {
            let found = circles::of_package(&repo, package)?;
            found.iter().for_each(|circle| println!("{circle}"));
            count += found.len();
        }
    }
    println!("{count} circles");
    Ok(if count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn all_text(lines: &[(Stream, String)]) -> String {
    lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n")
}
