//! Where the two ends of a bench run: both on this host, or each in a network namespace of its own with a veth pair
//! between. And their daemons. The namespaces belong to processes that this one started, so nothing is left behind.

use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::link::Link;
use super::process::{Beside, READY_WITHIN};
use super::{processor, with_priority};
use harness::child::{self, Stream};
use harness::repo::Repo;

/// Set in the process that is already in a namespace of its own.
const INSIDE: &str = "RAAS_BENCH_INSIDE";
/// The veth pair has this name on both sides, each in its namespace.
pub(crate) const INTERFACE: &str = "bench0";
/// Rivals look for interfaces in /sys, which shows those of the namespace that it was mounted in. `perf` looks for the
/// kernel's events in a place below it.
const MOUNT_SYS: &str = "mount -t sysfs none /sys 2>/dev/null; mount -t tracefs none /sys/kernel/tracing 2>/dev/null";
/// Addresses of the ends.
const ADDRESSES: [&str; 6] = ["10.79.0.1", "10.79.0.2", "10.79.0.3", "10.79.0.4", "10.79.0.5", "10.79.0.6"];
/// Hosts of a cluster, the client's included, at most.
pub(crate) const HOSTS_MAX: usize = ADDRESSES.len();
/// Address where both ends are on this host.
const LOCAL: &str = "127.0.0.1";
/// Addresses of the second daemons of two hosts.
const SECOND_ADDRESSES: [&str; 2] = ["10.79.0.11", "10.79.0.12"];
/// Most that a kernel connection may buffer: 100 ms at 5 Gbit/s.
const TCP_BUFFERS: [(&str, &str); 2] =
    [("net/ipv4/tcp_rmem", "4096 131072 67108864"), ("net/ipv4/tcp_wmem", "4096 65536 67108864")];
/// A tmpfs.
const MEMORY: &str = "/dev/shm";
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
const SETUP_LIMIT: Duration = Duration::from_secs(20);

/// Which of the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
    /// A further server, from 2 on.
    Further(usize),
}

impl End {
    /// The client is 0, the server 1.
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
            Self::Further(number) => number,
        }
    }

    /// Which of two processors is its.
    fn processor(self) -> usize {
        self.number().min(1)
    }
}

/// The ends.
#[derive(Debug)]
pub(crate) struct Place {
    repo_root: PathBuf,
    /// Where the measured programs lie.
    programs: PathBuf,
    dir: PathBuf,
    /// The processes that hold the servers' namespaces.
    others: Vec<Beside>,
    daemons: Vec<Daemon>,
    /// Programs get the second daemons, with their addresses.
    is_second: bool,
    /// The processor that each end's programs keep to.
    pinned: Option<[usize; 2]>,
    /// Holds a link between two ends of one namespace, and a kernel's RDMA device on each.
    link: Option<Link>,
}

/// A daemon of a bench.
#[derive(Debug)]
struct Daemon {
    end: End,
    is_second: bool,
    socket: PathBuf,
    process: Beside,
}

/// Whether this process is in a namespace that [`enter_namespace`] made.
pub(crate) fn is_in_namespace() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Starts this very command again in a network namespace of its own, unless this is that already. The answer is its
/// exit code.
pub(crate) fn enter_namespace() -> Result<Option<std::process::ExitStatus>> {
    if is_in_namespace() {
        return Ok(None);
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--", "sh", "-c", &format!("{MOUNT_SYS}; exec \"$@\""), "sh"]).arg(harness::itself::path()?);
    command.args(std::env::args_os().skip(1)).env(INSIDE, "1");
    let status = command.status().context("cannot start `unshare`")?;
    Ok(Some(status))
}

impl Place {
    /// Both ends on this host, with one daemon.
    pub(crate) fn one_host(repo: &Repo, name: &str, config: &str) -> Result<Self> {
        let mut place = Self::new(repo, name)?;
        place.start_daemon(LOCAL, End::Client, config)?;
        Ok(place)
    }

    /// Each end in a namespace with its daemon, joined by a veth pair.
    pub(crate) fn two_hosts(repo: &Repo, name: &str, mtu: u32, config: &str) -> Result<Self> {
        let mut place = Self::two_namespaces(repo, name)?;
        place.join()?;
        place.bring_up(mtu)?;
        place.start_daemons(config)?;
        Ok(place)
    }

