//! `cargo xtask book`: the pages as a book, by mdbook where it is installed. The pages can be read as they are without it,
//! and stage `lint` checks their links in any case.

use anyhow::{Result, bail};
use harness::child::{self, Stream};
use harness::packages;
use harness::repo::Repo;
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10 * 60);

pub(crate) fn run() -> Result<ExitCode> {
    let repo = Repo::open()?;
    if !packages::is_here("mdbook") {
        bail!("mdbook is not on the path: `cargo install mdbook --locked` brings it; docs/SUMMARY.md lists the pages");
    }
    let out = repo.target.join("book");
    let mut command = repo.command("mdbook", &["build", "docs", "--dest-dir"]);
    let ended = child::run(command.arg(&out), LIMIT, |_, line| println!("{line}"))?;
    if !ended.success() {
        bail!("mdbook: {}\n{}", ended.describe(), ended.text(Stream::Err));
    }
    println!("{}", out.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}
