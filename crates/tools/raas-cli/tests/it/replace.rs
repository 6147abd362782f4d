//! `raas daemon --replace`: another process takes the place of a daemon, and its programs' connections go on. Where
//! anything speaks against it, the old daemon goes on as if nobody had asked.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::{Cluster, Ended, OpenHost, Running, WATCHDOG, address, on_wire, raas, run, wait_until};
use raas::inspect::Successor;
use raas::{Listener, Reason, Session, SessionError, Stream};
use rustix::process::Signal;
use sha2::{Digest, Sha256};

const CODE_FAILED: i32 = 1;
const CODE_USAGE: i32 = 2;
const CODE_NO_DAEMON: i32 = 3;
const CODE_REFUSED: i32 = 4;
/// What a writer writes at once.
const PIECE_BYTES: usize = 40_000;
/// Nobody's number on every Linux.
const NOBODY: u32 = 65_534;
/// Where a test that starts itself again finds the socket.
const SOCKET: &str = "RAAS_TEST_REPLACE_SOCKET";

/// A host whose daemons follow each other.
struct Host {
    ip: IpAddr,
    socket: PathBuf,
    config: PathBuf,
    daemon: Running,
}

impl Host {
    /// `further`: lines of its configuration.
    fn start(cluster: &Cluster, further: &str) -> Self {
        let ip = address();
        let (socket, config) =
            (cluster.dir.path().join(format!("{ip}.sock")), cluster.dir.path().join(format!("{ip}.toml")));
        write_config(&config, ip, &socket, &cluster.key(), further);
        let mut daemon = Running::start(&mut daemon_of(&config, &[]));
        daemon.wait_for("ready socket=");
        Self { ip, socket, config, daemon }
    }

    /// A new process takes the daemon's place; the old one ends in order.
    fn replace(&mut self) {
        let mut next = Running::start(&mut daemon_of(&self.config, &["--replace"]));
        next.wait_for(&format!("ready socket={}", self.socket.display()));
        let old = std::mem::replace(&mut self.daemon, next).end();
        assert_eq!(old.code(), 0, "{old:?}");
    }

    /// A program that waits long: what is judged is bytes.
    fn session(&self, name: &str) -> Session {
        let builder = Session::builder().socket(&self.socket).name(name).daemon_wait(WATCHDOG).background(true);
        builder.connect().unwrap()
    }
}

fn write_config(config: &Path, ip: IpAddr, socket: &Path, key: &Path, further: &str) {
    let text = format!(
        "listen = \"{ip}\"\nsocket = {socket:?}\nkey_file = {key:?}\n{further}\n[limits]\npeer_return_ms = 120000\n"
    );
    std::fs::write(config, text).unwrap();
}

fn daemon_of(config: &Path, further: &[&str]) -> Command {
    let mut command = raas();
    command.args(["daemon", "--config"]).arg(config).args(further);
    on_wire(&mut command);
    command
}

/// A stream on which one thread writes until it is told to stop, and another reads to the end.
struct Flow {
    stop: std::sync::mpsc::Sender<()>,
    writer: std::thread::JoinHandle<(u64, [u8; 32])>,
    reader: std::thread::JoinHandle<(u64, [u8; 32])>,
    /// Bytes that were read so far.
    read: std::sync::Arc<std::sync::Mutex<u64>>,
}

