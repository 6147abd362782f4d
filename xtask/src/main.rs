//! `cargo xtask`: the project's own tasks. Owns the command line and the exit code; every task lives in its own module.
//! It must never be needed to build or run `raas` itself.
//!
//! May use `bench-harness`, `harness`, `programs`, `vm`. Order of calls: none: each task is one call.
#![forbid(unsafe_code)]

mod book;
mod compatibility;
mod conformance;
mod context;
mod demo;
mod hostile_stage;
mod languages;
mod lint;
mod packaging;
mod product;
mod python;
mod quick;
mod sim_stage;
mod test;
mod unit;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the test stages; the last line is `N passed, N failed, N skipped`.
    Test(test::Args),
    /// Judge what changed: format, clippy and tests of the changed crates and of those that use them, circles, pages.
    Quick(quick::Args),
    /// Judge an older release beside this one, as `test packaging --full` does.
    Compatibility(compatibility::Args),
    /// The pages as a book in target/book, by mdbook where it is installed.
    Book,
    /// Show circles among the modules of packages.
    Circles(lint::CirclesArgs),
    /// Measure against rivals and write ratios and verdicts.
    Bench(bench_harness::Args),
    /// Draw figures of result files into pages.
    Pages(bench_harness::pages::Args),
    /// Run a command in one or two guests with kernel soft-RoCE and return its exit code.
    Vm(vm::Args),
    /// Build the Debian package of this release.
    Package,
    /// Run the conformance of sockets and the table of programs, on kernel TCP and under `raas run`.
    Programs(programs::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Quick(args) => quick::run(&args),
        Task::Compatibility(args) => compatibility::run(&args),
        Task::Book => book::run(),
        Task::Circles(args) => lint::circles(&args),
        Task::Bench(args) => bench_harness::run(&args),
        Task::Pages(args) => bench_harness::pages::run(&args),
        Task::Vm(args) => vm::run(&args),
        Task::Package => packaging::package(),
        Task::Programs(args) => programs::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
