//! What a stranger installs: `cargo install` into an empty directory, then `raas run` with nothing but that one file.

use super::succeed;
use anyhow::{Context as _, Result, ensure};
use harness::repo::Repo;
use harness::tally::Tally;
use std::process::Command;
use std::time::Duration;

const INSTALL_LIMIT: Duration = Duration::from_secs(40 * 60);
const RUN_LIMIT: Duration = Duration::from_secs(60);
const WORDS: &[&str] = &["install", "--locked", "--path", "crates/tools/raas-cli", "--no-track", "--root"];
const FILE: &str = "bin/raas";

/// Compiles little where the package was built before: Cargo has one target directory for both.
pub(super) fn judge(repo: &Repo, tally: &mut Tally) {
    tally.check("cargo install: one file, whose `raas run` loads its library", || installs(repo));
}

fn installs(repo: &Repo) -> Result<Vec<String>> {
    let dir = tempfile::tempdir()?;
    let (root, home) = (dir.path().join("root"), dir.path().join("home"));
    std::fs::create_dir(&home)?;
    succeed(repo.command("cargo", WORDS).arg(&root), INSTALL_LIMIT)?;
    let mut files = vec![];
    for folder in std::fs::read_dir(&root)? {
        for file in std::fs::read_dir(folder?.path())? {
            files.push(file?.path().strip_prefix(&root)?.to_owned());
        }
    }
    ensure!(files.len() == 1 && files[0].as_os_str() == FILE, "it installed {files:?}, not {FILE} alone");
    let mut program = Command::new(root.join(FILE));
    program.args(["run", "cat", "/proc/self/maps"]).env_clear();
    program.env("PATH", std::env::var_os("PATH").context("no $PATH")?);
    program.env("HOME", &home).env("XDG_CACHE_HOME", home.join("cache"));
    let maps = succeed(&mut program, RUN_LIMIT)?;
    let library = home.join("cache/raas/libraas_preload-");
    let library = library.to_str().context("the path of the temporary directory is not UTF-8")?;
    Ok(if maps.contains(library) { vec![] } else { vec![format!("no {library}* among what it loaded:\n{maps}")] })
}
