//! An older library with a newer daemon, the reverse, and daemons of two releases: with `--full`, in stage `packaging`.
//!
//! The older release is a commit of this repository, which is taken out of its history and built once. What may speak
//! is decided by the versions that both binaries print (docs/operate/packaging.md): equal numbers must carry a file
//! unchanged, different ones must be refused with the documented code, by a message that names the cause. So the verdict
//! stays right when a version is raised. Owns the choice of the commit and the pairs.

use anyhow::{Context as _, Result, ensure};
use harness::child::{self, Ended, Running, Stream};
use harness::programs;
use harness::repo::Repo;
use harness::tally::Tally;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The older release: wire 5, control 5, layout 3. To be moved when a release is made.
const OLDER: &str = "5cbd9763b7337d97aac849159632395e12d8c5d6";
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
const FILE_BYTES: usize = 3_000_000;
/// Exit code of a command that a daemon refused (docs/operate/commands.md).
const REFUSED: i32 = 4;
const PORT: &str = "7001";

/// What `cargo xtask compatibility` takes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A `raas` of an older release, in place of one that is built from this repository's history.
    #[arg(long)]
    older: Option<PathBuf>,
    /// A `raas` in place of one that is built from this tree.
    #[arg(long)]
    newer: Option<PathBuf>,
}

/// `cargo xtask compatibility`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut tally = Tally::default();
    judge(&Repo::open()?, args, &mut tally)?;
    println!("{tally}");
    Ok(if tally.failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// With `--full`, in stage `packaging`.
pub(crate) fn judge_history(repo: &Repo, tally: &mut Tally) -> Result<()> {
    judge(repo, &Args { older: None, newer: None }, tally)
}

/// One of the two binaries.
#[derive(Debug)]
struct Release {
    name: &'static str,
    raas: PathBuf,
    versions: Versions,
}

/// What `raas --version` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Versions {
    wire: String,
    control: String,
    layout: String,
}

impl Versions {
    fn parse(text: &str) -> Result<Self> {
        let of = |key: &str| {
            let words = text.lines().filter_map(|line| line.split_once(' '));
            let found = words.filter(|(name, _)| *name == key).map(|(_, number)| number.to_owned()).next();
            found.with_context(|| format!("`raas --version` names no {key}: {text}"))
        };
        Ok(Self { wire: of("wire")?, control: of("control")?, layout: of("layout")? })
    }

    /// Whether a program of one release may use a daemon of the other.
    fn serves(&self, other: &Self) -> bool {
        (&self.control, &self.layout) == (&other.control, &other.layout)
    }
}

impl Release {
    fn of(name: &'static str, raas: PathBuf) -> Result<Self> {
        let ended = child::run_quiet(Command::new(&raas).arg("--version"), COMMAND_LIMIT)?;
        ensure!(ended.success(), "{}: {}", raas.display(), ended.describe());
        Ok(Self { name, raas, versions: Versions::parse(&ended.text(Stream::Out))? })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.raas);
        command.args(args);
        for name in ["RAAS_SOCKET", "XDG_RUNTIME_DIR", "RUST_LOG"] {
            command.env_remove(name);
        }
        command
    }
}

/// A running daemon, which ends with this value.
struct Daemon {
    ip: String,
    socket: PathBuf,
    _process: Running,
}

impl Daemon {
    fn start(release: &Release, dir: &Path, ip: &str) -> Result<Self> {
        let socket = dir.join(format!("{ip}.{}.sock", release.name));
        let mut command = release.command(&["daemon", "--listen", ip]);
        command.arg("--socket").arg(&socket).arg("--key-file").arg(dir.join("key"));
        let mut process = child::spawn(&mut command)?;
        let ready = format!("ready socket={}", socket.display());
        process
            .wait_for(&ready, COMMAND_LIMIT)
            .with_context(|| format!("the daemon of the {} release", release.name))?;
        Ok(Self { ip: ip.to_owned(), socket, _process: process })
    }
}

