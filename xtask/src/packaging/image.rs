//! The container image: built with buildah out of the package's files, and run (`tests/packaging/image`). Owns what it
//! needs of the machine.

use anyhow::Result;
use harness::child::{self, Stream};
use harness::packages::{Need, install, lacking};
use harness::repo::Repo;
use harness::result_lines::counted;
use harness::tally::Tally;
use std::time::Duration;

pub(super) const NEEDED: &[Need] = &[("buildah", "buildah")];
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Builds the image from the tree that debhelper packed, and runs containers of it.
pub(super) fn judge(repo: &Repo, tally: &mut Tally) -> Result<()> {
    install(NEEDED);
    if !lacking(NEEDED).is_empty() {
        tally.skip("image", "buildah is not there and cannot be installed");
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        tally.skip("image", "containers with users of their own need root here");
        return Ok(());
    }
    let packaging = repo.target.join("packaging");
    let mut command = repo.command("tests/packaging/image", &[]);
    command.arg(packaging.join("tree/debian/raas")).arg(packaging.join("image"));
    let ended = child::run(&mut command, LIMIT, |_, line| println!("     {line}"))?;
    tally.add(counted(ended.lines.iter().map(|(_, line)| line.as_str())));
    let findings = if ended.success() { vec![] } else { vec![ended.describe(), ended.text(Stream::Err)] };
    tally.case("image: it was judged", ended.took, &findings);
    Ok(())
}
