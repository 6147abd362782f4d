//! The programs that stages start, built for debugging. Owns the one cargo call for all of them.
//!
//! Cargo builds a dependency once more for each set of features, and each choice of packages has a set of its own:
//! `--package raas-cli` after the unit tests of the workspace compiles half of the tree again. With the whole workspace
//! chosen, and an example among what is built (so that the features of tests count), the sets are those of stage
//! `unit`, and little but linking is left.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::child::{self, Ended};
use crate::repo::{self, Repo};

/// A cold build.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
#[rustfmt::skip]
const ARGS: &[&str] = &[
    "build", "--workspace", "--bin", "raas", "--bin", "hostile", "--bin", "interop", "--bin", "iwarp_peer",
    "--example", "datagram_echo", "--example", "holes", "--test", "it",
];

/// Builds them; what the compiler says besides its progress is shown.
pub fn build(repo: &Repo) -> Result<Ended> {
    child::run(&mut repo.command("cargo", ARGS), BUILD_LIMIT, |_, line| {
        if !repo::is_progress(line) {
            println!("{line}");
        }
    })
}

/// One of them.
pub fn path(repo: &Repo, name: &str) -> PathBuf {
    repo.target.join("debug").join(name)
}
