//! Stage `packaging`: what an operator installs. Owns the order of its parts and the Debian packages that they need; each
//! part has a module.

mod crates;
mod deb;
mod image;
mod install;
mod kubernetes;

use crate::compatibility;
use crate::context::Context;
use anyhow::{Context as _, Result, bail, ensure};
use harness::child::{self, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;
use harness::tally::Tally;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// What is needed, and the Debian package that has it.
const NEEDED: &[Need] = &[("dpkg-deb", "dpkg"), ("dh", "debhelper"), ("lintian", "lintian")];

/// What it needs of Debian.
pub(crate) fn needs(full: bool) -> Vec<Need> {
    if full { [NEEDED, kubernetes::NEEDED, image::NEEDED].concat() } else { NEEDED.to_vec() }
}

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    crates::judge(&context.repo, context.full, &mut tally)?;
    if context.full {
        compatibility::judge_history(&context.repo, &mut tally)?;
    }
    if context.full {
        install::judge(&context.repo, &mut tally);
    }
    packages::install(NEEDED);
    let lacking = packages::lacking(NEEDED);
    if lacking.is_empty() {
        if deb::judge(&context.repo, context.full, &mut tally) && context.full {
            image::judge(&context.repo, &mut tally)?;
            kubernetes::judge(&context.repo, &mut tally)?;
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
    packages::install(tools);
    let lacking = packages::lacking(tools);
    if !lacking.is_empty() {
        bail!("{} is not there: apt-get install debhelper", lacking.join(", "));
    }
    println!("{}", deb::package(&Repo::open()?, true)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes a file with its directories.
fn put(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let dir = to.parent().context("a file of the package has a directory")?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    std::fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode))?)
}

/// Standard output of a command that must succeed.
fn succeed(command: &mut Command, limit: Duration) -> Result<String> {
    let ended = child::run_quiet(command, limit)?;
    ensure!(
        ended.success(),
        "{:?}: {}\n{}\n{}",
        command.get_program(),
        ended.describe(),
        ended.text(Stream::Out),
        ended.text(Stream::Err)
    );
    Ok(ended.text(Stream::Out))
}
