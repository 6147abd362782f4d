//! Debian packages that judges and rivals need: what is missing is said, then installed, where this may be. The one
//! installer of tests and benches. It removes no package, and servers of packages are not started.

use crate::child::{self, Ended, Stream};
use crate::ledger::{self, Kind};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A program on the path, or a file with an absolute name, and the Debian package that has it.
pub type Need = (&'static str, &'static str);

const INSTALL_LIMIT: Duration = Duration::from_secs(900);
const UPDATE_LIMIT: Duration = Duration::from_secs(300);
/// How long another program's lock of apt or dpkg is waited for.
const LOCK_LIMIT: Duration = Duration::from_secs(600);
const LOCK_POLL: Duration = Duration::from_secs(2);
/// Said to the scripts of packages: nobody is asked, and services stay as they are.
const ENVIRONMENT: &[(&str, &str)] = &[("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1"), ("LC_ALL", "C.UTF-8")];
/// dpkg's own lock is waited for by apt; those of its lists and its cache by [`apt`].
const LOCKED: &[&str] = &["Could not get lock", "Unable to lock", "is another process using it"];
/// Lines of apt that are shown when it fails.
const SHOWN_LINES: usize = 6;

static FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// Two threads of one run do not install at a time, and who comes second finds what the first has installed.
static TURN: Mutex<()> = Mutex::new(());

/// From now on nothing is installed in this process: what is missing is a skip.
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Why this process installs nothing, if so.
pub fn why_not() -> Option<&'static str> {
    if FORBIDDEN.load(Ordering::Relaxed) {
        Some("--no-install")
    } else if !rustix::process::geteuid().is_root() {
        Some("this user is not root")
    } else if !is_here("apt-get") {
        Some("this machine has no apt-get")
    } else {
        None
    }
}

/// The packages of what is missing among `needs`, each once.
pub fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages: Vec<&str> =
        needs.iter().filter(|(name, _)| !is_here(name)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// What of `needs` is not there.
pub fn lacking(needs: &[Need]) -> Vec<&'static str> {
    needs.iter().filter(|(name, _)| !is_here(name)).map(|(name, _)| *name).collect()
}

/// Installs the packages of what is missing, if this may be; says which before it does. Whether it helped is seen by who
/// looks again ([`lacking`]).
pub fn install(needs: &[Need]) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let packages = missing(needs);
    if packages.is_empty() || why_not().is_some() {
        return;
    }
    println!("     installing from Debian: {}", packages.join(" "));
    let begin = Instant::now();
    let install = [
        &["install", "-y", "-q", "--no-install-recommends", "--no-remove", "-o", "DPkg::Lock::Timeout=600"],
        &packages[..],
    ]
    .concat();
    // Lists that are there are tried first. Old ones name files that the archive no longer has, and none name nothing.
    let mut ended = apt(&install, INSTALL_LIMIT);
    if !succeeded(&ended) {
        ended = apt(&["update", "-q"], UPDATE_LIMIT).and_then(|_| apt(&install, INSTALL_LIMIT));
    }
    ledger::spent(Kind::Installing, begin.elapsed());
    match ended {
        Ok(ended) if ended.success() => {}
        Ok(ended) => {
            println!("     apt-get install failed: {}", ended.describe());
            let said = ended.text(Stream::Err);
            let lines: Vec<&str> = said.lines().collect();
            lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| println!("       {line}"));
        }
        Err(error) => println!("     apt-get cannot be started: {error:#}"),
    }
}

fn succeeded(ended: &anyhow::Result<Ended>) -> bool {
    ended.as_ref().is_ok_and(Ended::success)
}

/// Runs apt-get; as long as another program holds a lock of its, it is tried again.
fn apt(words: &[&str], limit: Duration) -> anyhow::Result<Ended> {
    let begin = Instant::now();
    loop {
        let mut command = Command::new("apt-get");
        command.args(words).envs(ENVIRONMENT.iter().copied());
        let ended = child::run_quiet(&mut command, limit)?;
        if ended.success() || !is_locked(&ended.text(Stream::Err)) || begin.elapsed() >= LOCK_LIMIT {
            return Ok(ended);
        }
        std::thread::sleep(LOCK_POLL);
    }
}

fn is_locked(text: &str) -> bool {
    LOCKED.iter().any(|words| text.contains(words))
}

/// Whether a program is on the path (or where Debian has servers), or a file with an absolute name is there.
pub fn is_here(name: &str) -> bool {
    if name.starts_with('/') {
        return Path::new(name).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| dir.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_once() {
        let needs = [("sh", "dash"), ("/no/such/file", "b"), ("no-such-program", "a"), ("/no/other", "b")];
        assert_eq!(missing(&needs), ["a", "b"]);
        assert_eq!(lacking(&needs), ["/no/such/file", "no-such-program", "/no/other"]);
        assert!(is_here("sh") && is_here("/proc/self/exe"));
    }

    #[test]
    fn a_lock_is_told_from_other_failures() {
        let held = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 77 (apt-get)";
        assert!(is_locked(held));
        assert!(!is_locked("E: Unable to locate package no-such-package"));
    }

    #[test]
    fn who_may_not_install_is_told_why() {
        forbid();
        assert_eq!(why_not(), Some("--no-install"));
        // It returns at once, and says nothing: the skip is said by who needs the program.
        install(&[("no-such-program", "no-such-package")]);
    }
}
