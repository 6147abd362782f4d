//! `cargo xtask test`: the registry of stages and the run over them. Owns the order, the seconds and the closing line.
//! A stage is listed here only when it exists: there are no empty ones.

use crate::context::Context;
use crate::{conformance, demo, hostile_stage, lint, packaging, python, sim_stage, unit};
use anyhow::{Result, bail};
use harness::repo::Repo;
use harness::tally::Tally;
use std::process::ExitCode;
use std::time::Instant;

/// What `cargo xtask test` takes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Stages to run, in this order; all of them if none is named.
    stages: Vec<String>,
    /// Longer runs: more seeds, more property cases.
    #[arg(long)]
    full: bool,
    /// List the stages and stop.
    #[arg(long)]
    list: bool,
}

struct Stage {
    name: &'static str,
    about: &'static str,
    run: fn(&Context) -> Result<Tally>,
}

/// All stages, cheapest verdict first.
const STAGES: &[Stage] = &[
    Stage { name: "lint", about: "format, clippy, rustdoc, tidy rules, layers", run: lint::run },
    Stage { name: "unit", about: "unit, integration and doc tests of every crate", run: unit::run },
    Stage {
        name: "sim",
        about: "whole hosts in virtual time: fixed seeds, then fresh ones; a seed that breaks a promise is printed",
        run: sim_stage::run,
    },
    Stage {
        name: "hostile",
        about: "daemons under tenants, deaths and strangers that misbehave; each judge prints its seed",
        run: hostile_stage::run,
    },
    Stage { name: "demo", about: "the whole demo, every byte verified", run: demo::run },
    Stage {
        name: "conformance",
        about: "the suite of verbs semantics on the software NIC over UDP (in virtual time: stage unit; on rxe: stage vm)",
        run: conformance::run,
    },
    Stage {
        name: "vm",
        about: "suites in guests with the stock kernel's soft-RoCE",
        run: |context| vm::run_stage(&context.repo, vm::Stage::Vm, context.full),
    },
    Stage {
        name: "programs",
        about: "programs that nobody changed, on kernel TCP and under `raas run`: sockets call by call, real programs",
        run: |context| programs::run_stage(&context.repo, context.full),
    },
    Stage {
        name: "python",
        about: "the Python package: its tests on Debian's Python, and its wheel; the examples for Node and (--full) Go",
        run: python::run,
    },
    Stage {
        name: "packaging",
        about: "the Debian package and the Kubernetes manifests: built, judged, and in guests installed, used and purged",
        run: packaging::run,
    },
];

/// Runs the stages asked for; the exit code says whether all passed.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        for stage in STAGES {
            println!("{:12} {}", stage.name, stage.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stages = chosen(&args.stages)?;
    let context = Context { repo: Repo::open()?, full: args.full };
    for (name, guests) in [("vm", vm::Stage::Vm), ("packaging", vm::Stage::Packaging)] {
        if stages.iter().skip(1).any(|stage| stage.name == name) {
            vm::prepare_ahead(&context.repo, guests, context.full);
        }
    }
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut total = Tally::default();
    for stage in stages {
        println!("=== {}: {}", stage.name, stage.about);
        let start = Instant::now();
        let tally = (stage.run)(&context).unwrap_or_else(|error| {
            println!("FAIL {}: {error:#}", stage.name);
            Tally { failed: 1, ..Tally::default() }
        });
        let mut tally = tally.strict(ci);
        if tally == Tally::default() {
            println!("FAIL {}: the stage counted no case", stage.name);
            tally.failed = 1;
        }
        println!("--- {}: {tally} in {:.1} seconds\n", stage.name, start.elapsed().as_secs_f64());
        total.add(tally);
    }
    println!("{total}");
    Ok(if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Stage>> {
    if names.is_empty() {
        return Ok(STAGES.iter().collect());
    }
    names
        .iter()
        .map(|name| match STAGES.iter().find(|stage| stage.name == name) {
            Some(stage) => Ok(stage),
            None => {
                let known: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
                bail!("no stage named {name}; there are: {}", known.join(", "))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_unique_and_unknown_ones_are_refused() {
        let mut names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STAGES.len());
        assert!(chosen(&["no-such-stage".to_owned()]).is_err());
        assert_eq!(chosen(&[]).map(|stages| stages.len()).ok(), Some(STAGES.len()));
    }
}
