//! A daemon in a process of its own, and everything that can be counted about a process from outside.
//!
//! Owns the child and its log. It must never leave a child behind.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use verbs::{Wire, WirePolicy};

/// Nothing here takes longer unless it hangs.
pub const WATCHDOG: Duration = Duration::from_secs(90);
/// Lines of log that are kept.
const LOG_LINES_MAX: usize = 200_000;

/// An address of 127.0.0.0/8 that no other process of the tests uses.
pub fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let pid = std::process::id();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::from([127, 1 + (pid / 250 % 120) as u8, 1 + (pid % 250) as u8, 1 + (n % 250) as u8])
}

/// The daemons that a judge starts.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The program `raas`.
    pub path: &'a Path,
    /// What may carry lanes.
    pub wire: WirePolicy,
    /// Engines of each daemon.
    pub engines: u32,
}

/// A daemon.
#[derive(Debug)]
pub struct Host {
    /// Its address.
    pub ip: IpAddr,
    /// Its control socket.
    pub socket: PathBuf,
    child: Child,
    stdin: Option<ChildStdin>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Host {
    /// Starts `raas daemon` in `dir`, with lines of configuration of its own.
    pub fn start(raas: Program<'_>, dir: &Path, ip: IpAddr, configuration: &str) -> Result<Self> {
        Self::start_with(raas, dir, ip, configuration, &[])
    }

    /// As [`Self::start`], with further arguments of the command.
    pub fn start_with(raas: Program<'_>, dir: &Path, ip: IpAddr, configuration: &str, args: &[&OsStr]) -> Result<Self> {
        Self::start_by(Command::new(raas.path), raas, dir, ip, configuration, args)
    }

    /// The same by a command that ends with the path of `raas`, as one that enters a namespace does.
    pub fn start_by(
        mut command: Command,
        raas: Program<'_>,
        dir: &Path,
        ip: IpAddr,
        configuration: &str,
        args: &[&OsStr],
    ) -> Result<Self> {
        let socket = dir.join(format!("{ip}.sock"));
        let key = dir.join("key");
        if !key.exists() {
            use std::os::unix::fs::OpenOptionsExt as _;
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key)?;
            std::io::Write::write_all(&mut file, &[7; 32])?;
        }
        let file = dir.join(format!("{ip}.toml"));
        let Program { wire, engines, .. } = raas;
        let common = format!(
            "listen = \"{ip}\"\nsocket = \"{}\"\nkey_file = \"{}\"\nwire = \"{wire}\"\nengines = {engines}\n",
            socket.display(),
            key.display()
        );
        // What is judged is lanes, where a judge does not say otherwise.
        let direct = if configuration.contains("tcp_direct") { "" } else { "tcp_direct = \"off\"\n" };
        std::fs::write(&file, common + direct + configuration)?;
        command.args(["daemon", "--until-stdin-closes", "--config"]).arg(&file).args(args);
        command.env_remove("RAAS_SOCKET").env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let log = Arc::new(Mutex::new(Vec::new()));
        follow(child.stdout.take(), &log);
        follow(child.stderr.take(), &log);
        let stdin = child.stdin.take();
        let mut host = Self { ip, socket, child, stdin, log };
        let start = Instant::now();
        while !host.log_has(&["ready socket="]) {
            ensure!(start.elapsed() < WATCHDOG, "the daemon is not ready: {}", host.words());
            ensure!(host.is_alive(), "the daemon ended at once: {}", host.words());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(host)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether a line of its log has all of these words.
    pub fn log_has(&self, words: &[&str]) -> bool {
        self.lines(|line| words.iter().all(|w| line.contains(w))) > 0
    }

    /// Lines of its log for which something holds.
    pub fn lines(&self, holds: impl Fn(&str) -> bool) -> usize {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|l| holds(l)).count()
    }

    /// The first line of its log that has a word.
    pub fn first_line(&self, word: &str) -> Option<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|line| line.contains(word)).cloned()
    }

    /// The end of its log.
    pub fn words(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log[log.len().saturating_sub(30)..].join("\n")
    }

    /// What it says about itself.
    pub fn stat(&self) -> Result<control::Stat> {
        raas::inspect::stat(Some(&self.socket)).map_err(Into::into)
    }

    /// What carries its only lane, which is up: it must be a wire that the policy allows.
    pub fn wire(&self, policy: WirePolicy) -> Result<Wire> {
        let lanes = self.stat()?.lanes;
        let name = lanes.first().and_then(|lane| lane.wire.clone()).context("no lane is up")?;
        let wire = if name == Wire::Iwarp.name() { Wire::Iwarp } else { Wire::Roce };
        ensure!(name == wire.name() && policy.allows(wire), "the lane is on {name}, and {policy} is allowed");
        Ok(wire)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it in order.
    pub fn stop(mut self) -> Result<()> {
        drop(self.stdin.take());
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the daemon ended with {status}: {}", self.words());
                return Ok(());
            }
            if start.elapsed() > WATCHDOG {
                bail!("the daemon does not end: {}", self.words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(from: Option<impl std::io::Read + Send + 'static>, log: &Arc<Mutex<Vec<String>>>) {
    let Some(from) = from else { return };
    let log = Arc::clone(log);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() < LOG_LINES_MAX {
                log.push(line);
            }
        }
    });
}

/// What a process holds, as the kernel counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of anonymous memory that are resident.
    pub anonymous_bytes: u64,
    /// Bytes of shared memory that are resident.
    pub shared_bytes: u64,
    /// Open descriptors.
    pub fds: u64,
    /// Descriptors of memfds, except those that a daemon holds for pages whose memory a tenant gave back.
    pub memfds: u64,
    /// Mappings of memfds.
    pub memfd_mappings: u64,
    /// Threads.
    pub threads: u64,
}

impl Footprint {
    /// Of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let status = std::fs::read_to_string(proc.join("status"))?;
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("0");
            line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let (mut fds, mut memfds) = (0, 0);
        for entry in std::fs::read_dir(proc.join("fd"))? {
            fds += 1;
            let link = std::fs::read_link(entry?.path()).unwrap_or_default();
            let name = link.to_string_lossy();
            memfds += u64::from(name.starts_with("/memfd:") && !name.starts_with("/memfd:raas-reserve"));
        }
        let maps = std::fs::read_to_string(proc.join("maps"))?;
        Ok(Self {
            anonymous_bytes: field("RssAnon:") * 1024,
            shared_bytes: field("RssShmem:") * 1024,
            fds,
            memfds,
            memfd_mappings: maps.lines().filter(|l| l.contains("/memfd:")).count() as u64,
            threads: field("Threads:"),
        })
    }

    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            anonymous_bytes: self.anonymous_bytes.max(other.anonymous_bytes),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
            fds: self.fds.max(other.fds),
            memfds: self.memfds.max(other.memfds),
            memfd_mappings: self.memfd_mappings.max(other.memfd_mappings),
            threads: self.threads.max(other.threads),
        }
    }
}

/// Waits until something holds; says what it last was if it never does.
pub fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> Result<std::result::Result<(), T>>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        match look()? {
            Ok(()) => return Ok(()),
            Err(last) => ensure!(start.elapsed() < WATCHDOG, "never: {what}; last: {last:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