    /// A veth pair between the two ends.
    fn join(&self) -> Result<()> {
        let pid = self.other_pid();
        let add = ["link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", pid.as_str()];
        self.set_up(End::Client, &add)
    }

    /// So many ends, each in a namespace, without daemons yet: two are joined by a veth pair, more by a bridge at the
    /// client's end. With a directory, the measured programs lie there; otherwise they are built.
    pub(crate) fn hosts(repo: &Repo, name: &str, mtu: u32, count: usize, programs: Option<&Path>) -> Result<Self> {
        ensure!((2..=HOSTS_MAX).contains(&count), "a bench has 2 to {HOSTS_MAX} hosts, not {count}");
        let mut place = match programs {
            Some(programs) => Self::with_programs(repo, name, programs)?,
            None => Self::new(repo, name)?,
        };
        (1..count).try_for_each(|_| place.add_namespace())?;
        if count == 2 {
            place.join()?;
        } else {
            place.set_up(End::Client, &["link", "add", INTERFACE, "type", "bridge"])?;
            for (number, other) in place.others.iter().enumerate() {
                let (port, pid) = (port(number), other.pid().to_string());
                let add = ["link", "add", &port, "type", "veth", "peer", "name", INTERFACE, "netns", &pid];
                place.set_up(End::Client, &add)?;
                let mtu = mtu.to_string();
                place.set_up(End::Client, &["link", "set", &port, "master", INTERFACE, "mtu", &mtu, "up"])?;
            }
        }
        place.bring_up(mtu)?;
        Ok(place)
    }

    pub(super) fn two_namespaces(repo: &Repo, name: &str) -> Result<Self> {
        let mut place = Self::new(repo, name)?;
        place.add_namespace()?;
        Ok(place)
    }

    fn add_namespace(&mut self) -> Result<()> {
        let script = format!("{MOUNT_SYS}; echo here; cat");
        let mut other = Beside::start(Command::new("unshare").args(["--net", "--mount", "sh", "-c", &script]))?;
        other.wait_line("here", READY_WITHIN)?;
        self.others.push(other);
        Ok(())
    }

    pub(super) fn other_pid(&self) -> String {
        self.others.first().map_or_else(String::new, |other| other.pid().to_string())
    }

    /// All ends, the client first.
    pub(crate) fn ends(&self) -> Vec<End> {
        let further = (2..=self.others.len()).map(End::Further);
        [End::Client, End::Server].into_iter().chain(further).collect()
    }

    pub(super) fn bring_up(&self, mtu: u32) -> Result<()> {
        for end in self.ends() {
            let address = self.address(end);
            self.set_up(end, &["link", "set", "lo", "up"])?;
            self.set_up(end, &["address", "add", &format!("{address}/24"), "dev", INTERFACE])?;
            self.set_up(end, &["link", "set", INTERFACE, "mtu", &mtu.to_string(), "up"])?;
        }
        Ok(())
    }

    /// Lets a kernel connection have as much under way as a long fast line holds.
    pub(super) fn grow_tcp_buffers(&self) -> Result<()> {
        let script: String = TCP_BUFFERS.map(|(name, value)| format!("echo {value} > /proc/sys/{name}")).join(" && ");
        for end in [End::Client, End::Server] {
            let ended = child::run_quiet(&mut self.command(end, &["sh", "-c", &script]), SETUP_LIMIT)?;
            ensure!(ended.success(), "{script}: {}", ended.text(Stream::Err));
        }
        Ok(())
    }

    /// Lets kernel connections ask for marks of congestion, or accept only what is asked of them, as by default.
    pub(super) fn let_tcp_ask_for_marks(&self, asks: bool) -> Result<()> {
        let script = format!("echo {} > /proc/sys/net/ipv4/tcp_ecn", if asks { 1 } else { 2 });
        for end in [End::Client, End::Server] {
            let ended = child::run_quiet(&mut self.command(end, &["sh", "-c", &script]), SETUP_LIMIT)?;
            ensure!(ended.success(), "{script}: {}", ended.text(Stream::Err));
        }
        Ok(())
    }

    /// A daemon at each end.
    pub(crate) fn start_daemons(&mut self, config: &str) -> Result<()> {
        self.start_daemons_at(&self.ends(), config)
    }

