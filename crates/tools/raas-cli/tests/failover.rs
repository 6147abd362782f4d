//! Two hosts with two networks between them, of which one is taken down and up under a stream: real daemons in two
//! network namespaces with two veth pairs, that the test makes without any right on the host.

mod rig;

use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raas::{Listener, Stream};
use rig::namespace::in_namespace;
use rig::{Cluster, Daemon, Running, WATCHDOG, pattern, raas, run, wait_until};
use sha2::{Digest, Sha256};

/// The interfaces, each in both namespaces, and the addresses of the two hosts there.
const NETWORKS: [(&str, [&str; 2]); 2] = [("near0", ["10.98.1.1", "10.98.1.2"]), ("near1", ["10.98.2.1", "10.98.2.2"])];
/// What a writer writes at once.
const PIECE_BYTES: usize = 20_000;

#[test]
fn an_interface_that_is_taken_down_and_up_loses_nothing() {
    const NAME: &str = "an_interface_that_is_taken_down_and_up_loses_nothing";
    in_namespace(NAME, &[], fail_over);
}

fn ip(args: &[&str]) {
    let ended = run(Command::new("ip").args(args));
    assert_eq!(ended.code(), 0, "ip {args:?}: {ended:?}");
}

/// The other host: a process in a network namespace of its own, which ends with the test.
struct OtherHost(Running);

impl OtherHost {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "ip link set lo up && echo ready; exec cat"]);
        let mut process = Running::start(command.stdin(Stdio::piped()));
        process.wait_for("ready");
        Self(process)
    }

    /// A command there.
    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.pid())).arg("--");
        command
    }

    fn ip(&self, args: &[&str]) {
        let ended = run(self.command().arg("ip").args(args));
        assert_eq!(ended.code(), 0, "ip {args:?}: {ended:?}");
    }
}

/// Joins the two namespaces by one more network.
fn join(other: &OtherHost, (name, addresses): (&str, [&str; 2])) {
    ip(&["link", "add", name, "type", "veth", "peer", "name", "far"]);
    ip(&["link", "set", "far", "netns", &other.0.pid().to_string()]);
    other.ip(&["link", "set", "far", "name", name]);
    for (is_near, address) in [true, false].into_iter().zip(addresses) {
        let address = format!("{address}/24");
        for args in [&["addr", "add", &address, "dev", name][..], &["link", "set", name, "up"][..]] {
            if is_near { ip(args) } else { other.ip(args) }
        }
    }
}

/// A daemon of one of the hosts, which knows both addresses of the other one.
fn daemon(cluster: &Cluster, host: usize, other: Option<&OtherHost>) -> Daemon {
    let [first, standby] = NETWORKS.map(|(_, addresses)| addresses);
    let peer = 1 - host;
    let listen: IpAddr = first[host].parse().unwrap();
    let [socket, config] = ["sock", "toml"].map(|kind| cluster.dir.path().join(format!("{listen}.{kind}")));
    let text = format!(
        "listen = \"{listen}\"\nstandby = [\"{}\"]\nsocket = {socket:?}\nkey_file = {:?}\n[limits]\npeer_return_ms = 60000\n\
         [[peer]]\naddress = \"{}\"\nstandby = [\"{}\"]\n",
        standby[host],
        cluster.key(),
        first[peer],
        standby[peer]
    );
    std::fs::write(&config, text).unwrap();
    let program = raas();
    let mut command = match other {
        None => raas(),
        Some(other) => {
            let mut command = other.command();
            command.arg(program.get_program());
            command.env_remove("RAAS_SOCKET").env_remove("XDG_RUNTIME_DIR").env_remove("RUST_LOG");
            command
        }
    };
    command.args(["daemon", "--until-stdin-closes", "--config"]).arg(&config).stdin(Stdio::piped());
    let mut process = Running::start(&mut command);
    process.wait_for(&format!("ready socket={}", socket.display()));
    Daemon { ip: listen, socket, process }
}

/// Between which addresses the lane of a host is, and why.
fn path(host: &Daemon) -> (String, String) {
    let stat = run(&mut host.command(&["stat", "--json"])).json();
    let text = |key: &str| stat["lanes"][0][key].as_str().unwrap_or_default().to_owned();
    (text("link_path"), text("link_path_reason"))
}

