//! Where both ends of a connection run: on one host, or on two, which are network namespaces joined by a veth pair; on
//! kernel TCP, or under `raas run` with the host's daemon. Owns namespaces, daemons and what a command needs to run in
//! them. All of it ends with its owner.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::child;
use harness::programs;
use harness::repo::Repo;

const SETUP_LIMIT: Duration = Duration::from_secs(20);
/// A daemon, and a program that listens.
const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// Where both ends are on one host.
const LOCAL: &str = "127.0.0.1";
/// Three pairs of hosts may be there at once: with daemons that use the lane, without daemons, and with daemons as they
/// are by default.
const HOSTS: [&str; 2] = ["10.83.0.1", "10.83.0.2"];
const HOSTS_WITHOUT: [&str; 2] = ["10.83.1.1", "10.83.1.2"];
const HOSTS_POLLED: [&str; 2] = ["10.83.2.1", "10.83.2.2"];
/// The veth pair has the same name on both sides.
const INTERFACE: &str = "programs0";
const INTERFACE_WITHOUT: &str = "programs1";
const INTERFACE_POLLED: &str = "programs2";
/// What `raas run` loads into programs.
const PRELOAD: &str = "libraas_preload.so";

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// How the two ends are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Kernel TCP on one host, no RaaS.
    Tcp,
    /// Kernel TCP between two namespaces.
    TcpTwoHosts,
    /// Both under `raas run`, with one daemon.
    SameHost,
    /// Both under `raas run`, each with its host's daemon, all connections over the lane.
    TwoHosts,
    /// The same as daemons are by default: connections between software NICs stay on kernel TCP, which is polled.
    Polled,
    /// The client alone is under `raas run`.
    ClientOnly,
    /// The server alone is under `raas run`.
    ServerOnly,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpTwoHosts => "tcp-two-hosts",
            Self::SameHost => "same-host",
            Self::TwoHosts => "two-hosts",
            Self::Polled => "two-hosts-polled",
            Self::ClientOnly => "client-only",
            Self::ServerOnly => "server-only",
        }
    }

    fn is_two_hosts(self) -> bool {
        matches!(self, Self::TwoHosts | Self::Polled | Self::TcpTwoHosts)
    }

    fn is_under(self, end: End) -> bool {
        match self {
            Self::Tcp | Self::TcpTwoHosts => false,
            Self::SameHost | Self::TwoHosts | Self::Polled => true,
            Self::ClientOnly => end == End::Client,
            Self::ServerOnly => end == End::Server,
        }
    }

    /// The link between two hosts, and their addresses.
    fn link(self) -> (&'static str, [&'static str; 2]) {
        match self {
            Self::TcpTwoHosts => (INTERFACE_WITHOUT, HOSTS_WITHOUT),
            Self::Polled => (INTERFACE_POLLED, HOSTS_POLLED),
            _ => (INTERFACE, HOSTS),
        }
    }

    /// Whether an end is under `raas run`.
    pub(crate) fn needs_run(self) -> bool {
        [End::Client, End::Server].iter().any(|end| self.is_under(*end))
    }

    /// Whether connections are to go over RaaS.
    pub(crate) fn is_raas(self) -> bool {
        matches!(self, Self::SameHost | Self::TwoHosts)
    }
}

/// The programs of this repository that are needed.
#[derive(Debug)]
pub(crate) struct Built {
    raas: PathBuf,
    /// Why nothing runs under `raas run`, if so.
    pub(crate) lacks_run: Option<String>,
}

/// Builds `raas` and the library that `raas run` loads, as all tests have them; or takes what is `given`.
pub(crate) fn built(repo: &Repo, given: Option<&Path>) -> Result<Built> {
    if let Some(raas) = given {
        return Ok(Built {
            raas: raas.canonicalize().with_context(|| format!("no {}", raas.display()))?,
            lacks_run: None,
        });
    }
    let raas = programs::path(repo, "raas");
    if !repo.packages.iter().any(|package| package.name == "raas-preload") {
        return Ok(Built { raas, lacks_run: Some("this workspace has no crate raas-preload".to_owned()) });
    }
    programs::build(repo)?;
    ensure!(programs::path(repo, PRELOAD).exists(), "the build made no {PRELOAD}");
    Ok(Built { raas, lacks_run: None })
}

