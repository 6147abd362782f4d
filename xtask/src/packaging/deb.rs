//! The Debian package, made by Debian's own debhelper out of what Cargo built. Owns which file goes
//! where, and the judgement of the result on this host; a guest installs it (`tests/vm/package`).
//!
//! cargo-deb would do the same; but it has to be compiled first, and debhelper and lintian are packages (docs/operate/packaging.md).

use super::{put, succeed};
use crate::product;
use anyhow::{Context as _, Result, bail};
use harness::repo::Repo;
use harness::tally::Tally;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TOOL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The folder of the package's sources, and that of Debian's rules in it.
const PACKAGING: &str = "packaging";

/// Files of this repository (or that Cargo makes, with `@` in front), their places, and their modes.
const FILES: &[(&str, &str, u32)] = &[
    ("@raas", "usr/bin/raas", 0o755),
    ("@libraas_preload.so", "usr/lib/raas/libraas_preload.so", 0o644),
    ("packaging/raasd.toml", "etc/raas/raasd.toml", 0o644),
    ("packaging/systemd/sysusers.conf", "usr/lib/sysusers.d/raas.conf", 0o644),
    ("packaging/systemd/raasd.service", "debian/raas.raasd.service", 0o644),
    ("packaging/prometheus/raas.rules.yml", "usr/share/doc/raas/examples/raas.rules.yml", 0o644),
    ("packaging/grafana/raas.json", "usr/share/doc/raas/examples/grafana.json", 0o644),
    ("docs/operate/commands.md", "usr/share/doc/raas/commands.md", 0o644),
    ("docs/operate/configuration.md", "usr/share/doc/raas/configuration.md", 0o644),
    ("docs/operate/packaging.md", "usr/share/doc/raas/packaging.md", 0o644),
    ("docs/operate/troubleshooting.md", "usr/share/doc/raas/troubleshooting.md", 0o644),
    ("docs/reasons.md", "usr/share/doc/raas/reasons.md", 0o644),
];
const MANUAL: &str = "usr/share/man/man1";
/// Shells, and where each looks for completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/raas"),
    ("zsh", "usr/share/zsh/vendor-completions/_raas"),
    ("fish", "usr/share/fish/vendor_completions.d/raas.fish"),
];
/// What debhelper adds: the link of the daemon, its pages, and what every package has.
const ADDED: &[&str] = &[
    "usr/bin/raasd",
    "usr/share/man/man1/raasd.1.gz",
    "usr/lib/systemd/system/raasd.service",
    "usr/share/doc/raas/changelog.gz",
    "usr/share/doc/raas/copyright",
    "usr/share/lintian/overrides/raas",
];
/// A page that must be among those of the commands.
const PAGE: &str = "usr/share/man/man1/raas-daemon.1.gz";

/// Builds the package; returns its file.
pub(super) fn package(repo: &Repo, is_release: bool) -> Result<PathBuf> {
    pack(repo, &product::ready(repo, is_release)?, &repo.target.join("packaging"))
}

/// Lays the tree out in `dir`, with the programs that are in `programs`, and has debhelper pack it.
fn pack(repo: &Repo, programs: &Path, dir: &Path) -> Result<PathBuf> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    let tree = dir.join("tree");
    for (from, to, mode) in FILES {
        let from = match from.strip_prefix('@') {
            Some(made) => programs.join(made),
            None => repo.root.join(from),
        };
        put(&tree.join(to), &std::fs::read(&from).with_context(|| format!("no {}", from.display()))?, *mode)?;
    }
    let raas = tree.join("usr/bin/raas");
    let raas = raas.to_str().context("the path of the target directory is not UTF-8")?;
    let version = succeed(&mut repo.command(raas, &["-V"]), TOOL_LIMIT)?;
    let version = version.split_whitespace().last().context("raas -V says no version")?.to_owned();
    succeed(repo.command(raas, &["man", "--dir"]).arg(tree.join(MANUAL)), TOOL_LIMIT)?;
    for (shell, to) in COMPLETIONS {
        let text = succeed(&mut repo.command(raas, &["completions", shell]), TOOL_LIMIT)?;
        put(&tree.join(to), (text + "\n").as_bytes(), 0o644)?;
    }
    let rules = repo.root.join(PACKAGING).join("debian");
    for entry in std::fs::read_dir(&rules).with_context(|| format!("cannot read {}", rules.display()))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let mode = std::fs::metadata(&path)?.permissions().mode() & 0o777;
        put(&tree.join("debian").join(name), &std::fs::read(&path)?, mode)?;
    }
    // Time of the commit: the same sources give the same package.
    let time = succeed(&mut repo.command("git", &["log", "-1", "--format=%ct %cD"]), TOOL_LIMIT)?;
    let (seconds, date) = time.trim().split_once(' ').context("git says no date of the commit")?;
    let maintainer = field(&rules.join("control"), "Maintainer")?;
    let changelog = format!(
        "raas ({version}) unstable; urgency=medium\n\n  * Release {version}: CHANGELOG.md of the repository says what is \
         new.\n\n -- {maintainer}  {date}\n"
    );
    put(&tree.join("debian/changelog"), changelog.as_bytes(), 0o644)?;
    put(&tree.join("debian/source/format"), b"3.0 (native)\n", 0o644)?;
    let mut debhelper = Command::new("debian/rules");
    debhelper.arg("binary").current_dir(&tree).env("SOURCE_DATE_EPOCH", seconds).env("LC_ALL", "C.UTF-8");
    succeed(&mut debhelper, TOOL_LIMIT)?;
    let made: Vec<PathBuf> = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let mut made = made.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "deb"));
    let file = made.next().context("debhelper made no package")?;
    if let Some(other) = made.next() {
        bail!("debhelper made {} beside {}", other.display(), file.display());
    }
    Ok(file)
}