impl Flow {
    fn start(from: &Host, to: &Host, seed: u64) -> Self {
        let (source, target) = (from.session("from"), to.session("to"));
        let listener = Listener::bind_with(&target, (to.ip, 0)).unwrap();
        let mut stream = Stream::connect_with(&source, listener.local_addr().unwrap()).unwrap();
        let (mut taken, _) = listener.accept_timeout(WATCHDOG).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            let (mut hash, mut bytes, mut state) = (Sha256::new(), 0, seed);
            stream.set_write_timeout(Some(WATCHDOG)).unwrap();
            while stopped.try_recv().is_err() {
                let piece = content(&mut state);
                stream.write_all(&piece).unwrap();
                hash.update(&piece);
                bytes += piece.len() as u64;
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream.set_read_timeout(Some(WATCHDOG)).unwrap();
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "the reader said something");
            (bytes, hash.finalize().into())
        });
        let read = std::sync::Arc::new(std::sync::Mutex::new(0));
        let so_far = std::sync::Arc::clone(&read);
        let reader = std::thread::spawn(move || {
            let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
            taken.set_read_timeout(Some(WATCHDOG)).unwrap();
            loop {
                let count = taken.read(&mut piece).unwrap();
                if count == 0 {
                    return (bytes, hash.finalize().into());
                }
                hash.update(&piece[..count]);
                bytes += count as u64;
                *so_far.lock().unwrap() = bytes;
            }
        });
        Self { stop, writer, reader, read }
    }

    fn bytes(&self) -> u64 {
        *self.read.lock().unwrap()
    }

    /// Bytes go on from here.
    fn goes_on(&self) {
        let before = self.bytes();
        wait_until("more bytes", || self.bytes() > before);
    }

    /// Both ends had the same bytes.
    fn finish(self) {
        self.stop.send(()).unwrap();
        let (sent, got) = (self.writer.join().unwrap(), self.reader.join().unwrap());
        assert!(sent.0 > 0);
        assert_eq!(sent, got, "bytes and SHA-256 of both ends");
    }
}

/// Bytes that a seed decides.
fn content(state: &mut u64) -> Vec<u8> {
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    };
    let length = 1 + next() as usize % PIECE_BYTES;
    (0..length).map(|_| next() as u8).collect()
}

#[test]
fn streams_go_on_over_replacements_of_either_daemon() {
    let cluster = Cluster::new();
    let (mut a, mut b) = (Host::start(&cluster, ""), Host::start(&cluster, ""));
    let flows = [Flow::start(&a, &b, 1), Flow::start(&b, &a, 2), Flow::start(&a, &a, 3)];
    for _ in 0..3 {
        flows.iter().for_each(Flow::goes_on);
        a.replace();
        flows.iter().for_each(Flow::goes_on);
        b.replace();
    }
    // While one is away, the other goes too.
    std::thread::scope(|scope| {
        scope.spawn(|| a.replace());
        scope.spawn(|| b.replace());
    });
    flows.iter().for_each(Flow::goes_on);
    flows.into_iter().for_each(Flow::finish);
    let rows = |host: &Host| raas::inspect::connections(Some(&host.socket)).unwrap().len();
    wait_until("no connection is left", || rows(&a) + rows(&b) == 0);
    for host in [a, b] {
        host.daemon.signal(Signal::TERM);
        assert_eq!(host.daemon.end().code(), 0);
        assert!(!host.socket.exists(), "a daemon that stops in order takes its socket along");
    }
}

#[test]
fn a_signal_makes_way_without_a_daemon_that_asks() {
    let cluster = Cluster::new();
    let (mut a, b) = (Host::start(&cluster, ""), Host::start(&cluster, ""));
    let flow = Flow::start(&a, &b, 4);
    flow.goes_on();
    a.daemon.signal(Signal::USR2);
    wait_until("the daemon ends", || a.daemon.has_ended());
    let mut next = Running::start(&mut daemon_of(&a.config, &[]));
    next.wait_for("ready socket=");
    let old = std::mem::replace(&mut a.daemon, next).end();
    assert_eq!(old.code(), 0, "{old:?}");
    flow.goes_on();
    flow.finish();
}

