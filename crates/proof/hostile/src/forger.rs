//! The forger: an ordinary user of the peer's host, who sends RoCEv2 packets from the peer's own address to the lane of
//! two daemons, each in a network namespace of its own. Its packets have a right ICRC. The judge gives it the queue
//! pair, the route id, and what each probe did to the victim's counters, which is more than it could find out.
//!
//! Owns the cases. The lane must survive, idle and busy, each byte must be one that was sent, and each forged packet
//! must be a drop that is counted by its reason.

mod field;
pub mod hand;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use raas::{Listener, Session, Stream};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use verbs::{Psn, ROCE_UDP_PORT, Wire, WirePolicy};

use crate::host::{Host, Program, WATCHDOG, eventually};
use crate::polite::Transfer;
use crate::verdict::Verdict;
use field::Field;
use hand::{Hand, Kind, Order};

/// Forged packets between two looks at the counters: fewer than any receive buffer takes.
const BURST: u32 = 64;
/// Forged packets of each kind that an idle lane gets.
const SWEEP: u32 = 8_192;
/// How long a probe may take to show in the victim's counters.
const PROBE_PATIENCE: Duration = Duration::from_millis(300);
/// How long a burst may take to be counted on a machine that is busy.
const COUNT_PATIENCE: Duration = Duration::from_secs(20);
/// How long a reader waits for bytes that must not come.
const SILENCE: Duration = Duration::from_millis(200);
/// Beside a transfer.
const BUSY: Duration = Duration::from_secs(3);
/// Bytes that go over a connection to show that it is whole.
const PATTERN_BYTES: usize = 1 << 20;
/// What becomes of a packet that the device judged by itself.
const DROP: &str = "wrong_port";
/// The lane that is forged: on TCP there is no packet that a user of the peer's host could send.
const ROCE: WirePolicy = WirePolicy::Only(Wire::Roce);

/// Runs it; the seed decides what the forger sends. In a namespace already ([`crate::namespace::enter`]).
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let field = Field::make()?;
    let [here, there] = Field::addresses()?;
    let raas = Program { wire: ROCE, ..raas };
    let hosts = [
        Host::start_by(field.command(0, raas.path), raas, dir.path(), here, "", &[])?,
        Host::start_by(field.command(1, raas.path), raas, dir.path(), there, "", &[])?,
    ];
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut idle = Idle::open(&hosts)?;
    let program = program_for_all(dir.path())?;
    let (command, is_nobody) = match field.as_nobody(&program) {
        Ok(command) => (command, true),
        Err(why) => {
            println!("SKIP forger, another uid: {why}");
            (field.without_rights(&program), false)
        }
    };
    let mut hand = Hand::start(command, there, here, seed)?;
    let victim = Victim::look(&hosts[0])?;

    verdict.case("idle: no probe tells the forger a packet sequence number", probes(&hosts[0], &victim, &mut hand));
    for kind in Kind::ALL {
        let swept = swept(&hosts[0], &victim, &mut hand, kind, &mut rng);
        verdict.case(&format!("idle: packets of kind `{kind}`, each a drop that is counted"), swept);
    }
    verdict.case("idle: a sweep of queue pairs", queue_pairs(&hosts[0], &mut hand, &mut rng));
    if is_nobody {
        verdict
            .case("idle: no socket at another address gets the peer's port", borrowed(&hosts[0], &victim, &mut hand));
    }
    verdict.case("idle: its application reads nothing that nobody sent", idle.is_silent());
    verdict.case("idle: the connection goes on, both ways", idle.carries(&mut rng));
    verdict.case("busy: a transfer beside the forger, each byte verified", busy(&hosts, &victim, &mut hand, &mut rng));
    verdict.case("busy: the idle connection beside it goes on", idle.carries(&mut rng));
    verdict.case("the log says that somebody sends from another port", logged(&hosts[0], "come from another UDP port"));
    verdict.case("the lane is the one from before", same_lane(&hosts, &victim));
    drop(idle);
    hosts.into_iter().try_for_each(Host::stop)
}

/// This program, where any user can start it.
fn program_for_all(dir: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir, all.clone())?;
    let copy = dir.join("forger");
    std::fs::copy(std::env::current_exe()?, &copy)?;
    std::fs::set_permissions(&copy, all)?;
    Ok(copy)
}

/// What the forger knows about the victim.
#[derive(Debug)]
struct Victim {
    qpn: u32,
    route: u32,
    incarnation: u32,
}

impl Victim {
    fn look(host: &Host) -> Result<Self> {
        let lanes = host.stat()?.lanes;
        let lane = lanes.first().context("there is no lane")?;
        let rows = raas::inspect::connections(Some(&host.socket))?;
        let route = rows.iter().find_map(|row| row.route_id).context("there is no connection with a route id")?;
        let qpn = lane.qpn.context("this user is not told the queue pair")?;
        Ok(Self { qpn, route, incarnation: lane.incarnation })
    }

    fn order(&self, kind: Kind, psn: u32, count: u32) -> Order {
        Order { kind, qpn: self.qpn, psn, step: 1, count, route: self.route }
    }
}