fn await_path(hosts: [&Daemon; 2], network: usize) {
    let [a, b] = NETWORKS[network].1;
    wait_until("the path is used", || {
        path(hosts[0]).0 == format!("{a} to {b}") && path(hosts[1]).0 == format!("{b} to {a}")
    });
}

/// A stream of which both ends make a digest of all bytes.
struct Traffic {
    stop: Arc<AtomicBool>,
    /// Bytes that arrived, and the longest time in which none did, in microseconds.
    arrived: Arc<AtomicU64>,
    pause: Arc<AtomicU64>,
    ends: Vec<std::thread::JoinHandle<(u64, [u8; 32])>>,
}

impl Traffic {
    fn start(mut near: Stream, mut far: Stream) -> Self {
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(WATCHDOG)).unwrap();
            stream.set_write_timeout(Some(WATCHDOG)).unwrap();
        }
        let (stop, arrived, pause) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let seen = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            let (mut digest, mut bytes, mut piece) = (Sha256::new(), 0, pattern(PIECE_BYTES));
            while !seen.load(Ordering::SeqCst) {
                // No two pieces are the same.
                piece[..8].copy_from_slice(&u64::to_be_bytes(bytes));
                near.write_all(&piece).unwrap();
                digest.update(&piece);
                bytes += piece.len() as u64;
                std::thread::sleep(Duration::from_millis(1));
            }
            near.shutdown(std::net::Shutdown::Write).unwrap();
            (bytes, digest.finalize().into())
        });
        let (count, longest) = (Arc::clone(&arrived), Arc::clone(&pause));
        let reader = std::thread::spawn(move || {
            let (mut digest, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 64 << 10]);
            loop {
                let begin = Instant::now();
                let got = far.read(&mut buffer).unwrap();
                longest.fetch_max(begin.elapsed().as_micros() as u64, Ordering::SeqCst);
                if got == 0 {
                    return (bytes, digest.finalize().into());
                }
                digest.update(&buffer[..got]);
                bytes += got as u64;
                count.store(bytes, Ordering::SeqCst);
            }
        });
        Self { stop, arrived, pause, ends: vec![writer, reader] }
    }

    /// Waits until more has arrived; the longest pause since the last call, in milliseconds.
    fn goes_on(&self) -> u64 {
        let before = self.arrived.load(Ordering::SeqCst);
        wait_until("more bytes", || self.arrived.load(Ordering::SeqCst) > before + 20 * PIECE_BYTES as u64);
        self.pause.swap(0, Ordering::SeqCst) / 1000
    }

    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let ends: Vec<_> = self.ends.into_iter().map(|end| end.join().unwrap()).collect();
        assert!(ends[0] == ends[1], "{} bytes were sent, {} arrived, or others", ends[0].0, ends[1].0);
        ends[0].0
    }
}

/// Inside: the first network fails under a stream and comes back, twice.
fn fail_over() {
    let (cluster, other) = (Cluster::new(), OtherHost::new());
    NETWORKS.into_iter().for_each(|network| join(&other, network));
    let (a, b) = (daemon(&cluster, 0, None), daemon(&cluster, 1, Some(&other)));
    let sessions = [a.session("failover"), b.session("failover")];
    let listener = Listener::bind_with(&sessions[1], (b.ip, 7000)).unwrap();
    let near = Stream::connect_with(&sessions[0], listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept_timeout(WATCHDOG).unwrap();
    await_path([&a, &b], 0);
    let traffic = Traffic::start(near, far);
    traffic.goes_on();
    for round in 0..2 {
        ip(&["link", "set", NETWORKS[0].0, "down"]);
        await_path([&a, &b], 1);
        let pause = traffic.goes_on();
        eprintln!("round {round}: nothing arrived for {pause} ms when the interface went down");
        let why = run(&mut a.command(&["why", &b.ip.to_string()]));
        assert!(why.stdout.contains("10.98.2.1 to 10.98.2.2: number 2 of 2"), "{why:?}");
        ip(&["link", "set", NETWORKS[0].0, "up"]);
        await_path([&a, &b], 0);
        let pause = traffic.goes_on();
        eprintln!("round {round}: nothing arrived for {pause} ms on the way back");
        assert_eq!(path(&a).1, "number 1 of 2: it is there again, and preferred to 10.98.2.1 to 10.98.2.2");
    }
    let bytes = traffic.finish();
    eprintln!("{bytes} bytes, the same at both ends");
    drop((listener, sessions));
    a.stop();
    b.stop();
}
