//! Several programs on two daemons read, write and change the same words, each in a process of its own. What all of
//! them found must be explained by some order of one operation at a time, also while queue pairs are replaced.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use histories::{Act, Call, Verdict, judge};
use raas::{Batch, Region, RegionError, RegionKey, RegionOptions, Session};
use raasd::{Config, Daemon};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use shm::AtomicOp;

const KEY: RegionKey = RegionKey::new([7; 16]);
const NAME: &str = "words";
const WORDS: u64 = 4;
/// Rounds of each program: one operation, or a chain of two.
const ROUNDS: u32 = 100;
/// Says to a process which program it is, and where the region is.
const ROLE: &str = "RAAS_TEST_HISTORY_ROLE";
const REGION_HOST: &str = "RAAS_TEST_HISTORY_HOST";

/// One operation as its program saw it, with times of the machine's clock.
#[derive(Debug, Clone, Copy)]
struct Seen {
    word: u64,
    act: Act,
    asked: u64,
    ended: Option<u64>,
    found: Option<u64>,
    /// Among those of its program: the one that a fence keeps before it.
    after: Option<usize>,
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

// ---- a program

fn wish(rng: &mut StdRng) -> Act {
    let value = rng.next_u64() >> 8;
    match rng.random_range(0..6) {
        0 | 1 => Act::Read,
        2 => Act::Write(value),
        3 => Act::Change(AtomicOp::Swap(value)),
        4 => Act::Change(AtomicOp::CompareSwap { expected: 0, new: value }),
        _ => Act::Change(AtomicOp::Add(1)),
    }
}

fn call(region: &Region, word: u64, act: Act) -> Result<Option<u64>, RegionError> {
    let at = word * 8;
    match act {
        Act::Read => region.load(at).map(Some),
        Act::Write(value) => region.store(at, value).map(|()| None),
        Act::Change(AtomicOp::Swap(value)) => region.swap(at, value).map(Some),
        Act::Change(AtomicOp::CompareSwap { expected, new }) => region.compare_swap(at, expected, new).map(Some),
        Act::Change(AtomicOp::Add(value)) => region.fetch_add(at, value).map(Some),
        Act::Change(other) => panic!("{other:?} is never wished for"),
    }
}

fn add(batch: &mut Batch, region: &Region, word: u64, act: Act) -> usize {
    let at = word * 8;
    match act {
        Act::Read => batch.read(region, at, 8),
        Act::Write(value) => batch.write(region, at, value.to_ne_bytes()),
        Act::Change(AtomicOp::Swap(value)) => batch.swap(region, at, value),
        Act::Change(AtomicOp::CompareSwap { expected, new }) => batch.compare_swap(region, at, expected, new),
        Act::Change(AtomicOp::Add(value)) => batch.fetch_add(region, at, value),
        Act::Change(other) => panic!("{other:?} is never wished for"),
    }
}

/// What a program does, and what it saw.
fn program(region: &Region, seed: u64) -> Vec<Seen> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seen: Vec<Seen> = Vec::new();
    for _ in 0..ROUNDS {
        let word = rng.random_range(0..WORDS);
        let acts: Vec<Act> = (0..if rng.random_bool(0.3) { 2 } else { 1 }).map(|_| wish(&mut rng)).collect();
        let asked = now();
        let results = match acts[..] {
            [act] => vec![call(region, word, act)],
            _ => {
                let mut batch = Batch::new();
                for act in &acts {
                    batch.fence();
                    add(&mut batch, region, word, *act);
                }
                let ended = batch.run().unwrap();
                let found = |(number, act): (usize, &Act)| match ended.error(number) {
                    Some(error) => Err(error.clone()),
                    None if matches!(act, Act::Write(_)) => Ok(None),
                    None => ended.value(number).map(Some),
                };
                acts.iter().enumerate().map(found).collect()
            }
        };
        let over = now();
        let mut before = None;
        for (act, result) in acts.into_iter().zip(results) {
            let (ended, found) = match result {
                Ok(found) => (Some(over), found),
                Err(RegionError::OutcomeUnknown { .. }) => (None, None),
                // It has no place in any order.
                Err(RegionError::NotDone { .. }) => continue,
                Err(other) => panic!("{other}"),
            };
            seen.push(Seen { word, act, asked, ended, found, after: before });
            before = Some(seen.len() - 1);
        }
    }
    seen
}

fn number(n: Option<u64>) -> String {
    n.map_or_else(|| "-".to_owned(), |n| n.to_string())
}

fn to_line(s: &Seen) -> String {
    let (act, x) = match s.act {
        Act::Read => ("read", 0),
        Act::Write(value) => ("write", value),
        Act::Change(AtomicOp::Swap(value)) => ("swap", value),
        Act::Change(AtomicOp::CompareSwap { new, .. }) => ("cas", new),
        Act::Change(_) => ("add", 1),
    };
    let after = s.after.map(|after| after as u64);
    format!("seen {} {act} {x} {} {} {} {}", s.word, s.asked, number(s.ended), number(s.found), number(after))
}

fn of_line(line: &str) -> Option<Seen> {
    let at = line.find("seen ")?;
    let parts: Vec<&str> = line[at..].split_whitespace().collect();
    let n = |i: usize| parts[i].parse::<u64>().ok();
    let value = n(3)?;
    let act = match parts[2] {
        "read" => Act::Read,
        "write" => Act::Write(value),
        "swap" => Act::Change(AtomicOp::Swap(value)),
        "cas" => Act::Change(AtomicOp::CompareSwap { expected: 0, new: value }),
        _ => Act::Change(AtomicOp::Add(value)),
    };
    let after = n(7).and_then(|after| usize::try_from(after).ok());
    Some(Seen { word: n(1)?, act, asked: n(4)?, ended: n(5), found: n(6), after })
}