/// Builds the package and looks at it; says whether there is one.
pub(super) fn judge(repo: &Repo, full: bool, tally: &mut Tally) -> bool {
    let mut built = None;
    tally.check("package: debhelper builds it", || {
        built = Some(package(repo, full)?);
        Ok(vec![])
    });
    let Some(file) = built else { return false };
    if full {
        tally.check("package: the same bytes each time", || {
            let programs = product::ready(repo, full)?;
            let again = pack(repo, &programs, &repo.target.join("packaging-again"))?;
            let same = std::fs::read(&file)? == std::fs::read(&again)?;
            Ok(if same { vec![] } else { vec![format!("{} and {} differ", file.display(), again.display())] })
        });
    }
    tally.check("package: has its files and no others", || contents(&file));
    tally.check("package: says what it needs", || needs(&file));
    tally.check("package: lintian has neither an error nor a warning", || {
        let mut lintian = Command::new("lintian");
        // Root is who runs tests in a container.
        lintian.args(["--allow-root", "--fail-on", "none", "--tag-display-limit", "0"]).arg(&file);
        Ok(succeed(&mut lintian, TOOL_LIMIT)?
            .lines()
            .filter(|line| !line.starts_with("N:"))
            .map(str::to_owned)
            .collect())
    });
    true
}

/// The files of the package, each owned by root, in the modes of [`FILES`].
fn contents(file: &Path) -> Result<Vec<String>> {
    let listing = succeed(Command::new("dpkg-deb").arg("--contents").arg(file), TOOL_LIMIT)?;
    let mut findings = vec![];
    let mut lacking: Vec<&str> = ADDED.iter().copied().chain([PAGE]).collect();
    lacking.extend(FILES.iter().map(|(_, to, _)| *to).filter(|to| !to.starts_with("debian/")));
    lacking.extend(COMPLETIONS.iter().map(|(_, to)| *to));
    let wanted = lacking.clone();
    for line in listing.lines() {
        let mut words = line.split_whitespace();
        let (mode, owner) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = words.nth(3).and_then(|path| path.strip_prefix("./")).unwrap_or_default();
        // Debian 12 still writes units as they were before /lib became a link.
        let path = path.strip_prefix("lib/").map_or(path.to_owned(), |rest| format!("usr/lib/{rest}"));
        let path = path.as_str();
        if owner != "root/root" {
            findings.push(format!("{path} belongs to {owner}"));
        }
        let program = FILES.iter().any(|(_, to, mode)| *to == path && mode & 0o111 != 0);
        let right = match mode.chars().next() {
            Some('d') => "drwxr-xr-x",
            Some('l') => "lrwxrwxrwx",
            _ if program => "-rwxr-xr-x",
            _ => "-rw-r--r--",
        };
        if mode != right {
            findings.push(format!("{path} has mode {mode}, not {right}"));
        }
        lacking.retain(|wanted| *wanted != path);
        let is_page = path.starts_with(MANUAL) && path.ends_with(".1.gz");
        if !mode.starts_with('d') && !is_page && !wanted.contains(&path) {
            findings.push(format!("{path} is there, and nobody asked for it"));
        }
    }
    findings.extend(lacking.iter().map(|path| format!("{path} is missing")));
    Ok(findings)
}

/// The program needs the C library and nothing else that a host may lack; the configuration is the operator's.
fn needs(file: &Path) -> Result<Vec<String>> {
    let mut findings = vec![];
    let depends = succeed(Command::new("dpkg-deb").arg("--field").arg(file).arg("Depends"), TOOL_LIMIT)?;
    for need in depends.split(',').map(str::trim) {
        let name = need.split_whitespace().next().unwrap_or_default();
        if !["libc6", "libgcc-s1", "systemd"].contains(&name) {
            findings.push(format!("it depends on {need}"));
        }
    }
    if !depends.contains("libc6 (>=") {
        findings.push(format!("no version of the C library among what it depends on: {depends}"));
    }
    let settings = succeed(Command::new("dpkg-deb").arg("--info").arg(file).arg("conffiles"), TOOL_LIMIT)?;
    if settings.trim() != "/etc/raas/raasd.toml" {
        findings.push(format!("files of the operator are {settings:?}"));
    }
    Ok(findings)
}

/// A field of a control file.
fn field(file: &Path, name: &str) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(found.with_context(|| format!("{} has no {name}", file.display()))?.trim().to_owned())
}
