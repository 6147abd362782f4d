//! Two hosts with two networks between them, of which one is taken down and up under a stream; and one network that lets
//! one wire pass alone. Real daemons in two network namespaces with veth pairs, that the test makes without any right on
//! the host.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Daemon, Running, WATCHDOG, pattern, raas, run, wait_until};
use raas::{DatagramSocket, Listener, Session, Stream};
use sha2::{Digest, Sha256};

/// The interfaces, each in both namespaces, and the addresses of the two hosts there.
const NETWORKS: [(&str, [&str; 2]); 2] = [("near0", ["10.98.1.1", "10.98.1.2"]), ("near1", ["10.98.2.1", "10.98.2.2"])];
/// What a writer writes at once.
const PIECE_BYTES: usize = 20_000;

#[test]
fn an_interface_that_is_taken_down_and_up_loses_nothing() {
    const NAME: &str = "failover::an_interface_that_is_taken_down_and_up_loses_nothing";
    in_namespace(NAME, &[], || fail_over("wire = \"auto\"", ["iwarp", "in the clear"]));
}

#[test]
fn lanes_on_roce_fail_over_too() {
    const NAME: &str = "failover::lanes_on_roce_fail_over_too";
    in_namespace(NAME, &[], || fail_over("wire = \"roce\"", ["roce", "in the clear"]));
}

#[test]
fn encrypted_lanes_on_roce_and_datagrams_fail_over_too() {
    const NAME: &str = "failover::encrypted_lanes_on_roce_and_datagrams_fail_over_too";
    in_namespace(NAME, &[], || fail_over("wire = \"roce\"\nencrypt = \"required\"", ["roce", "encrypted"]));
}

#[test]
fn a_lane_whose_tcp_is_cut_goes_over_rocev2() {
    const NAME: &str = "failover::a_lane_whose_tcp_is_cut_goes_over_rocev2";
    in_namespace(NAME, &[], || lose_tcp(NAME));
}

fn ip(args: &[&str]) {
    let ended = run(Command::new("ip").args(args));
    assert_eq!(ended.code(), 0, "ip {args:?}: {ended:?}");
}

/// The port of lanes, over both wires. Control links have another one.
const LANE_PORT: &str = "4791";

