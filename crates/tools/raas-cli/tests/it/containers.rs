//! Containers share one daemon through the mounted directory of its socket: programs in user namespaces of their own,
//! each with its own mounts, processes, System V IPC, network (none) and /dev/shm, all without any right on the host.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::rig::{Cluster, Ended, Running, address, pattern, run, wait_until};
use serde_json::Value;

/// A user without rights, where the test itself runs as root.
const NOBODY: u32 = 65534;
/// Namespaces of a container. It has no network except the daemon's.
const NAMESPACES: [&str; 8] =
    ["--user", "--map-root-user", "--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child"];
/// What a container sees: the directory of the daemon's socket, read-only, in a place of its own, and a /dev/shm that
/// nobody shares. Not the socket itself: a mounted file stays that of the daemon which made it.
const ENTER: &str = r#"set -e
mount -t tmpfs none /mnt
mkdir /mnt/raas
mount --bind "$1" /mnt/raas
mount -o remount,bind,ro /mnt/raas
mount -t tmpfs none /dev/shm
export RAAS_SOCKET=/mnt/raas/raasd.sock
program="$2"; shift 2
exec "$program" "$@""#;
const FILE_BYTES: usize = 3_000_000;

/// A cluster whose files and processes belong to a user without rights.
struct Rootless {
    cluster: Cluster,
    program: PathBuf,
}