/// Role: waits for a line, works, and prints what it saw.
fn works(seed: u64) {
    let session = Session::global().unwrap();
    let host: IpAddr = std::env::var(REGION_HOST).unwrap().parse().unwrap();
    let region = Region::open(&session, host, NAME, KEY).unwrap();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    program(&region, seed).iter().for_each(|seen| println!("{}", to_line(seen)));
    println!("over");
}

struct Program {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Program {
    fn start(test: &str, seed: u64, socket: &Path, host: IpAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(ROLE, seed.to_string())
            .env(REGION_HOST, host.to_string())
            .env("RAAS_SOCKET", socket)
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::new(stdout).lines() }
    }

    fn until(&mut self, word: &str) -> Vec<Seen> {
        let mut seen = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            seen.extend(of_line(&line));
            if line.contains(word) {
                return seen;
            }
        }
        panic!("a program ended before it said {word}: {:?}", self.child.wait());
    }
}

// ---- hosts

struct Host {
    daemon: Option<Daemon>,
    config: Config,
    _dir: tempfile::TempDir,
}

fn host(number: u8) -> Host {
    use std::os::unix::fs::OpenOptionsExt;
    let dir = tempfile::tempdir().unwrap();
    let [.., b, c] = std::process::id().to_be_bytes();
    let mut config = Config::new(IpAddr::from([127, 128 | b, c, 100 + number]));
    config.socket = dir.path().join("raasd.sock");
    let key = dir.path().join("key");
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&key).unwrap();
    file.write_all(&[42; 32]).unwrap();
    config.key_file = Some(key);
    let daemon = Some(Daemon::start(config.clone()).unwrap());
    Host { daemon, config, _dir: dir }
}

/// The calls of one word, with numbers instead of times. What was asked for when another call ended overlaps with it.
fn calls_of(word: u64, programs: &[Vec<Seen>]) -> Vec<Call> {
    let of_word =
        || programs.iter().enumerate().flat_map(|(p, all)| all.iter().enumerate().map(move |(i, s)| (p, i, s)));
    let mut moments = Vec::new();
    for (p, i, seen) in of_word().filter(|(.., seen)| seen.word == word) {
        moments.push((seen.asked, 0, p, i));
        moments.extend(seen.ended.map(|ended| (ended, 1, p, i)));
    }
    moments.sort_unstable();
    let moment = |kind: u64, p: usize, i: usize| {
        moments.iter().position(|m| (m.1, m.2, m.3) == (kind, p, i)).map(|at| at as u64)
    };
    let calls = of_word().filter(|(.., seen)| seen.word == word).map(|(p, i, seen)| Call {
        act: seen.act,
        asked: moment(0, p, i).unwrap(),
        ended: moment(1, p, i),
        found: seen.found,
        after: seen.after.and_then(|before| moment(0, p, before)),
        by: None,
    });
    calls.collect()
}

#[test]
fn what_programs_of_two_hosts_find_is_explained_by_one_order() {
    const TEST: &str = "processes::what_programs_of_two_hosts_find_is_explained_by_one_order";
    if let Ok(seed) = std::env::var(ROLE) {
        return works(seed.parse().unwrap());
    }
    let (a, b) = (host(1), host(2));
    let owner = Session::connect(&a.config.socket).unwrap();
    let region = RegionOptions::new().key(KEY).create(&owner, NAME, WORDS * 8).unwrap();
    let start = |seed: u64| {
        let at = if seed.is_multiple_of(3) { &a } else { &b };
        Program::start(TEST, seed, &at.config.socket, a.config.listen)
    };
    let mut programs: Vec<Program> = (1..=5).map(start).collect();
    programs.iter_mut().for_each(|program| drop(program.until("ready")));
    for program in &mut programs {
        program.stdin.write_all(b"go\n").unwrap();
    }
    let mut seen = std::thread::scope(|scope| {
        // The owner's own accesses to its mapping are among them.
        let own = scope.spawn(|| program(&region, 99));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(3));
            raas::inspect::reset_lane(Some(&b.config.socket), a.config.listen).unwrap();
        }
        vec![own.join().unwrap()]
    });
    for mut program in programs {
        seen.push(program.until("over"));
        assert!(program.child.wait().unwrap().success());
    }
    // What is there at the end is seen after everything.
    let last = |word| Seen {
        word,
        act: Act::Read,
        asked: now(),
        ended: Some(now()),
        found: Some(region.load(word * 8).unwrap()),
        after: None,
    };
    seen.push((0..WORDS).map(last).collect());
    let calls: Vec<Vec<Call>> = (0..WORDS).map(|word| calls_of(word, &seen)).collect();
    let verdicts: Vec<Verdict> = calls.iter().map(|calls| judge(calls)).collect();
    for (calls, verdict) in calls.iter().zip(&verdicts) {
        assert_ne!(*verdict, Verdict::Wrong, "no order explains {calls:#?}");
    }
    assert!(verdicts.contains(&Verdict::Explained), "all are too long to judge");
    // The judge is not blind: one value that nobody wrote has no place.
    let mut forged = calls[0].clone();
    let read = forged.iter_mut().find(|call| call.found.is_some() && call.ended.is_some()).unwrap();
    read.found = Some(u64::MAX);
    assert_ne!(judge(&forged), Verdict::Explained);
    drop(region);
    for mut host in [a, b] {
        host.daemon.take().unwrap().stop().unwrap();
    }
}
