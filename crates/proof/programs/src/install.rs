//! The programs of the table as Debian packages: installs what is not there, where this may be. Their servers are not
//! started by the installation, if the machine's policy says so; none of them is needed running.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use harness::child;

const INSTALL_LIMIT: Duration = Duration::from_secs(900);
/// Said to the scripts of packages: nobody is asked, and services stay as they are.
const ENVIRONMENT: &[(&str, &str)] = &[("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1")];

/// Installs the Debian packages of what is missing among `wanted`, pairs of a program (or a file with an absolute name)
/// and its package.
pub fn install(wanted: &[(&str, &str)]) {
    let mut packages: Vec<&str> =
        wanted.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() || !rustix::process::geteuid().is_root() || !has("apt-get") {
        return;
    }
    println!("     installing {} from Debian", packages.join(", "));
    for words in [&["update", "-q"][..], &[&["install", "-y", "-q", "--no-install-recommends"], &packages[..]].concat()]
    {
        let mut command = Command::new("apt-get");
        command.args(words).envs(ENVIRONMENT.iter().copied());
        // Whether it helped is seen by who looks for the programs.
        let _ = child::run_quiet(&mut command, INSTALL_LIMIT);
    }
}

/// What of `wanted` is not there.
pub fn lacking<'p>(wanted: &[(&'p str, &'p str)]) -> Vec<&'p str> {
    wanted.iter().filter(|(program, _)| !has(program)).map(|(program, _)| *program).collect()
}

/// Whether a program is on the path, or a file with an absolute name is there.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = PathBuf::from("/usr/sbin");
    program.starts_with('/') && PathBuf::from(program).exists()
        || std::env::split_paths(&path).chain([sbin]).any(|dir| dir.join(program).is_file())
}
