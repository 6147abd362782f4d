//! The programs that stages start, built for debugging. Owns the one cargo call for all of them.
//!
//! Cargo builds a dependency once more for each set of features, and each choice of packages has a set of its own:
//! `--package raas-cli` after the unit tests of the workspace compiles half of the tree again. With the whole workspace
//! chosen, and an example among what is built (so that the features of tests count), the sets are those of stage
//! `unit`, and little but linking is left.

use std::path::PathBuf;

use anyhow::Result;

use crate::build;
use crate::repo::Repo;

#[rustfmt::skip]
const ARGS: &[&str] = &[
    "build", "--workspace", "--lib", "--bin", "raas", "--bin", "bench", "--bin", "hostile", "--bin", "sim", "--bin", "interop", "--bin", "iwarp_peer",
    "--example", "datagram_echo", "--example", "holes", "--test", "it",
];

/// Builds them; what the compiler says besides its progress is shown.
pub fn build(repo: &Repo) -> Result<()> {
    build::must(&mut repo.command("cargo", ARGS))
}

/// One of them.
pub fn path(repo: &Repo, name: &str) -> PathBuf {
    repo.target.join("debug").join(name)
}