/// The device's counters by name, drops and others. To ask for one that is not there is a panic: it is not 0.
fn counters(host: &Host) -> Result<BTreeMap<String, u64>> {
    let stat = host.stat()?;
    Ok(stat.drops.into_iter().chain(stat.counters).collect())
}

/// Which of these counters went up: what an observer learns from a probe.
fn told(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Option<&'static str> {
    ["out_of_order", "duplicates", "served_write"].into_iter().find(|&name| now[name] > before[name])
}

// ---- idle

/// Bisects the space of sequence numbers, as long as the victim's counters show whether a probe was too low or too
/// high.
fn probes(host: &Host, victim: &Victim, hand: &mut Hand) -> Result<String> {
    let (mut low, mut span, mut probes) = (0, Psn::MODULUS, 0);
    hand.port(0)?.map_err(|why| anyhow!("no port for the forger: {why}"))?;
    while span > 0 {
        let probe = Psn::new(low).plus(span / 2);
        let before = counters(host)?;
        hand.send(&victim.order(Kind::Empty, probe.get(), 1))?;
        probes += 1;
        let start = Instant::now();
        let answer = loop {
            let now = counters(host)?;
            if let Some(answer) = told(&before, &now) {
                break Some(answer);
            }
            if now[DROP] > before[DROP] || start.elapsed() > PROBE_PATIENCE {
                break None;
            }
        };
        match answer {
            Some("out_of_order") => {}
            Some("duplicates") => low = probe.plus(1).get(),
            // It hit the number itself, and was executed.
            Some(_) => {
                low = probe.plus(1).get();
                break;
            }
            None => return Ok(format!("{probes} probe of {} numbers told nothing", Psn::MODULUS)),
        }
        span /= 2;
    }
    // It knows the number now, and uses it, so that the other cases show what follows.
    for ahead in 0..BURST {
        hand.send(&victim.order(Kind::Claim, Psn::new(low).plus(ahead).get(), 1))?;
    }
    bail!("after {probes} probes the forger knew the lane's packet sequence number, {low}, and claimed bytes with it")
}

/// Packets of a kind all over the space of sequence numbers, from several ports.
fn swept(host: &Host, victim: &Victim, hand: &mut Hand, kind: Kind, rng: &mut SmallRng) -> Result<String> {
    let before = counters(host)?;
    let mut sent = 0;
    // The ports next to the peer's, and some that the system gives.
    for port in [ROCE_UDP_PORT - 1, ROCE_UDP_PORT + 1, 0, 0] {
        hand.port(port)?.map_err(|why| anyhow!("no port {port} for the forger: {why}"))?;
        for _ in 0..SWEEP / 4 / BURST {
            let order = Order { step: rng.random_range(1..1 << 18), ..victim.order(kind, rng.random(), BURST) };
            hand.send(&order)?;
            sent += u64::from(BURST);
            counted(host, &before, sent)?;
        }
    }
    let found = counters(host)?[DROP] - before[DROP];
    ensure!(found == sent, "{sent} packets, but {found} of {DROP}");
    Ok(format!("{sent} packets, {found} of {DROP}"))
}

