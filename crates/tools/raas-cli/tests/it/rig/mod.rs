//! Runs the real binary: bounded commands, children that do not outlive the test, daemons on loopback addresses that no
//! other test uses.

pub(crate) mod discovery;
pub(crate) mod namespace;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing here takes longer unless it hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

/// The binary under test.
pub(crate) fn raas() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raas"));
    command.env_remove("RAAS_SOCKET").env_remove("XDG_RUNTIME_DIR").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// An address of 127.0.0.0/8 for this test alone. Processes of one test run differ in their pid, tests in the counter.
/// `cargo test` has all tests in one process, which takes more than one block of addresses.
pub(crate) fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let block = std::process::id() + n / 254;
    IpAddr::from([127, 1 + (block / 250 % 250) as u8, 1 + (block % 250) as u8, 1 + (n % 254) as u8])
}

/// What an ended command said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("killed by a signal: {self:?}"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A running child with its output, killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            follow(child.stdout.take().unwrap(), Arc::clone(&stdout)),
            follow(child.stderr.take().unwrap(), Arc::clone(&stderr)),
        ];
        Self { child, stdout, stderr, readers }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process group, if it was started as the leader of one.
    pub(crate) fn group(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin is piped and taken once")
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().unwrap()).into_owned()
    }

    /// Bytes that stdout has brought so far.
    pub(crate) fn stdout_bytes(&self) -> usize {
        self.stdout.lock().unwrap().len()
    }

    /// Waits for an end with code 0, and gives what stdout brought.
    pub(crate) fn end_bytes(self) -> Vec<u8> {
        let stdout = Arc::clone(&self.stdout);
        let ended = self.end();
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        std::mem::take(&mut stdout.lock().unwrap())
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }

    /// Waits until a server has said "port N", the whole line, on stdout; N.
    pub(crate) fn port(&mut self) -> String {
        self.wait_for("port ");
        let mut port = None;
        wait_until("the end of the line with the port", || {
            let said = self.stdout();
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            port = whole.lines().find_map(|line| line.strip_prefix("port ")).map(|port| port.trim().to_owned());
            port.is_some()
        });
        port.expect("it was there")
    }

    /// Waits until stdout or stderr contains `text`, whose line may go on.
    pub(crate) fn wait_for(&mut self, text: &str) {
        wait_until(&format!("`{text}`"), || {
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return true;
            }
            let ended = self.child.try_wait().unwrap();
            // When the readers are at the end, its last words are here too.
            if let Some(status) = ended.filter(|_| self.readers.iter().all(JoinHandle::is_finished)) {
                let said = self.stdout().contains(text) || self.stderr().contains(text);
                assert!(said, "ended with {status} before `{text}`: {} {}", self.stdout(), self.stderr());
                return true;
            }
            false
        });
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// SIGKILL, then reaped.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Whether the kernel has stopped all of its threads.
    pub(crate) fn stands_still(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
    }

    /// Waits for the end, bounded by the watchdog.
    pub(crate) fn end(self) -> Ended {
        self.end_within(WATCHDOG)
    }

    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        let mut status = None;
        let begin = Instant::now();
        while status.is_none() {
            status = self.child.try_wait().unwrap();
            let (out, err) = (self.stdout(), self.stderr());
            assert!(begin.elapsed() < limit, "hangs; it said: {out} {err}");
            std::thread::sleep(Duration::from_millis(5));
        }
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Ended { status: status.unwrap(), stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- child {} said:\n{}{}", self.pid(), self.stdout(), self.stderr());
        }
    }
}

fn follow(from: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let part = match from.fill_buf() {
                Ok([]) | Err(_) => return,
                Ok(part) => part,
            };
            into.lock().unwrap().extend_from_slice(part);
            let n = part.len();
            from.consume(n);
        }
    })
}

/// Runs to the end.
pub(crate) fn run(command: &mut Command) -> Ended {
    Running::start(command).end()
}

/// Waits until `condition` holds, bounded by the watchdog.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < WATCHDOG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory with a key that several daemons may share.
pub(crate) struct Cluster {
    pub(crate) dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let cluster = Self { dir: tempfile::tempdir().unwrap() };
        write_key(&cluster.key(), 7);
        cluster
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    /// A daemon with this cluster's key.
    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::start(self, &self.key(), address())
    }
}

pub(crate) fn write_key(path: &Path, byte: u8) {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(&[byte; 32]).unwrap();
}

/// A running daemon.
pub(crate) struct Daemon {
    pub(crate) ip: IpAddr,
    pub(crate) socket: PathBuf,
    pub(crate) process: Running,
}

/// What carries the lanes of daemons under test: `RAAS_TEST_WIRE=iwarp cargo nextest run -p raas-cli` runs them over TCP.
pub(crate) fn on_wire(daemon: &mut Command) {
    if let Ok(wire) = std::env::var("RAAS_TEST_WIRE") {
        daemon.args(["--wire", &wire]);
    }
}