impl Rootless {
    fn new() -> Self {
        let cluster = Cluster::new();
        let program = cluster.dir.path().join("raas");
        // Where the build lies the other user may not be able to look.
        std::fs::copy(env!("CARGO_BIN_EXE_raas"), &program).unwrap();
        if is_root() {
            for path in [cluster.dir.path(), &cluster.key()] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        std::fs::set_permissions(cluster.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { cluster, program }
    }

    /// A command of the user without rights.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            let id = NOBODY.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        for name in ["RAAS_SOCKET", "XDG_RUNTIME_DIR", "RUST_LOG"] {
            command.env_remove(name);
        }
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn daemon(&self) -> Host {
        let ip = address();
        // It is alone in its directory, because the containers see the whole directory.
        let directory = self.cluster.dir.path().join(ip.to_string());
        std::fs::create_dir(&directory).unwrap();
        if is_root() {
            chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let socket = directory.join("raasd.sock");
        Host { ip, process: self.start(ip, &socket), socket }
    }

    fn start(&self, ip: IpAddr, socket: &Path) -> Running {
        let mut command = self.command(&self.program);
        command.args(["daemon", "--listen", &ip.to_string(), "--until-stdin-closes"]);
        command.arg("--socket").arg(socket).arg("--key-file").arg(self.cluster.key()).stdin(Stdio::piped());
        let mut process = Running::start(&mut command);
        process.wait_for(&format!("ready socket={}", socket.display()));
        process
    }

    /// `raas` in a container of its own on this host.
    fn container(&self, host: &Host, args: &[&str]) -> Command {
        let mut command = self.enter(host);
        command.arg(&self.program).args(args);
        command
    }

    /// A container that runs what is added.
    fn enter(&self, host: &Host) -> Command {
        let mut command = self.command("unshare");
        let directory = host.socket.parent().unwrap();
        command.args(NAMESPACES).args(["--", "sh", "-c", ENTER, "container"]).arg(directory);
        command
    }

    fn ss(&self, host: &Host) -> Value {
        run(self.command(&self.program).args(["ss", "--json", "--socket"]).arg(&host.socket)).json()
    }
}

/// A daemon outside of all containers, as the same user.
struct Host {
    ip: IpAddr,
    socket: PathBuf,
    process: Running,
}

impl Host {
    fn stop(self) {
        stop(self.process);
    }
}

fn stop(mut daemon: Running) {
    drop(daemon.stdin());
    assert_eq!(daemon.end().code(), 0);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this machine lets a user without rights make containers; says so where not.
fn can_run(rootless: &Rootless, name: &str) -> bool {
    let script = "mount -t tmpfs none /mnt && mount -t tmpfs none /dev/shm";
    let mut probe = rootless.command("unshare");
    let ended: Ended = match probe.args(NAMESPACES).args(["--", "sh", "-c", script]).output() {
        Ok(out) if out.status.success() => return true,
        Ok(out) => Ended {
            status: out.status,
            stdout: String::new(),
            stderr: String::from_utf8_lossy(&out.stderr).trim().to_owned(),
        },
        Err(e) => {
            assert!(!in_ci(), "no `unshare` or `setpriv` here: {e}");
            eprintln!("SKIP {name}: no `unshare` or `setpriv` here: {e}");
            return false;
        }
    };
    assert!(!in_ci(), "user namespaces are forbidden here: {ended:?}");
    eprintln!("SKIP {name}: user namespaces are forbidden here: {}", ended.stderr);
    false
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// The namespaces of a process and its /dev/shm, each by a number that is the same for two processes only if they share
/// it.
fn isolation(pid: u32) -> Vec<(&'static str, String)> {
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap().display().to_string();
    let shm = std::fs::metadata(format!("/proc/{pid}/root/dev/shm")).map(|m| m.dev().to_string());
    let mut all: Vec<_> = ["user", "mnt", "pid", "ipc", "net"].map(|name| (name, link(name))).into();
    // A user without rights may not look into another one's root.
    all.extend(shm.ok().map(|dev| ("/dev/shm", dev)));
    all
}

/// Sends a file from a container on `from` to one on `to`, and looks at the connection while it is open.
fn between(rootless: &Rootless, from: &Host, to: &Host, path: &str, port: u16) {
    let port = port.to_string();
    let mut receiver = Running::start(&mut rootless.container(to, &["recv", &port]));
    receiver.wait_for("listening on ");
    let mut command = rootless.container(from, &["send", "-", &format!("{}:{port}", to.ip)]);
    let mut sender = Running::start(command.stdin(Stdio::piped()));
    let bytes = pattern(FILE_BYTES);
    let mut stdin = sender.stdin();
    let (first, rest) = bytes.split_at(1000);
    stdin.write_all(first).unwrap();
    wait_until("the first bytes", || receiver.stdout_bytes() >= first.len());

    let mut pids: Vec<u32> = Vec::new();
    for host in [from, to] {
        for row in rootless.ss(host)["connections"].as_array().unwrap() {
            assert_eq!(row["path"], path, "{row}");
            pids.push(u32::try_from(row["app_pid"].as_u64().unwrap()).unwrap());
        }
    }
    pids.sort_unstable();
    pids.dedup();
    let [a, b] = pids[..] else { panic!("two programs, not {pids:?}") };
    for (x, y, z) in
        isolation(a).into_iter().zip(isolation(b)).zip(isolation(from.process.pid())).map(|((x, y), z)| (x, y, z))
    {
        assert!(x != y && x != z && y != z, "{} is shared: {x:?} {y:?} {z:?}", x.0);
    }
    let status = std::fs::read_to_string(format!("/proc/{a}/status")).unwrap();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    assert!(uids.split_whitespace().all(|uid| uid != "0"), "{uids}: root");

    stdin.write_all(rest).unwrap();
    drop(stdin);
    let sent = sender.end();
    assert_eq!(sent.code(), 0, "{sent:?}");
    let received = receiver.end_bytes();
    assert!(received == bytes, "{} bytes arrived, changed or not all", received.len());
}

#[test]
fn containers_share_a_daemon_and_reach_each_other_and_another_host() {
    let rootless = Rootless::new();
    if !can_run(&rootless, "containers_share_a_daemon") {
        return;
    }
    let (a, b) = (rootless.daemon(), rootless.daemon());
    between(&rootless, &a, &a, "shm", 7021);
    between(&rootless, &a, &b, "lane", 7022);
    a.stop();
    b.stop();
}

#[test]
fn a_container_that_dies_resets_its_connection_alone() {
    let rootless = Rootless::new();
    if !can_run(&rootless, "a_container_that_dies") {
        return;
    }
    let host = rootless.daemon();
    let mut receiver = Running::start(&mut rootless.container(&host, &["recv", "7023"]));
    receiver.wait_for("listening on ");
    let mut command = rootless.container(&host, &["send", "-", &format!("{}:7023", host.ip)]);
    let mut sender = Running::start(command.stdin(Stdio::piped()));
    let mut stdin = sender.stdin();
    stdin.write_all(b"hello").unwrap();
    receiver.wait_for("hello");
    sender.kill();
    let ended = receiver.end();
    assert_eq!(ended.code(), 1, "{ended:?}");
    // The daemon goes on, and its other programs too.
    between(&rootless, &host, &host, "shm", 7024);
    wait_until("nothing to be left", || rootless.ss(&host)["connections"].as_array().unwrap().is_empty());
    host.stop();
}

#[test]
fn a_container_that_was_there_before_reaches_the_daemon_after_its_restart() {
    let rootless = Rootless::new();
    if !can_run(&rootless, "a_container_that_was_there_before") {
        return;
    }
    let host = rootless.daemon();
    let ask = r#"raas="$1"; "$raas" stat --json; echo first; read go; "$raas" stat --json; echo second"#;
    let mut container = rootless.enter(&host);
    container.args(["sh", "-ec", ask, "ask"]).arg(&rootless.program).stdin(Stdio::piped());
    let mut container = Running::start(&mut container);
    container.wait_for("first");
    let Host { ip, socket, process } = host;
    stop(process);
    let process = rootless.start(ip, &socket);
    container.stdin().write_all(b"go\n").unwrap();
    let ended = container.end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(ended.stdout.contains("second"), "{ended:?}");
    stop(process);
}