/// Waits until so many are counted as what they are.
fn counted(host: &Host, before: &BTreeMap<String, u64>, sent: u64) -> Result<()> {
    let start = Instant::now();
    loop {
        let found = counters(host)?[DROP] - before[DROP];
        if found >= sent {
            return Ok(());
        }
        ensure!(start.elapsed() < COUNT_PATIENCE, "{sent} packets were sent, and {found} are counted as {DROP}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn queue_pairs(host: &Host, hand: &mut Hand, rng: &mut SmallRng) -> Result<String> {
    let before = counters(host)?;
    for _ in 0..SWEEP / 16 {
        let qpn = rng.random_range(2..Psn::MODULUS - 1);
        hand.send(&Order { kind: Kind::Garbage, qpn, psn: rng.random(), step: 1, count: 1, route: 0 })?;
    }
    let sent = u64::from(SWEEP / 16);
    let found = || -> Result<u64> {
        let now = counters(host)?;
        let of = |name: &str| now[name] - before[name];
        Ok(of("unknown_qp") + of("wrong_service") + of(DROP))
    };
    eventually("they are counted", || found().map(|n| if n >= sent { Ok(()) } else { Err(n) }))?;
    ensure!(found()? == sent, "{sent} packets, but {} drops", found()?);
    Ok(format!("{sent} queue pairs"))
}

/// The peer's port at other addresses of the peer's host, also at addresses that no interface has: a program that has
/// it may name the peer's address as the source.
fn borrowed(host: &Host, victim: &Victim, hand: &mut Hand) -> Result<String> {
    let elsewhere = [[127, 0, 0, 1], [127, 9, 9, 9], [0, 0, 0, 0], [203, 0, 113, 7]].map(Ipv4Addr::from);
    for at in elsewhere {
        if hand.borrow_port(at)?.is_ok() {
            let before = counters(host)?;
            hand.send(&victim.order(Kind::Empty, 0, 1))?;
            eventually("the packet arrives", || {
                let now = counters(host)?;
                Ok(if now == before { Err("nothing is counted") } else { Ok(()) })
            })?;
            bail!("the forger got port {ROCE_UDP_PORT} of {at}, and sent from it in the name of the peer");
        }
    }
    Ok(format!("{} addresses, EADDRINUSE at each", elsewhere.len()))
}

/// A connection on which nothing is sent while the forger is at work.
#[derive(Debug)]
struct Idle {
    /// At the victim, and at the peer.
    ends: [Stream; 2],
}

impl Idle {
    fn open(hosts: &[Host; 2]) -> Result<Self> {
        let session = |host: &Host| Session::builder().socket(&host.socket).name("idle").connect();
        let (near, far) = (session(&hosts[0])?, session(&hosts[1])?);
        let listener = Listener::bind_with(&far, (hosts[1].ip, 0))?;
        let here = Stream::connect_with(&near, listener.local_addr()?)?;
        let (there, _) = listener.accept_timeout(WATCHDOG)?;
        Ok(Self { ends: [here, there] })
    }

    fn is_silent(&mut self) -> Result<String> {
        let [here, _] = &mut self.ends;
        here.set_read_timeout(Some(SILENCE))?;
        let mut bytes = vec![0; 64 << 10];
        match here.read(&mut bytes) {
            Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Ok("nothing came".into()),
            Err(e) => bail!("the connection ended: {e}"),
            Ok(n) => bail!("it read {n} bytes that nobody sent"),
        }
    }

    /// Sends bytes both ways and checks each.
    fn carries(&mut self, rng: &mut SmallRng) -> Result<String> {
        let mut pattern = vec![0; PATTERN_BYTES];
        rng.fill_bytes(&mut pattern);
        let [here, there] = &mut self.ends;
        carry(here, there, &pattern).context("from the victim's host")?;
        carry(there, here, &pattern).context("to the victim's host")?;
        Ok(format!("{PATTERN_BYTES} bytes each way"))
    }
}

fn carry(from: &mut Stream, to: &mut Stream, pattern: &[u8]) -> Result<()> {
    from.set_write_timeout(Some(WATCHDOG))?;
    to.set_read_timeout(Some(WATCHDOG))?;
    let mut arrived = vec![0; pattern.len()];
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| from.write_all(pattern));
        to.read_exact(&mut arrived)?;
        writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        Ok(())
    })?;
    let wrong = arrived.iter().zip(pattern).position(|(found, sent)| found != sent);
    ensure!(wrong.is_none(), "byte {wrong:?} is another one than was sent");
    Ok(())
}

// ---- busy

fn busy(hosts: &[Host; 2], victim: &Victim, hand: &mut Hand, rng: &mut SmallRng) -> Result<String> {
    // Both ways: the victim must distinguish requests and acknowledgements of the peer from forged ones.
    let transfers = [Transfer::start(&hosts[0], &hosts[1], 1)?, Transfer::start(&hosts[1], &hosts[0], 1)?];
    let (start, before, mut sent) = (Instant::now(), counters(&hosts[0])?, 0u64);
    hand.port(0)?.map_err(|why| anyhow!("no port for the forger: {why}"))?;
    while start.elapsed() < BUSY {
        let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
        let order = Order { step: rng.random_range(1..1 << 18), ..victim.order(kind, rng.random(), BURST) };
        hand.send(&order)?;
        sent += u64::from(BURST);
        // What overflows the receive buffer is a matter of load: the judge `network` floods.
        counted(&hosts[0], &before, sent)?;
    }
    let found = counters(&hosts[0])?[DROP] - before[DROP];
    let [out, back] = transfers.map(|transfer| (transfer.is_whole(), transfer.finish()));
    ensure!(out.0 && back.0, "a transfer ended early: {:?}, {:?}", out.1.err(), back.1.err());
    let (out, back) = (out.1?, back.1?);
    ensure!(found == sent, "{sent} packets, but {found} of {DROP}");
    Ok(format!("{sent} forged packets, {found} of {DROP}; {out} and {back} bytes verified"))
}

fn logged(host: &Host, words: &str) -> Result<String> {
    eventually("it is in the log", || Ok(if host.log_has(&[words]) { Ok(()) } else { Err(words.to_owned()) }))?;
    let lines = host.lines(|line| line.contains(words));
    ensure!(lines <= 2, "{lines} lines, as many as the forger likes");
    Ok(format!("{lines} line"))
}

fn same_lane(hosts: &[Host; 2], victim: &Victim) -> Result<String> {
    let now = Victim::look(&hosts[0])?;
    ensure!(now.qpn == victim.qpn && now.incarnation == victim.incarnation, "it was {victim:?}, and is {now:?}");
    for host in hosts {
        let found = counters(host)?;
        for name in ["lane_resets", "lane_failures", "violations"] {
            ensure!(found[name] == 0, "{name} is {}", found[name]);
        }
    }
    Ok(format!("incarnation {}", now.incarnation))
}
