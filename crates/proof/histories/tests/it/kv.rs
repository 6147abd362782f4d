//! The key-value store of crate `raas-rpc`, in processes on two daemons, while server and clients are killed: what the
//! clients found must be explained by some order of one operation at a time.

#[path = "../../../../systems/raas-rpc/examples/kv/store.rs"]
mod store;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use histories::{Act, Call, Verdict, judge};
use raas::{RegionKey, Session};
use raas_embedded::Embedded;
use raas_rpc::{CallError, Client, Server, Transport};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::Store;

const TEST: &str = "kv::a_store_whose_server_and_clients_are_killed_is_linearizable";
/// Says to a process what it is: `server`, or a client's number.
const ROLE: &str = "RAAS_TEST_KV_ROLE";
const AT: &str = "RAAS_TEST_KV_AT";
const KEY: RegionKey = RegionKey::new([5; 16]);
const TRANSPORTS: [Transport; 5] =
    [Transport::Messages, Transport::Rfp, Transport::Herd, Transport::Scale, Transport::Auto];
const KEYS: u32 = 6;
/// Operations of a client, if it lives so long.
const ROUNDS: u64 = 150;
const KILLS: u32 = 5;
/// Lines of clients between two kills, of which each operation has two.
const LINES: u32 = 100;
/// No wait is longer.
const WATCHDOG: Duration = Duration::from_secs(120);

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn say(line: &str) {
    // In one write: a process may be killed between two.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

// ---- processes

/// Serves until it is killed.
fn server(at: SocketAddr) {
    let session = Session::global().unwrap();
    let began = Instant::now();
    let server = loop {
        let store = Store::open(&session, "kv", KEY).unwrap();
        match Server::builder().session(&session).serve(at, store) {
            Ok(server) => break server,
            // The daemon has not yet seen that the one before is dead.
            Err(e) => assert!(began.elapsed() < WATCHDOG, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    say(&format!("serving {}", server.local_addr()));
    loop {
        std::thread::park();
    }
}

/// A value is one number, again and again, to 1 KiB; a torn one would show two.
fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(store::VALUE_BYTES_MAX / 8)
}

fn number_of(value: &[u8]) -> u64 {
    let mut numbers = value.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    let first = numbers.next().unwrap_or(0);
    assert!(numbers.all(|number| number == first), "a torn value");
    first
}

fn client(number: u64, at: SocketAddr) {
    let session = Session::global().unwrap();
    let settings = Client::builder().session(&session).reconnect_for(WATCHDOG).timeout(Some(WATCHDOG));
    let settings = settings.transport(TRANSPORTS[(number % 5) as usize]);
    let began = Instant::now();
    let client = loop {
        match settings.clone().connect(at) {
            Ok(client) => break client,
            // The server is just being killed.
            Err(e) => assert!(began.elapsed() < WATCHDOG, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut rng = StdRng::seed_from_u64(number);
    for round in 0..ROUNDS {
        let (key, wish) = (rng.random_range(0..KEYS), rng.random_bool(0.5).then_some(number << 32 | (round + 1)));
        match wish {
            Some(wish) => say(&format!("kv {round} {key} put {wish} {}", now())),
            None => say(&format!("kv {round} {key} get 0 {}", now())),
        }
        let result = match wish {
            Some(wish) => store::put(&client, key, &value(wish)).map(|()| 0),
            None => store::get(&client, key).map(|value| number_of(&value)),
        };
        match result {
            Ok(found) => say(&format!("kv {round} ended {} {found}", now())),
            Err(CallError::OutcomeUnknown) => say("unknown"),
            Err(e) => panic!("client {number}: {e}"),
        }
        // So that kills fall among the calls.
        std::thread::sleep(Duration::from_millis(4));
    }
    say("over");
}

/// A process, and a thread that reads what it says.
struct Process {
    child: Child,
    lines: JoinHandle<Vec<String>>,
}

impl Process {
    /// Tells its lines with `word`.
    fn start(role: &str, socket: &Path, at: SocketAddr, word: &'static str, told: Sender<String>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .env(AT, at.to_string())
            .env("RAAS_SOCKET", socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = std::thread::spawn(move || {
            let mut all = Vec::new();
            for line in stdout.lines().map_while(Result::ok) {
                if line.contains(word) {
                    let _ = told.send(line.clone());
                }
                all.push(line);
            }
            all
        });
        Self { child, lines }
    }

    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.lines.join().unwrap()
    }
}

// ---- judging

#[derive(Debug, Clone, Copy)]
struct Seen {
    key: u32,
    act: Act,
    asked: u64,
    ended: Option<u64>,
    found: Option<u64>,
}

fn seen_in(lines: &[String]) -> Vec<Seen> {
    let mut seen: BTreeMap<u64, Seen> = BTreeMap::new();
    for line in lines {
        let Some(at) = line.find("kv ") else { continue };
        let parts: Vec<&str> = line[at..].split_whitespace().collect();
        let n = |i: usize| parts.get(i).and_then(|part| part.parse::<u64>().ok());
        match parts[..] {
            [_, _, "ended", ..] => {
                let of = seen.get_mut(&n(1).unwrap()).unwrap();
                of.ended = n(3);
                of.found = (of.act == Act::Read).then(|| n(4).unwrap());
            }
            [_, _, _, what, ..] => {
                let act = if what == "put" { Act::Write(n(4).unwrap()) } else { Act::Read };
                let asked = n(5).unwrap();
                seen.insert(n(1).unwrap(), Seen { key: n(2).unwrap() as u32, act, asked, ended: None, found: None });
            }
            _ => panic!("{line}"),
        }
    }
    seen.into_values().collect()
}

/// The calls on one key, with numbers instead of times.
fn calls_of(key: u32, seen: &[Seen]) -> Vec<Call> {
    let of_key: Vec<&Seen> = seen.iter().filter(|seen| seen.key == key).collect();
    let mut moments = Vec::new();
    for (i, seen) in of_key.iter().enumerate() {
        moments.push((seen.asked, 0, i));
        moments.extend(seen.ended.map(|ended| (ended, 1, i)));
    }
    moments.sort_unstable();
    let moment = |kind, i| moments.iter().position(|m| (m.1, m.2) == (kind, i)).map(|at| at as u64);
    let call = |(i, seen): (usize, &&Seen)| Call {
        act: seen.act,
        asked: moment(0, i).unwrap(),
        ended: moment(1, i),
        found: seen.found,
        after: None,
        by: None,
    };
    of_key.iter().enumerate().map(call).collect()
}

fn host(last: u8) -> Embedded {
    let [.., b, c] = std::process::id().to_be_bytes();
    raas_embedded::builder(IpAddr::from([127, 128 | b, c, last])).key(&[42; 32]).start().unwrap()
}

#[test]
fn a_store_whose_server_and_clients_are_killed_is_linearizable() {
    if let Ok(role) = std::env::var(ROLE) {
        let at = std::env::var(AT).unwrap().parse().unwrap();
        return if role == "server" { server(at) } else { client(role.parse().unwrap(), at) };
    }
    let (a, b) = (host(110), host(111));
    let (told, tells) = std::sync::mpsc::channel();
    let (said, says) = std::sync::mpsc::channel();
    let serve = |at| {
        let process = Process::start("server", a.socket(), at, "serving ", told.clone());
        let line = tells.recv_timeout(WATCHDOG).unwrap();
        let address: SocketAddr = line.split_whitespace().last().unwrap().parse().unwrap();
        (process, address)
    };
    let (mut server, at) = serve(SocketAddr::new(a.session().addresses()[0], 0));
    // Two on the other host, one on the server's.
    let start = |number: u64| {
        let socket = if number.is_multiple_of(4) { a.socket() } else { b.socket() };
        Process::start(&number.to_string(), socket, at, "kv ", said.clone())
    };
    let mut clients: Vec<Process> = (0..4).map(start).collect();
    let mut seen = Vec::new();
    for kill in 0..KILLS {
        while says.try_recv().is_ok() {}
        (0..LINES).for_each(|_| drop(says.recv_timeout(WATCHDOG).unwrap()));
        server.kill();
        server = serve(at).0;
        if kill % 2 == 0 {
            seen.extend(seen_in(&clients.remove(0).kill()));
            clients.push(start(4 + u64::from(kill)));
        }
    }
    for mut process in clients {
        assert!(process.child.wait().unwrap().success());
        seen.extend(seen_in(&process.lines.join().unwrap()));
    }
    server.kill();
    assert!(seen.len() as u64 > 4 * ROUNDS / 2, "{} operations", seen.len());
    assert!(seen.iter().any(|seen| seen.ended.is_none()), "no kill met a call");
    let calls: Vec<Vec<Call>> = (0..KEYS).map(|key| calls_of(key, &seen)).collect();
    let verdicts: Vec<Verdict> = calls.iter().map(|calls| judge(calls)).collect();
    for (calls, verdict) in calls.iter().zip(&verdicts) {
        assert_ne!(*verdict, Verdict::Wrong, "no order explains {calls:#?}");
    }
    assert!(verdicts.contains(&Verdict::Explained), "all are too long to judge");
    // The judge is not blind: a value that nobody put has no place.
    let mut forged = calls[0].clone();
    forged.iter_mut().find(|call| call.act == Act::Read && call.ended.is_some()).unwrap().found = Some(u64::MAX);
    assert_ne!(judge(&forged), Verdict::Explained);
}