/// From now on no packet of lanes over TCP passes between the hosts.
fn drop_tcp(other: &OtherHost) {
    for ports in ["--dport", "--sport"] {
        let rule = ["-A", "INPUT", "-p", "tcp", ports, LANE_PORT, "-j", "DROP"];
        for mut command in [Command::new("iptables"), other.command_of("iptables")] {
            let ended = run(command.args(rule));
            assert_eq!(ended.code(), 0, "{rule:?}: {ended:?}");
        }
    }
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

    fn command_of(&self, program: &str) -> Command {
        let mut command = self.command();
        command.arg(program);
        command
    }

    fn ip(&self, args: &[&str]) {
        let ended = run(self.command_of("ip").args(args));
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

/// A daemon of one of the hosts, which knows both addresses of the other one if there are two networks.
/// `more`: lines of its configuration.
fn daemon(cluster: &Cluster, host: usize, other: Option<&OtherHost>, networks: usize, more: &str) -> Daemon {
    let [first, standby] = NETWORKS.map(|(_, addresses)| addresses);
    let peer = 1 - host;
    let listen: IpAddr = first[host].parse().unwrap();
    let [socket, config] = ["sock", "toml"].map(|kind| cluster.dir.path().join(format!("{listen}.{kind}")));
    let [own, theirs] = [host, peer].map(|host| match networks {
        1 => String::new(),
        _ => format!("standby = [\"{}\"]\n", standby[host]),
    });
    let text = format!(
        "listen = \"{listen}\"\n{own}socket = {socket:?}\nkey_file = {:?}\n{more}\n[limits]\npeer_return_ms = 60000\n\
         [[peer]]\naddress = \"{}\"\n{theirs}",
        cluster.key(),
        first[peer],
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

/// Two datagram sockets, one at each host.
struct Datagrams([DatagramSocket; 2]);

impl Datagrams {
    fn bind(sessions: &[Session; 2], hosts: [&Daemon; 2]) -> Self {
        let sockets = [0, 1].map(|i: usize| DatagramSocket::bind_with(&sessions[i], (hosts[i].ip, 7100)).unwrap());
        for socket in &sockets {
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        }
        Self(sockets)
    }

    /// Each host sends until the other one has a datagram of this round, from the address that the host is named by.
    fn pass(&self, round: u8) {
        for (near, far) in [(&self.0[0], &self.0[1]), (&self.0[1], &self.0[0])] {
            let (from, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
            let payload = [&[round][..], &pattern(900)].concat();
            let mut buffer = [0; 2048];
            wait_until("a datagram", || {
                near.send_to(&payload, to).unwrap();
                // What was under way before may come first.
                while let Ok((bytes, source)) = far.recv_from(&mut buffer) {
                    assert_eq!((bytes, source), (payload.len(), from));
                    assert!(buffer[1..bytes] == payload[1..] && buffer[0] <= round);
                    if buffer[0] == round {
                        return true;
                    }
                }
                false
            });
        }
    }
}

/// Datagrams that came to a host over a lane.
fn datagrams_of(host: &Daemon) -> u64 {
    let stat = run(&mut host.command(&["stat", "--json"])).json();
    stat["counters"]["datagrams_received"].as_u64().unwrap()
}

/// Inside: the first network fails under a stream and comes back, twice; datagrams pass in between. `more`: lines of both
/// configurations. `expected`: the wire of the lane, and whether it is encrypted.
fn fail_over(more: &str, expected: [&str; 2]) {
    let (cluster, other) = (Cluster::new(), OtherHost::new());
    NETWORKS.into_iter().for_each(|network| join(&other, network));
    let (a, b) = (daemon(&cluster, 0, None, 2, more), daemon(&cluster, 1, Some(&other), 2, more));
    let sessions = [a.session("failover"), b.session("failover")];
    let listener = Listener::bind_with(&sessions[1], (b.ip, 7000)).unwrap();
    let near = Stream::connect_with(&sessions[0], listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept_timeout(WATCHDOG).unwrap();
    await_path([&a, &b], 0);
    let traffic = Traffic::start(near, far);
    traffic.goes_on();
    let datagrams = Datagrams::bind(&sessions, [&a, &b]);
    datagrams.pass(0);
    let lane = |host: &Daemon| {
        let stat = run(&mut host.command(&["stat", "--json"])).json();
        let lane = &stat["lanes"][0];
        let is_encrypted = lane["encrypted"] == true;
        (lane["wire"].as_str().unwrap_or_default().to_owned(), is_encrypted)
    };
    let expected = (expected[0].to_owned(), expected[1] == "encrypted");
    for round in 0..2_u8 {
        ip(&["link", "set", NETWORKS[0].0, "down"]);
        await_path([&a, &b], 1);
        let pause = traffic.goes_on();
        eprintln!("round {round}: nothing arrived for {pause} ms when the interface went down");
        let why = run(&mut a.command(&["why", &b.ip.to_string()]));
        assert!(why.stdout.contains("10.98.2.1 to 10.98.2.2: number 2 of 2"), "{why:?}");
        // Where a host stood still for long, the lane was over the other wire for a while.
        wait_until("the wire", || [lane(&a), lane(&b)] == [expected.clone(), expected.clone()]);
        datagrams.pass(2 * round + 1);
        ip(&["link", "set", NETWORKS[0].0, "up"]);
        await_path([&a, &b], 0);
        let pause = traffic.goes_on();
        eprintln!("round {round}: nothing arrived for {pause} ms on the way back");
        datagrams.pass(2 * round + 2);
        assert_eq!(path(&a).1, "number 1 of 2: it is there again, and preferred to 10.98.2.1 to 10.98.2.2");
    }
    let bytes = traffic.finish();
    eprintln!("{bytes} bytes, the same at both ends");
    assert!([&a, &b].iter().all(|host| datagrams_of(host) >= 5), "each passed over a lane");
    drop((listener, datagrams, sessions));
    a.stop();
    b.stop();
}

fn await_wire(hosts: [&Daemon; 2], wire: &str) {
    wait_until(&format!("the lane is over {wire}"), || {
        hosts.iter().all(|host| {
            let stat = run(&mut host.command(&["stat", "--json"])).json();
            stat["lanes"][0]["wire"] == wire && stat["lanes"][0]["state"] == "up"
        })
    });
}

/// Inside: packets of TCP are dropped under a stream, while those of the control link pass.
fn lose_tcp(name: &str) {
    let (cluster, other) = (Cluster::new(), OtherHost::new());
    let filters = Command::new("iptables").args(["-w", "-L", "INPUT"]).output();
    if let Some(why) =
        filters.map_or_else(|e| Some(e.to_string()), |out| (!out.status.success()).then(|| format!("{out:?}")))
    {
        assert!(!std::env::var("CI").is_ok_and(|value| value == "true"), "no packets can be dropped here: {why}");
        return eprintln!("SKIP {name}: no packets can be dropped here (iptables): {why}");
    }
    join(&other, NETWORKS[0]);
    // A stream of bulk with a TCP connection of its own would leave the lane with nothing to carry, and so in peace.
    let more = "tcp_direct = \"off\"";
    let (a, b) = (daemon(&cluster, 0, None, 1, more), daemon(&cluster, 1, Some(&other), 1, more));
    let sessions = [a.session("wires"), b.session("wires")];
    let listener = Listener::bind_with(&sessions[1], (b.ip, 7000)).unwrap();
    let near = Stream::connect_with(&sessions[0], listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept_timeout(WATCHDOG).unwrap();
    await_wire([&a, &b], "iwarp");
    let traffic = Traffic::start(near, far);
    traffic.goes_on();
    drop_tcp(&other);
    await_wire([&a, &b], "roce");
    let pause = traffic.goes_on();
    eprintln!("nothing arrived for {pause} ms when TCP was cut");
    let why = run(&mut a.command(&["why", &b.ip.to_string()]));
    assert!(why.stdout.contains("TCP"), "{why:?}");
    let bytes = traffic.finish();
    eprintln!("{bytes} bytes, the same at both ends");
    drop((listener, sessions));
    a.stop();
    b.stop();
}
