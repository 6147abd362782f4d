//! A private apt: its own sources, lists, cache and view of what is installed, all under one directory. Owns resolving,
//! downloading and unpacking of packages. It installs nothing and removes nothing: the machine's own package state is
//! only read, so it works without root too.

use super::sources;
use anyhow::{Context, Result, bail};
use harness::child::{self, Stream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Where packages have their libraries, below the root.
pub(super) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const UPDATE_LIMIT: Duration = Duration::from_secs(300);
const RESOLVE_LIMIT: Duration = Duration::from_secs(120);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);
/// Package lists older than this are fetched again.
const LISTS_AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Rounds of leaving out installed packages that stand in the way of a wanted one.
const CONFLICT_ROUNDS_MAX: u32 = 5;
const STATUS: &str = "/var/lib/dpkg/status";
/// Directories that are links into /usr on every Debian since 12; packages may still ship files under the old names.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The private apt under `dir`.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
}

/// The programs this module calls; where one is missing there is no guest.
pub(super) const NEEDED: &[&str] = &["apt-get", "apt-cache", "dpkg-deb", "tar"];

impl Apt {
    /// Writes the configuration and fetches the package lists if they are old or for other sources.
    pub(super) fn open(dir: PathBuf) -> Result<Apt> {
        let os_release = std::fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
        let codename = sources::codename(&os_release).context("/etc/os-release names no VERSION_CODENAME")?;
        let archives = sources::archives(Path::new("/etc/apt"), &codename)?;
        let apt = Apt { dir };
        for sub in ["parts", "lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(apt.dir.join(sub))?;
        }
        let wanted = sources::render(&archives);
        let file = apt.dir.join("parts/guest.sources");
        let same = std::fs::read_to_string(&file).is_ok_and(|text| text == wanted);
        let stamp = apt.dir.join("updated");
        let fresh = std::fs::metadata(&stamp)
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| SystemTime::now().duration_since(at).unwrap_or_default() < LISTS_AGE_MAX);
        std::fs::copy(STATUS, apt.dir.join("status")).context("cannot read dpkg's status")?;
        if !(same && fresh) {
            std::fs::write(&file, wanted)?;
            eprintln!("vm: fetching package lists into {}", apt.dir.display());
            // By itself it succeeds with the lists that it could fetch, and these may be none.
            apt.tool("apt-get", &["-o", "APT::Update::Error-Mode=any", "update"], UPDATE_LIMIT)?;
            std::fs::write(&stamp, "")?;
        }
        Ok(apt)
    }

    /// Names of packages that match `pattern`, a regular expression.
    pub(super) fn search(&self, pattern: &str) -> Result<Vec<String>> {
        let text = self.tool("apt-cache", &["search", "--names-only", pattern], RESOLVE_LIMIT)?;
        Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// The version of `package` that would be installed and the names of the packages that it depends on; none if no
    /// source has it.
    pub(super) fn candidate(&self, package: &str) -> Result<Option<(String, Vec<String>)>> {
        let mut show = self.command("apt-cache", &["show", "--no-all-versions", package]);
        let ended = child::run_quiet(&mut show, RESOLVE_LIMIT)?;
        let text = ended.text(Stream::Out);
        let Some(version) = field(&text, "Version").filter(|_| ended.success()) else { return Ok(None) };
        let depends = field(&text, "Depends").unwrap_or_default().split(',');
        let names = depends.filter_map(|entry| entry.split_whitespace().next()).map(str::to_owned).collect();
        Ok(Some((version.to_owned(), names)))
    }

    /// Packages, as `name=version`, that must be added to this machine's for `packages` to work. Installed packages
    /// that contradict them are left out of the private view; on the machine they stay.
    pub(super) fn missing(&self, packages: &[&str]) -> Result<Vec<String>> {
        std::fs::copy(STATUS, self.dir.join("status")).context("cannot read dpkg's status")?;
        for _ in 0..CONFLICT_ROUNDS_MAX {
            let mut args = vec!["--simulate", "--no-install-recommends", "install"];
            args.extend(packages);
            let plan = child::run_quiet(&mut self.command("apt-get", &args), RESOLVE_LIMIT)?;
            let text = plan.text(Stream::Out);
            let removed: Vec<&str> = text.lines().filter_map(|line| second_word(line, "Remv")).collect();
            if plan.success() && removed.is_empty() {
                return Ok(text.lines().filter_map(install_line).collect());
            }
            let status = std::fs::read_to_string(self.dir.join("status"))?;
            let (left, dropped) = if plan.success() {
                without(&status, |stanza| removed.contains(&field(stanza, "Package").unwrap_or_default()))
            } else {
                // No plan at all: packages built from one source belong together in one version, so what is installed
                // of these sources stands in the way.
                let sources = self.sources_of(packages)?;
                without(&status, |stanza| sources.iter().any(|source| source == source_of(stanza)))
            };
            if dropped.is_empty() {
                bail!("cannot resolve {packages:?}: {}\n{}", plan.describe(), plan.text(Stream::Err));
            }
            eprintln!("vm: installed {} does not go with {}", dropped.join(", "), packages.join(", "));
            std::fs::write(self.dir.join("status"), left)?;
        }
        bail!("cannot find a set of packages for {packages:?} without contradictions")
    }

    fn sources_of(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut args = vec!["show", "--no-all-versions"];
        args.extend(packages);
        let text = self.tool("apt-cache", &args, RESOLVE_LIMIT)?;
        Ok(text.split("\n\n").map(source_of).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Downloads `packages` (`name` or `name=version`) and unpacks them under `root`, which keeps what it has.
    pub(super) fn unpack(&self, packages: &[String], root: &Path) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        let debs = self.dir.join(format!("debs-{}", std::process::id()));
        std::fs::create_dir_all(&debs)?;
        eprintln!("vm: downloading {} package(s): {}", packages.len(), names(packages));
        let mut download = self.command("apt-get", &["download"]);
        download.args(packages).current_dir(&debs);
        let done = child::run_quiet(&mut download, DOWNLOAD_LIMIT)?;
        if !done.success() {
            bail!("apt-get download: {}\n{}", done.describe(), done.text(Stream::Err));
        }
        std::fs::create_dir_all(root.join("usr"))?;
        for name in MERGED {
            std::fs::create_dir_all(root.join("usr").join(name))?;
            if root.join(name).symlink_metadata().is_err() {
                std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
            }
        }
        for deb in std::fs::read_dir(&debs)? {
            unpack_one(&deb?.path(), root)?;
        }
        std::fs::remove_dir_all(&debs)?;
        Ok(())
    }

    fn tool(&self, program: &str, args: &[&str], limit: Duration) -> Result<String> {
        let ended = child::run_quiet(&mut self.command(program, args), limit)?;
        if !ended.success() {
            let args = args.join(" ");
            bail!("{program} {args}: {}\n{}", ended.describe(), ended.text(Stream::Err));
        }
        Ok(ended.text(Stream::Out))
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        let dir = |name: &str| self.dir.join(name).display().to_string();
        let options = [
            "Dir::Etc::SourceList=/dev/null".to_owned(),
            format!("Dir::Etc::SourceParts={}", dir("parts")),
            format!("Dir::State::Lists={}", dir("lists")),
            format!("Dir::State::Status={}", dir("status")),
            format!("Dir::Cache={}", dir("cache")),
            // The lists are ours, so the user who runs this can read them.
            "APT::Sandbox::User=".to_owned(),
            "APT::Get::AllowUnauthenticated=false".to_owned(),
            "Debug::NoLocking=true".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::http::Timeout=60".to_owned(),
        ];
        for option in &options {
            command.arg("-o").arg(option);
        }
        command.args(args).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

fn unpack_one(deb: &Path, root: &Path) -> Result<()> {
    let script = "set -o pipefail; dpkg-deb --fsys-tarfile \"$0\" | \
        tar --extract --directory \"$1\" --no-same-owner --keep-directory-symlink";
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(deb).arg(root);
    let done = child::run_quiet(&mut command, UNPACK_LIMIT)?;
    if !done.success() {
        bail!("cannot unpack {}: {}\n{}", deb.display(), done.describe(), done.text(Stream::Err));
    }
    Ok(())
}

/// The links that [`Apt::unpack`] leaves: as a layer over a root file system they must not hide that one's own.
pub(super) fn drop_merged_links(root: &Path) -> Result<()> {
    for name in MERGED {
        let path = root.join(name);
        if path.is_symlink() {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn names(packages: &[String]) -> String {
    packages.iter().map(|package| package.split('=').next().unwrap_or(package)).collect::<Vec<_>>().join(" ")
}

fn second_word<'l>(line: &'l str, first: &str) -> Option<&'l str> {
    line.strip_prefix(first)?.split_whitespace().next()
}

/// `Inst name [installed] (version suite [arch])` as `name=version`.
fn install_line(line: &str) -> Option<String> {
    let name = second_word(line, "Inst ")?;
    let version = line.split_once('(')?.1.split_whitespace().next()?;
    Some(format!("{name}={version}"))
}

fn field<'s>(stanza: &'s str, name: &str) -> Option<&'s str> {
    stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The source package of a stanza; a binary package of the same name does not say it.
fn source_of(stanza: &str) -> &str {
    let source = field(stanza, "Source").or_else(|| field(stanza, "Package")).unwrap_or_default();
    source.split_whitespace().next().unwrap_or_default()
}

/// dpkg's status without the stanzas that `unwanted` names, and those packages' names.
fn without(status: &str, unwanted: impl Fn(&str) -> bool) -> (String, Vec<String>) {
    let (out, left): (Vec<&str>, Vec<&str>) = status.split("\n\n").partition(|stanza| unwanted(stanza));
    (left.join("\n\n"), out.iter().filter_map(|stanza| field(stanza, "Package")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read() {
        assert_eq!(install_line("Inst perftest (4.5+0.17-1 Debian:12.15 [amd64])"), Some("perftest=4.5+0.17-1".into()));
        assert_eq!(install_line("Inst libx [1.0] (1:2.0 Debian:12 [amd64]) []"), Some("libx=1:2.0".into()));
        assert_eq!(install_line("Conf perftest (4.5)"), None);
        assert_eq!(second_word("Remv qemu-utils [1:10]", "Remv"), Some("qemu-utils"));
    }

    #[test]
    fn packages_leave_only_the_private_view() {
        let status = "Package: a\nStatus: ok\n\nPackage: b\nSource: a (1.0)\nDepends: a\n\nPackage: ab\n";
        let (left, dropped) = without(status, |stanza| source_of(stanza) == "a");
        assert_eq!(left, "Package: ab\n");
        assert_eq!(dropped, ["a", "b"]);
    }
}
