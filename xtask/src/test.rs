//! `cargo xtask test`: the registry of stages and the run over them. Owns the order, the closing table and the last line.
//! A stage is listed here only when it exists: there are no empty ones.

mod closing;

use crate::context::Context;
use crate::{conformance, demo, hostile_stage, languages, lint, packaging, python, sim_stage, unit};
use anyhow::{Result, bail};
use closing::Closing;
use harness::packages::{self, Need};
use harness::repo::Repo;
use harness::tally::{Tally, fail};
use std::process::ExitCode;

/// What `cargo xtask test` takes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Stages to run, in this order; all of them if none is named.
    stages: Vec<String>,
    /// Everything: all guests, all ways, more seeds, longer runs. docs/proof/testing.md lists what it has more.
    #[arg(long)]
    full: bool,
    /// Install no Debian package: a judge that is missing is a skip, which CI=true makes a failure.
    #[arg(long)]
    no_install: bool,
    /// List the stages and stop.
    #[arg(long)]
    list: bool,
}

struct Stage {
    name: &'static str,
    about: &'static str,
    run: fn(&Context) -> Result<Tally>,
    /// What it needs of Debian; the argument is whether everything is run.
    needs: fn(bool) -> Vec<Need>,
}

/// All stages, cheapest verdict first.
const STAGES: &[Stage] = &[
    Stage { name: "lint", about: "format, clippy, tidy rules, layers, pages", run: lint::run, needs: |_| vec![] },
    Stage {
        name: "unit",
        about: "unit, integration and doc tests of every crate",
        run: unit::run,
        needs: |_| unit::JUDGES.to_vec(),
    },
    Stage {
        name: "sim",
        about: "whole hosts in virtual time: fixed seeds, and fresh ones with --full; a seed that breaks a promise is printed",
        run: sim_stage::run,
        needs: |_| vec![],
    },
    Stage {
        name: "hostile",
        about: "daemons under tenants, deaths and strangers that misbehave; each judge prints its seed",
        run: hostile_stage::run,
        needs: |_| vec![],
    },
    Stage { name: "demo", about: "the whole demo, every byte verified", run: demo::run, needs: |_| vec![] },
    Stage {
        name: "conformance",
        about: "the suite of verbs semantics on the software NIC over UDP and TCP (in virtual time: stage unit; on rxe: stage vm)",
        run: conformance::run,
        needs: |_| vec![],
    },
    Stage {
        name: "vm",
        about: "suites in guests with the stock kernel's soft-RoCE",
        run: |context| vm::run_stage(&context.repo, vm::Stage::Vm, context.full),
        needs: |_| vec![],
    },
    Stage {
        name: "programs",
        about: "programs that nobody changed, on kernel TCP and under `raas run`: sockets call by call, real programs",
        run: |context| programs::run_stage(&context.repo, context.full),
        needs: programs::needs,
    },
    Stage {
        name: "verbs",
        about: "programs that use verbs, as Debian has them, on the software device of `raas verbs`; the whole matrix with --full",
        run: |context| programs::verbs::run_stage(&context.repo, context.full),
        needs: programs::verbs::needs,
    },
    Stage {
        name: "python",
        about: "the Python package: its tests on Debian's Python, the example for Node; with --full its wheel and the one for Go",
        run: python::run,
        needs: |full| [python::NEEDED, &languages::needs(full)].concat(),
    },
    Stage {
        name: "packaging",
        about: "the Debian package, built and judged; with --full image, manifests, and guests that install, use and purge it",
        run: packaging::run,
        needs: packaging::needs,
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
    if args.no_install {
        packages::forbid();
    }
    let context = Context { repo: Repo::open()?, full: args.full };
    install_ahead(&stages, args.full);
    for (name, guests) in [("vm", vm::Stage::Vm), ("packaging", vm::Stage::Packaging)] {
        if stages.iter().skip(1).any(|stage| stage.name == name) {
            vm::prepare_ahead(&context.repo, guests, context.full);
        }
    }
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut closing = Closing::begin();
    for stage in stages {
        println!("=== {}: {}", stage.name, stage.about);
        let tally = (stage.run)(&context).unwrap_or_else(|error| {
            fail(&format!("{}: {error:#}", stage.name));
            Tally { failed: 1, ..Tally::default() }
        });
        let mut tally = tally.strict(ci);
        if tally == Tally::default() {
            fail(&format!("{}: the stage counted no case", stage.name));
            tally.failed = 1;
        }
        println!("--- {}\n", closing.end_of(stage.name, tally));
    }
    let total = closing.print();
    println!("{total}");
    Ok(if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says what is missing of Debian, and installs it beside the first stage, which needs none of it. A stage that needs a
/// package waits for its turn, and looks for itself.
fn install_ahead(stages: &[&'static Stage], full: bool) {
    let needs: Vec<Need> = stages.iter().flat_map(|stage| (stage.needs)(full)).collect();
    let missing = packages::missing(&needs);
    if missing.is_empty() {
        return;
    }
    match packages::why_not() {
        None => {
            println!(
                "{} Debian package(s) are missing and will be installed with what they need, none is removed \
                 (--no-install: none): {}\n",
                missing.len(),
                missing.join(" ")
            );
            std::thread::spawn(move || packages::install(&needs));
        }
        Some(why) => println!(
            "NOTE {} Debian package(s) are missing and are not installed ({why}); each test that needs one says SKIP: {}\n",
            missing.len(),
            missing.join(" ")
        ),
    }
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

    #[test]
    fn everything_needs_no_less_than_the_default() {
        for stage in STAGES {
            let (default, full) = ((stage.needs)(false), (stage.needs)(true));
            assert!(default.iter().all(|need| full.contains(need)), "{}: {default:?} and {full:?}", stage.name);
        }
    }
}