    /// A daemon at each of these.
    pub(crate) fn start_daemons_at(&mut self, ends: &[End], config: &str) -> Result<()> {
        ends.iter().try_for_each(|end| self.start_daemon(self.address(*end), *end, config))
    }

    /// A second daemon at each of two ends, of another configuration, with an address of its own.
    pub(crate) fn start_second_daemons(&mut self, config: &str) -> Result<()> {
        self.use_second_daemons(true);
        for end in self.ends() {
            self.set_up(end, &["address", "add", &format!("{}/24", self.address(end)), "dev", INTERFACE])?;
        }
        self.start_daemons(config)?;
        self.use_second_daemons(false);
        Ok(())
    }

    /// From now on programs get the second daemons, or the first ones.
    pub(crate) fn use_second_daemons(&mut self, is_second: bool) {
        self.is_second = is_second;
    }

    /// Ends them.
    pub(crate) fn stop_daemons(&mut self) {
        for daemon in self.daemons.drain(..) {
            daemon.process.end();
        }
    }

    fn new(repo: &Repo, name: &str) -> Result<Self> {
        let packages = ["build", "--release", "--package", "raas-cli", "--package", "bench"];
        let build = child::run_quiet(&mut repo.command("cargo", &packages), BUILD_LIMIT)?;
        ensure!(build.success(), "building the measured programs: {}\n{}", build.describe(), build.text(Stream::Err));
        Self::with_programs(repo, name, &repo.target.join("release"))
    }

    pub(super) fn with_programs(repo: &Repo, name: &str, programs: &Path) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("raas-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let key = dir.join("key");
        std::fs::write(&key, [7; 32])?;
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(Self {
            repo_root: repo.root.clone(),
            programs: programs.to_owned(),
            dir,
            others: vec![],
            daemons: vec![],
            is_second: false,
            pinned: None,
            link: None,
        })
    }

    /// Two ends on a kernel's devices, without daemons yet. It changes the routes of this namespace, so this is for a
    /// guest.
    pub(crate) fn kernel_devices(repo: &Repo, name: &str, mtu: u32, programs: &Path) -> Result<Self> {
        let mut place = Self::with_programs(repo, name, programs)?;
        let (program, mtu) = (place.program("bench"), mtu.to_string());
        let words = [&program, "nicbench", "link", "--mtu", &mtu];
        place.link = Some(Link::make(&mut place.command(End::Client, &words))?);
        Ok(place)
    }

    pub(super) fn set_up(&self, end: End, words: &[&str]) -> Result<()> {
        let ended = child::run_quiet(&mut self.command(end, &[&["ip"], words].concat()), SETUP_LIMIT)?;
        ensure!(ended.success(), "ip {}: {}", words.join(" "), ended.text(Stream::Err));
        Ok(())
    }

    fn start_daemon(&mut self, address: &str, end: End, config: &str) -> Result<()> {
        let socket = self.dir.join(format!("{}.sock", self.daemons.len()));
        let file = self.dir.join("raas.toml");
        std::fs::write(&file, config)?;
        let program = self.program("raas");
        let words = [&program, "daemon", "--listen", address, "--until-stdin-closes", "--log", "warn"];
        let mut command = self.command(end, &words);
        command.arg("--socket").arg(&socket).arg("--key-file").arg(self.dir.join("key")).arg("--config").arg(&file);
        let mut process = Beside::start(&mut command)?;
        process.wait_line("ready socket=", READY_WITHIN)?;
        self.daemons.push(Daemon { end, is_second: self.is_second, socket, process });
        Ok(())
    }

    /// A program of this repository.
    pub(crate) fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    /// A file of this bench.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A directory of this bench whose files are in memory.
    pub(crate) fn memory(&self, name: &str) -> PathBuf {
        Path::new(MEMORY).join(format!("raas-bench-{}", std::process::id())).join(name)
    }