fn judge(repo: &Repo, args: &Args, tally: &mut Tally) -> Result<()> {
    let found = repo.command("git", &["cat-file", "-e", &format!("{OLDER}^{{commit}}")]).output()?;
    if args.older.is_none() && !found.status.success() {
        let why = format!("this clone does not have commit {OLDER}: git fetch --unshallow");
        tally.skip("compatibility", &why);
        return Ok(());
    }
    let start = Instant::now();
    let newer = match &args.newer {
        Some(given) => given.clone(),
        None => {
            programs::build(repo)?;
            programs::path(repo, "raas")
        }
    };
    let older = match &args.older {
        Some(given) => given.clone(),
        None => build_older(repo)?,
    };
    let [newer, older] = [("newer", newer), ("older", older)].map(|(name, raas)| Release::of(name, raas));
    let (newer, older) = (newer?, older?);
    println!("     newer: {:?}, older: {:?}", newer.versions, older.versions);
    tally.case("compatibility: both releases are built", start.elapsed(), &[]);
    for (daemon, program) in [(&newer, &older), (&older, &newer)] {
        let name =
            format!("compatibility: programs of the {} release, daemons of the {} one", program.name, daemon.name);
        tally.check(&name, || served(daemon, program));
    }
    tally.check("compatibility: daemons of both releases", || meet([&newer, &older]));
    // Else no daemon takes both, and the cases above say that it refuses one of them.
    if newer.versions.serves(&older.versions) {
        tally.check("compatibility: programs of both releases on one host", || on_one_host(&newer, &older));
    }
    Ok(())
}

/// The older release's binary, built at the first time.
fn build_older(repo: &Repo) -> Result<PathBuf> {
    let dir = repo.target.join("compatibility");
    let kept = dir.join(format!("raas-{OLDER}"));
    if kept.exists() {
        return Ok(kept);
    }
    let source = dir.join(OLDER);
    std::fs::create_dir_all(&source).with_context(|| format!("cannot make {}", source.display()))?;
    let archive = dir.join(format!("{OLDER}.tar"));
    let output = format!("--output={}", archive.display());
    let packed = child::run_quiet(&mut repo.command("git", &["archive", &output, OLDER]), COMMAND_LIMIT)?;
    ensure!(packed.success(), "git archive: {}", packed.describe());
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive).arg("-C").arg(&source);
    let unpacked = child::run_quiet(&mut unpack, COMMAND_LIMIT)?;
    ensure!(unpacked.success(), "tar: {}", unpacked.describe());
    let mut build = repo.command("cargo", &["build", "--locked", "--package", "raas-cli", "--bin", "raas"]);
    build.current_dir(&source).env("CARGO_TARGET_DIR", dir.join("build")).env("RAAS_COMMIT", OLDER);
    harness::build::must(&mut build).context("the older release cannot be built")?;
    std::fs::copy(dir.join("build/debug/raas"), &kept).context("cannot keep the older release")?;
    Ok(kept)
}

/// A directory for sockets, key and files, which goes with this value.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("raas-compatibility-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut key = std::fs::OpenOptions::new();
        let mut key = key.write(true).create_new(true).mode(0o600).open(dir.join("key"))?;
        std::io::Write::write_all(&mut key, &[7; 32])?;
        Ok(Self(dir))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays is in the system's directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes of which no two pieces are the same.
fn pattern() -> Vec<u8> {
    (0..FILE_BYTES as u64 / 8).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).collect()
}

/// Sends a file between two programs; what is wrong.
fn carry(dir: &Path, (from, sender): (&Daemon, &Release), (to, receiver): (&Daemon, &Release)) -> Result<Vec<String>> {
    let (source, target) = (dir.join("source"), dir.join("target"));
    let bytes = pattern();
    std::fs::write(&source, &bytes)?;
    let mut receive = receiver.command(&["recv", PORT, "-o"]);
    let mut receiving = child::spawn(receive.arg(&target).env("RAAS_SOCKET", &to.socket))?;
    receiving.wait_for("listening on ", COMMAND_LIMIT)?;
    let sent = send(sender, from, &source, to)?;
    let mut findings = Vec::new();
    if !sent.success() {
        findings.push(format!("raas send: {}: {}", sent.describe(), sent.text(Stream::Err)));
        return Ok(findings);
    }
    let received = receiving.wait(&|took| took > COMMAND_LIMIT, &mut |_, _| {})?;
    if !received.success() {
        findings.push(format!("raas recv: {}: {}", received.describe(), received.text(Stream::Err)));
    } else if std::fs::read(&target)? != bytes {
        findings.push("the file arrived changed".to_owned());
    }
    std::fs::remove_file(&target)?;
    Ok(findings)
}