#[test]
fn there_must_be_a_daemon_to_replace() {
    let cluster = Cluster::new();
    let (socket, config) = (cluster.dir.path().join("none.sock"), cluster.dir.path().join("none.toml"));
    write_config(&config, address(), &socket, &cluster.key(), "");
    let ended = run(&mut daemon_of(&config, &["--replace"]));
    assert_eq!(ended.code(), CODE_NO_DAEMON, "{ended:?}");
    assert!(ended.stderr.contains("start this one without --replace"), "{ended:?}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
    // One that died and left its socket is none either.
    let mut host = Host::start(&cluster, "");
    host.daemon.kill();
    let ended = run(&mut daemon_of(&host.config, &["--replace"]));
    assert_eq!(ended.code(), CODE_NO_DAEMON, "{ended:?}");
    let ended = run(&mut daemon_of(&host.config, &["--replace", "--check"]));
    assert_eq!(ended.code(), CODE_USAGE, "{ended:?}");
}

#[test]
fn a_configuration_that_will_not_do_leaves_the_old_daemon() {
    let cluster = Cluster::new();
    let (mut a, b) = (Host::start(&cluster, ""), Host::start(&cluster, ""));
    let flow = Flow::start(&a, &b, 5);
    let other = cluster.dir.path().join("other.toml");
    let refused_with = |code: i32, text: &str, words: &[&str]| {
        std::fs::write(&other, text).unwrap();
        let ended = run(&mut daemon_of(&other, &["--replace"]));
        assert_eq!(ended.code(), code, "{text}: {ended:?}");
        assert!(words.iter().all(|word| ended.stderr.contains(word)), "{text}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
        flow.goes_on();
    };
    let refused = |text: &str, words: &[&str]| refused_with(CODE_USAGE, text, words);
    let good = std::fs::read_to_string(&a.config).unwrap();
    let place = format!("{}:1: ", other.display());
    refused(&good.replace("listen", "lissen"), &[&place, "lissen"]);
    refused(&format!("device = \"warp-drive\"\n{good}"), &[&place, "warp-drive"]);
    refused_with(CODE_FAILED, &format!("device = \"rdma-core:no-such-device\"\n{good}"), &["no-such-device"]);
    refused(&format!("policy = \"/nonexistent/policy\"\n{good}"), &["/nonexistent/policy"]);
    refused(&format!("engines = 2\n{good}"), &["goes on", "engines", "without --replace"]);
    refused(&format!("{good}connections_per_app_max = 64\n"), &["goes on", "connections_per_app_max"]);
    refused(&format!("peer_port = 4789\n{good}"), &["goes on", "peers look for it", ":4790"]);
    refused(&good.replace(&cluster.key().display().to_string(), "/nonexistent/key"), &["/nonexistent/key"]);
    let stat = run(raas().args(["stat", "--json", "--socket"]).arg(&a.socket));
    assert_eq!(stat.code(), 0, "{stat:?}");
    flow.finish();
    assert!(!a.daemon.has_ended());
}

/// Part of the next test, as another user: what the daemon itself says, whatever the command would look at before.
#[test]
fn asks_in_the_name_of_nobody() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let successor = Successor { slots: 1, engines: 1, peer_address: ([127, 0, 0, 1], 4790).into() };
    match raas::inspect::hand_over(Some(Path::new(&socket)), successor) {
        Err(SessionError::Lost { reason: Reason::Policy }) => println!("refused by policy"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_users_daemon_is_not_replaced() {
    let name = "another_users_daemon_is_not_replaced";
    let cluster = Cluster::new();
    let Some(host) = OpenHost::start(&cluster, name, "") else { return };
    let place = cluster.dir.path();
    // A configuration and a key that the other user can read.
    let (config, key) = (place.join("nobody.toml"), place.join("nobody.key"));
    std::fs::write(&key, [7; 32]).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&key, Some(NOBODY), None).unwrap();
    write_config(&config, host.ip, &place.join("raasd.sock"), &key, "");
    let by_nobody: Ended =
        run(&mut host.as_nobody(&["daemon", "--replace", "--config", &config.display().to_string()]));
    assert_eq!(by_nobody.code(), CODE_REFUSED, "{by_nobody:?}");
    assert!(by_nobody.stderr.contains("one of the same user"), "{by_nobody:?}");

    let program = place.join("again");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut again = Command::new(&program);
    again.args(["--exact", "replace::asks_in_the_name_of_nobody", "--nocapture"]).env(SOCKET, place.join("raasd.sock"));
    let asked = run(again.current_dir("/").uid(NOBODY).gid(NOBODY));
    assert_eq!(asked.code(), 0, "{asked:?}");
    assert!(asked.stdout.contains("refused by policy"), "{asked:?}");

    // Its own user's may.
    write_config(&config, host.ip, &place.join("raasd.sock"), &cluster.key(), "socket_mode = \"0666\"");
    let mut next = Running::start(&mut daemon_of(&config, &["--replace"]));
    next.wait_for("ready socket=");
    assert_eq!(host.daemon.end().code(), 0);
}
