//! Stage `packaging`: what an operator installs. Owns the order of its parts and the Debian packages that they need; each
//! part has a module.

mod deb;

use crate::context::Context;
use anyhow::{Result, bail};
use harness::repo::Repo;
use harness::tally::Tally;
use programs::{install, lacking};
use std::process::ExitCode;

/// What is needed, and the Debian package that has it.
const NEEDED: &[(&str, &str)] = &[("dpkg-deb", "dpkg"), ("dh", "debhelper"), ("lintian", "lintian")];

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    install(NEEDED);
    let lacking = lacking(NEEDED);
    if lacking.is_empty() {
        if deb::judge(&context.repo, context.full, &mut tally) {
            tally.add(vm::run_stage(&context.repo, vm::Stage::Packaging, context.full)?);
        }
    } else {
        tally.skip("package", &format!("{} is not there and cannot be installed", lacking.join(", ")));
    }
    Ok(tally)
}

/// `cargo xtask package`.
pub(crate) fn package() -> Result<ExitCode> {
    let tools = &NEEDED[..2];
    install(tools);
    let lacking = lacking(tools);
    if !lacking.is_empty() {
        bail!("{} is not there: apt-get install debhelper", lacking.join(", "));
    }
    println!("{}", deb::build(&Repo::open()?)?.display());
    Ok(ExitCode::SUCCESS)
}
