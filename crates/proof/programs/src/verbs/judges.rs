//! The programs: packages of Debian, downloaded and unpacked under `target`, never installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::child;
use harness::repo::Repo;

/// What is fetched: the programs, and the libraries that they are linked with. Of rdma-core's own libibverbs nothing is.
const PACKAGES: [&str; 8] = [
    "ibverbs-utils",
    "perftest",
    "ibverbs-providers",
    "libibumad3",
    "librdmacm1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpci3",
];
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(300);
/// Written when all is there.
const WHOLE: &str = "unpacked";

/// Where they are; or why they are not.
pub(super) fn unpacked(repo: &Repo) -> Result<Result<PathBuf, String>> {
    let dir = repo.target.join("verbs-judges");
    let root = dir.join("root");
    if root.join(WHOLE).exists() {
        return Ok(Ok(root));
    }
    if let Some(why) = harness::packages::why_not() {
        return Ok(Err(why.to_owned()));
    }
    let debs = dir.join("debs");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&debs)?;
    println!("     downloading {} into {}", PACKAGES.join(", "), repo.relative(&dir).display());
    let done =
        child::run_quiet(Command::new("apt-get").arg("download").args(PACKAGES).current_dir(&debs), DOWNLOAD_LIMIT)?;
    if !done.success() {
        return Ok(Err(format!("apt-get download: {}", done.describe())));
    }
    for deb in std::fs::read_dir(&debs)? {
        unpack(&deb?.path(), &root)?;
    }
    std::fs::write(root.join(WHOLE), PACKAGES.join("\n")).context("cannot note that all is unpacked")?;
    Ok(Ok(root))
}

fn unpack(deb: &Path, root: &Path) -> Result<()> {
    let ended = child::run_quiet(Command::new("dpkg").arg("-x").arg(deb).arg(root), DOWNLOAD_LIMIT)?;
    anyhow::ensure!(ended.success(), "dpkg -x {}: {}", deb.display(), ended.describe());
    Ok(())
}
