//! The `raas` that stages `demo` and `packaging` judge: with `--full` what `cargo build --release` makes for a user,
//! otherwise the same program as the other stages have it. Compiling everything once more for that would take a fifth
//! of the time that the whole command may take.

use anyhow::Result;
use harness::repo::Repo;
use harness::{build, programs};
use std::path::PathBuf;

/// Builds it; returns the directory with `raas` and `libraas_preload.so`.
pub(crate) fn ready(repo: &Repo, is_release: bool) -> Result<PathBuf> {
    if is_release {
        // The library as a file is no part of what is built by default.
        let words = ["build", "--release", "--package", "raas-cli", "--package", "raas-preload"];
        build::must(&mut repo.command("cargo", &words))?;
        return Ok(repo.target.join("release"));
    }
    programs::build(repo)?;
    Ok(repo.target.join("debug"))
}