fn send(sender: &Release, from: &Daemon, source: &Path, to: &Daemon) -> Result<Ended> {
    let mut command = sender.command(&["send"]);
    command.arg(source).arg(format!("{}:{PORT}", to.ip)).env("RAAS_SOCKET", &from.socket);
    child::run_quiet(&mut command, COMMAND_LIMIT)
}

/// What is wrong with a refusal that should name these.
fn refusal(ended: &Ended, named: &[&str]) -> Vec<String> {
    let (code, text) = (ended.status.and_then(|status| status.code()), ended.text(Stream::Err));
    let mut findings = Vec::new();
    if code != Some(REFUSED) {
        findings.push(format!("ended with {code:?}, not with {REFUSED}: {text}"));
    }
    findings.extend(named.iter().filter(|what| !text.contains(**what)).map(|what| format!("no {what:?} in: {text}")));
    findings
}

/// Programs of one release, daemons of the other one.
fn served(of_daemons: &Release, of_programs: &Release) -> Result<Vec<String>> {
    let place = Place::new(of_daemons.name)?;
    let dir = &place.0;
    let hosts = [Daemon::start(of_daemons, dir, "127.92.1.1")?, Daemon::start(of_daemons, dir, "127.92.1.2")?];
    if of_daemons.versions.serves(&of_programs.versions) {
        let mut findings = carry(dir, (&hosts[0], of_programs), (&hosts[1], of_programs))?;
        findings.extend(carry(dir, (&hosts[1], of_programs), (&hosts[0], of_programs))?);
        return Ok(findings);
    }
    let source = dir.join("source");
    std::fs::write(&source, pattern())?;
    let ended = send(of_programs, &hosts[0], &source, &hosts[1])?;
    Ok(refusal(&ended, &["version", &of_daemons.versions.control, &of_programs.versions.control]))
}

/// A daemon of each release, each with programs of its own.
fn meet([newer, older]: [&Release; 2]) -> Result<Vec<String>> {
    let place = Place::new("both")?;
    let dir = &place.0;
    let hosts = [Daemon::start(newer, dir, "127.92.2.1")?, Daemon::start(older, dir, "127.92.2.2")?];
    if newer.versions.wire == older.versions.wire {
        let mut findings = carry(dir, (&hosts[0], newer), (&hosts[1], older))?;
        findings.extend(carry(dir, (&hosts[1], older), (&hosts[0], newer))?);
        return Ok(findings);
    }
    let source = dir.join("source");
    std::fs::write(&source, pattern())?;
    let mut findings = Vec::new();
    for (from, to, sender) in [(&hosts[0], &hosts[1], newer), (&hosts[1], &hosts[0], older)] {
        let ended = send(sender, from, &source, to)?;
        findings.extend(refusal(&ended, &["version"]));
    }
    Ok(findings)
}

/// Programs of both releases at one daemon, which share memory with each other.
fn on_one_host(newer: &Release, older: &Release) -> Result<Vec<String>> {
    let place = Place::new("one")?;
    let dir = &place.0;
    let mut findings = Vec::new();
    for daemon in [newer, older] {
        let host = Daemon::start(daemon, dir, "127.92.3.1")?;
        findings.extend(carry(dir, (&host, newer), (&host, older))?);
        findings.extend(carry(dir, (&host, older), (&host, newer))?);
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let text = "raas 0.1.0\ncommit unknown\nwire 6\ncontrol 5\nlayout 4\n";
        let versions = Versions::parse(text).unwrap();
        assert_eq!(versions.wire, "6");
        let other = Versions { wire: "5".into(), ..versions.clone() };
        assert!(versions.serves(&other) && versions != other);
        assert!(!versions.serves(&Versions { layout: "3".into(), ..versions.clone() }));
        assert!(!versions.serves(&Versions { control: "4".into(), ..versions.clone() }));
        assert!(Versions::parse("raas 0.1.0\nwire 6\n").is_err());
    }

    #[test]
    fn no_two_pieces_of_the_file_are_the_same() {
        let bytes = pattern();
        assert_eq!(bytes.len(), FILE_BYTES);
        let pieces: std::collections::BTreeSet<&[u8]> = bytes.chunks(8).collect();
        assert_eq!(pieces.len(), FILE_BYTES / 8);
    }
}
