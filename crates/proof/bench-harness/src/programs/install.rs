//! Programs that are measured and do not belong to the repository: Debian packages, installed where this may be.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::child;

use crate::place::has;

const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A program, or a file with an absolute name, and the Debian package that has it.
pub(super) type Need = (&'static str, &'static str);

/// What of these is not there.
pub(super) fn lacking(needs: &[Need]) -> Vec<Need> {
    needs.iter().filter(|(name, _)| !is_there(name)).copied().collect()
}

fn is_there(name: &str) -> bool {
    if name.starts_with('/') {
        Path::new(name).exists()
    } else {
        has(name) || Path::new("/usr/sbin").join(name).is_file()
    }
}

/// Installs what is not there. Whether that helped is seen by who looks again.
pub(super) fn install(needs: &[Need]) {
    let mut packages: Vec<&str> = lacking(needs).into_iter().map(|(_, package)| package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() || !rustix::process::geteuid().is_root() || !has("apt-get") {
        return;
    }
    println!("installing {} from Debian", packages.join(", "));
    let install = [&["install", "-y", "-q", "--no-install-recommends"], &packages[..]].concat();
    for words in [&["update", "-q"][..], &install] {
        let mut command = Command::new("apt-get");
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
        // A list of packages that is old may do all the same.
        let _ = child::run_quiet(&mut command, INSTALL_LIMIT);
    }
}