impl Daemon {
    pub(crate) fn start(cluster: &Cluster, key: &Path, ip: IpAddr) -> Self {
        Self::start_with(cluster, key, ip, on_wire)
    }

    /// As [`Self::start`], whatever the environment says of the wire.
    pub(crate) fn start_over(cluster: &Cluster, ip: IpAddr, wire: &str) -> Self {
        Self::start_with(cluster, &cluster.key(), ip, |daemon| _ = daemon.args(["--wire", wire]))
    }

    /// As [`Self::start`], with these options besides, whatever the environment says of the wire.
    pub(crate) fn start_as(cluster: &Cluster, options: &[&str]) -> Self {
        Self::start_with(cluster, &cluster.key(), address(), |daemon| _ = daemon.args(options))
    }

    /// As [`Self::start_as`], at an address of the test's own namespace.
    pub(crate) fn start_at(cluster: &Cluster, ip: IpAddr, options: &[&str]) -> Self {
        Self::start_with(cluster, &cluster.key(), ip, |daemon| _ = daemon.args(options))
    }

    fn start_with(cluster: &Cluster, key: &Path, ip: IpAddr, further: impl FnOnce(&mut Command)) -> Self {
        let socket = cluster.dir.path().join(format!("{ip}.sock"));
        let mut command = raas();
        command.args(["daemon", "--listen", &ip.to_string(), "--until-stdin-closes"]);
        command.arg("--socket").arg(&socket).arg("--key-file").arg(key).stdin(Stdio::piped());
        further(&mut command);
        let mut process = Running::start(&mut command);
        process.wait_for(&format!("ready socket={}", socket.display()));
        Self { ip, socket, process }
    }

    /// A command that talks to this daemon.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = raas();
        command.args(args).env("RAAS_SOCKET", &self.socket);
        command
    }

    pub(crate) fn session(&self, name: &str) -> raas::Session {
        raas::Session::builder().socket(&self.socket).name(name).connect().unwrap()
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) {
        drop(self.process.stdin());
        let ended = self.process.end();
        assert_eq!(ended.code(), 0, "{ended:?}");
    }
}

/// Nobody's number on every Linux.
const NOBODY: u32 = 65_534;

/// A daemon that every user of the host may use, and another user. Only root can be somebody else.
pub(crate) struct OpenHost {
    pub(crate) daemon: Running,
    pub(crate) ip: IpAddr,
    binary: PathBuf,
    socket: PathBuf,
}

impl OpenHost {
    /// `limits`: lines under `[limits]`. None, with a line that says so, where this is not root.
    pub(crate) fn start(cluster: &Cluster, name: &str, limits: &str) -> Option<Self> {
        Self::start_under(cluster, name, limits, "true")
    }

    /// As [`Self::start`], after this command of the shell.
    pub(crate) fn start_under(cluster: &Cluster, name: &str, limits: &str, before: &str) -> Option<Self> {
        let socket = cluster.dir.path().join("raasd.sock");
        Self::configured(cluster, name, socket, &format!("socket_mode = \"0666\"\n[limits]\n{limits}\n"), before)
    }

    /// A daemon for the members of [`NOBODY`]'s group, in a directory that it makes.
    pub(crate) fn start_for_group(cluster: &Cluster, name: &str) -> Option<Self> {
        let socket = cluster.dir.path().join("run/raasd.sock");
        Self::configured(cluster, name, socket, &format!("socket_group = \"{NOBODY}\"\n"), "true")
    }

    fn configured(cluster: &Cluster, name: &str, socket: PathBuf, text: &str, before: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP {name}: only root can be somebody else here");
            return None;
        }
        let place = cluster.dir.path();
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Where the binary was built may be closed to others.
        let binary = place.join("raas");
        std::fs::copy(env!("CARGO_BIN_EXE_raas"), &binary).unwrap();
        let (config, key, ip) = (place.join("raasd.toml"), cluster.key(), address());
        let text = format!("listen = \"{ip}\"\nsocket = {socket:?}\nkey_file = {key:?}\n{text}");
        std::fs::write(&config, text).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before} && exec \"$0\" daemon --config \"$1\"")]);
        shell.arg(raas().get_program()).arg(&config).stdin(Stdio::null());
        shell.env_remove("RAAS_SOCKET").env_remove("XDG_RUNTIME_DIR").env_remove("RUST_LOG");
        let mut daemon = Running::start(&mut shell);
        daemon.wait_for("ready socket=");
        Some(Self { daemon, ip, binary, socket })
    }

    /// A command of another user.
    pub(crate) fn as_nobody(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args).env("RAAS_SOCKET", &self.socket).current_dir("/").uid(NOBODY).gid(NOBODY);
        command
    }

    /// A command of this user.
    pub(crate) fn as_owner(&self, args: &[&str]) -> Command {
        let mut command = raas();
        command.args(args).env("RAAS_SOCKET", &self.socket);
        command
    }
}

/// Bytes that repeat with no power of two, so that a misplaced piece shows.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i % 251) as u8 ^ (i / 65_521) as u8).collect()
}