    /// The server's address.
    pub(crate) fn server(&self) -> &'static str {
        self.address(End::Server)
    }

    /// The address of an end.
    pub(crate) fn address(&self, end: End) -> &'static str {
        match (self.is_two_hosts(), self.is_second) {
            (false, _) => LOCAL,
            (true, false) => {
                self.link.as_ref().map_or_else(|| ADDRESSES[end.number()], |link| link.address(end != End::Client))
            }
            (true, true) => SECOND_ADDRESSES[end.number()],
        }
    }

    /// Daemons' processes.
    pub(crate) fn daemon_pids(&self) -> Vec<u32> {
        self.daemons.iter().map(|daemon| daemon.process.pid()).collect()
    }

    /// A command at one end, with the socket of that end's daemon, ahead of other work of the machine.
    pub(crate) fn command(&self, end: End, words: &[&str]) -> Command {
        let namespace = end.number().checked_sub(1).and_then(|number| self.others.get(number));
        let namespace = namespace.map(|other| {
            let of = |kind: &str, name: &str| format!("--{kind}=/proc/{}/ns/{name}", other.pid());
            [of("mount", "mnt"), of("net", "net")]
        });
        let mut all: Vec<&str> = vec![];
        if let Some([mount, net]) = &namespace {
            all.extend(["nsenter", mount, net, "--"]);
        }
        let processor = self.pinned.map(|both| both[end.processor()].to_string());
        if let Some(processor) = &processor {
            all.extend(["taskset", "--cpu-list", processor]);
        }
        all.extend(words);
        let all = with_priority(&all);
        let (program, arguments) = all.split_first().unwrap_or((&"true", &[]));
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.repo_root).process_group(0);
        // Both ends of one host have its daemon.
        let daemon = self.daemons.iter().find(|daemon| daemon.end == end && daemon.is_second == self.is_second);
        let daemon = daemon.or(self.daemons.first());
        if let Some(daemon) = daemon {
            command.env("RAAS_SOCKET", &daemon.socket);
        }
        command
    }

    /// From now on each end's programs keep to a processor of its own, or to none again. Of two hosts that holds for
    /// their daemons too; the daemon of one host is on the path of neither end.
    pub(crate) fn pin(&mut self, pinned: bool) -> Result<()> {
        let all = processor::allowed()?;
        self.pinned = if pinned { Some(processor::two_apart(&all)?) } else { None };
        for daemon in self.daemons.iter().filter(|_| self.is_two_hosts()) {
            let own = self.pinned.map(|both| vec![both[daemon.end.processor()]]);
            let list = own.as_ref().unwrap_or(&all).iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let pid = daemon.process.pid().to_string();
            let mut taskset = Command::new("taskset");
            taskset.args(["--all-tasks", "--cpu-list", "--pid", &list, &pid]);
            let ended = child::run_quiet(&mut taskset, SETUP_LIMIT)?;
            ensure!(ended.success(), "taskset {list} {pid}: {}", ended.text(Stream::Err));
        }
        Ok(())
    }

    /// Lets programs of every user reach what is in this place.
    pub(crate) fn open_to_all(&self) -> Result<()> {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&self.dir, mode).context("cannot open the bench's directory")
    }

    /// Starts a program for each processor that does nothing but compute; each ends when it is dropped.
    pub(crate) fn crowd(&self) -> Result<Vec<Beside>> {
        let words = ["sh", "-c", "while :; do :; done"];
        processor::allowed()?.iter().map(|_| Beside::start(&mut self.command(End::Client, &words))).collect()
    }

    /// The processors of client and server where they are pinned.
    pub(crate) fn processors() -> Result<[usize; 2]> {
        processor::two_apart(&processor::allowed()?)
    }

    /// Whether addresses belong to several hosts.
    pub(crate) fn is_two_hosts(&self) -> bool {
        !self.others.is_empty() || self.link.is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop_daemons();
        // The next place has the same names. A bridge stays without its namespaces, and a veth pair for a moment.
        if !self.others.is_empty() {
            let ports = (0..self.others.len()).map(port);
            for name in ports.chain([INTERFACE.to_owned()]) {
                let delete = ["ip", "link", "delete", &name];
                let _absent = child::run_quiet(&mut self.command(End::Client, &delete), SETUP_LIMIT);
            }
        }
        // What is left lies in the system's directory for such things.
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_dir_all(self.memory(""));
    }
}

/// The client's end of the way to a further host, where there are more than two.
fn port(number: usize) -> String {
    format!("port{number}")
}

/// An address and a port as one word.
pub(crate) fn at(address: &str, port: u16) -> String {
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("[{address}]:{port}"),
        _ => format!("{address}:{port}"),
    }
}