/// One host or two, with daemons or without.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) way: Way,
    dir: tempfile::TempDir,
    raas: Option<PathBuf>,
    /// Holds the namespace of the server's host.
    other: Option<Guard>,
    daemons: Vec<Guard>,
}

/// A process that ends with its owner.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self(child))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It has ended already if this fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    /// Makes the place. `built` is needed where an end is under `raas run`.
    pub(crate) fn new(way: Way, built: Option<&Built>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("raas-programs-").tempdir()?;
        // Servers that change their user look into it.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        let mut place = Self { way, dir, raas: None, other: None, daemons: vec![] };
        if way.is_two_hosts() {
            place.join_hosts()?;
        }
        if way.needs_run() {
            place.raas = Some(built.context("this needs `raas run`")?.raas.clone());
            place.start_daemons()?;
        }
        Ok(place)
    }

    fn join_hosts(&mut self) -> Result<()> {
        let script = "mount -t sysfs none /sys 2>/dev/null; echo here; exec cat";
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = Guard::start(&mut unshare)?;
        let mut said = [0; 4];
        let out = other.0.stdout.as_mut().context("its output is piped")?;
        std::io::Read::read_exact(out, &mut said).context("no second namespace here")?;
        let pid = other.pid().to_string();
        self.other = Some(other);
        let (link, hosts) = self.way.link();
        // The kernel takes the link of an earlier place away when it gets to it.
        let begin = Instant::now();
        while self.ip(End::Client, &["link", "show", link]).is_ok() && begin.elapsed() < SETUP_LIMIT {
            std::thread::sleep(POLL);
        }
        self.ip(End::Client, &["link", "add", link, "type", "veth", "peer", "name", link, "netns", &pid])?;
        for (end, address) in [(End::Client, hosts[0]), (End::Server, hosts[1])] {
            self.ip(end, &["link", "set", "lo", "up"])?;
            self.ip(end, &["address", "add", &format!("{address}/24"), "dev", link])?;
            self.ip(end, &["link", "set", link, "up"])?;
        }
        Ok(())
    }

    fn ip(&self, end: End, words: &[&str]) -> Result<()> {
        let ended = child::run_quiet(&mut self.plain(end, &[&["ip"], words].concat()), SETUP_LIMIT)?;
        ensure!(ended.success(), "ip {}: {}", words.join(" "), ended.text(child::Stream::Err));
        Ok(())
    }

    fn start_daemons(&mut self) -> Result<()> {
        let raas = self.raas.clone().context("daemons are the binary's")?;
        let (key, config) = (self.dir.path().join("key"), self.dir.path().join("raas.toml"));
        std::fs::write(&key, [7; 32])?;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
        // Programs of any user of the host.
        let lanes = if self.way == Way::TwoHosts { "run_lanes = \"always\"\n" } else { "" };
        std::fs::write(&config, format!("socket_mode = \"0666\"\n{lanes}"))?;
        let hosts = self.way.link().1;
        let both = match self.way.is_two_hosts() {
            true => vec![(End::Client, hosts[0]), (End::Server, hosts[1])],
            false => vec![(End::Client, LOCAL)],
        };
        for (end, address) in both {
            let socket = self.socket(end);
            let log = std::fs::File::create(socket.with_extension("log"))?;
            let words = [&raas.to_string_lossy(), "daemon", "--listen", address, "--until-stdin-closes"];
            let mut command = self.plain(end, &words);
            command.arg("--socket").arg(&socket).arg("--key-file").arg(&key).arg("--config").arg(&config);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
            let mut daemon = Guard::start(&mut command)?;
            let begin = Instant::now();
            while !socket.exists() {
                let log = || std::fs::read_to_string(socket.with_extension("log")).unwrap_or_default();
                ensure!(!daemon.has_ended(), "the daemon ended: {}", log());
                ensure!(begin.elapsed() < READY_LIMIT, "the daemon is not ready: {}", log());
                std::thread::sleep(POLL);
            }
            self.daemons.push(daemon);
        }
        Ok(())
    }

    /// The socket of that end's daemon.
    fn socket(&self, end: End) -> PathBuf {
        let second = self.way.is_two_hosts() && end == End::Server;
        self.dir.path().join(if second { "server.sock" } else { "host.sock" })
    }

    /// A directory for files of this place.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The server's address.
    pub(crate) fn server(&self) -> &'static str {
        if self.way.is_two_hosts() { self.way.link().1[1] } else { LOCAL }
    }

    fn plain(&self, end: End, words: &[&str]) -> Command {
        self.command_of(end, words, false)
    }

    /// A command at one end, under `raas run` where this place has it so.
    pub(crate) fn command(&self, end: End, words: &[&str]) -> Command {
        self.command_of(end, words, self.way.is_under(end))
    }

    /// A script of bash at one end; `$RUN` is `raas run`, or nothing where that end is on kernel TCP alone.
    pub(crate) fn script(&self, end: End, script: &str) -> Command {
        let mut command = self.plain(end, &["bash", "-euo", "pipefail", "-c", script]);
        let raas = self.raas.as_ref().filter(|_| self.way.is_under(end));
        command.env("RUN", raas.map_or(String::new(), |raas| format!("{} run", raas.display())));
        if raas.is_some() {
            command.env("RAAS_SOCKET", self.socket(end));
        }
        command
    }

    /// `raas` itself at one end, with the socket of that end's daemon.
    pub(crate) fn raas(&self, end: End, words: &[&str]) -> Option<Command> {
        let raas = self.raas.as_ref()?.to_string_lossy().into_owned();
        let mut command = self.plain(end, &[&[raas.as_str()], words].concat());
        command.env("RAAS_SOCKET", self.socket(end));
        Some(command)
    }

    fn command_of(&self, end: End, words: &[&str], under: bool) -> Command {
        let mut all: Vec<String> = vec![];
        if let Some(other) = self.other.as_ref().filter(|_| end == End::Server) {
            let of = |kind: &str, name: &str| format!("--{kind}=/proc/{}/ns/{name}", other.pid());
            all.extend(["nsenter".to_owned(), of("mount", "mnt"), of("net", "net"), "--".to_owned()]);
        }
        if let Some(raas) = self.raas.as_ref().filter(|_| under) {
            all.extend([raas.to_string_lossy().into_owned(), "run".to_owned()]);
        }
        all.extend(words.iter().map(|word| (*word).to_owned()));
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).current_dir(self.dir.path());
        if under {
            command.env("RAAS_SOCKET", self.socket(end));
        }
        command
    }

    /// Waits until somebody listens on the server's port, as its kernel tells; nobody is called for it.
    pub(crate) fn wait_port(&self, port: u16, mut gone: impl FnMut() -> bool) -> Result<()> {
        let pid = self.other.as_ref().map_or("self".to_owned(), |other| other.pid().to_string());
        let begin = Instant::now();
        loop {
            if ["tcp", "tcp6"].iter().any(|table| listens(Path::new(&format!("/proc/{pid}/net/{table}")), port)) {
                return Ok(());
            }
            ensure!(!gone(), "the server has ended before it listened on port {port}");
            ensure!(begin.elapsed() < READY_LIMIT, "nobody listens on port {port}");
            std::thread::sleep(POLL);
        }
    }
}

/// Whether a line of the kernel's table has this port in the state of a listener.
fn listens(table: &Path, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    std::fs::read_to_string(table).unwrap_or_default().lines().skip(1).any(|line| {
        let mut cells = line.split_whitespace().skip(1);
        cells.next().is_some_and(|local| local.ends_with(&wanted)) && cells.nth(1) == Some(LISTEN)
    })
}
