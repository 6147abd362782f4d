//! Judge `numbers`: requests with the largest numbers that they can have, again and again, beside a polite pair.
//!
//! Owns how long others may wait for them. What is judged is the longest turn of the daemon's threads in time of a
//! processor, which other load on the machine does not change, and the pair's worst pause, by medians of rounds with
//! and without the attack.

mod attacks;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use raas::{Listener, Stream};

use crate::host::{Host, Program, WATCHDOG, address};
use crate::polite::session;
use crate::verdict::Verdict;
use attacks::{ATTACKS, Attack, Field};

const CONFIGURATION: &str = "[limits]\nregion_bytes_per_user_max = 17179869184\n";
/// Rounds with the attack, and as many without.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(400);
/// How much longer than alone.
const TIMES: u64 = 3;
/// A turn of a thread that serves others is not called long below this, nor a pause: of programs that are not
/// optimised, on a machine that has other things to do.
const TURN_LEAST_US: u64 = 2_000;
const PAUSE_LEAST_US: u64 = 20_000;

/// Runs it. Nothing is drawn: each request has its largest numbers.
pub fn run(raas: Program<'_>, _seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let alone = Measured::of(raas, dir.path(), None).context("a polite pair alone")?;
    println!("     a polite pair alone: {alone}");
    for attack in ATTACKS {
        let found = Measured::of(raas, dir.path(), Some(attack));
        verdict.case(attack.name, found.and_then(|found| found.judge(&alone)));
    }
    Ok(())
}

/// What was found of one pair of daemons, in microseconds.
struct Measured {
    engine_turn: u64,
    control_turn: u64,
    /// Medians of the worst pauses of rounds.
    pause_alone: u64,
    pause_attacked: u64,
    /// What the attackers did.
    done: u64,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { engine_turn, control_turn, pause_alone, pause_attacked, done } = self;
        write!(f, "longest turn of the engine {engine_turn} us, of the control plane {control_turn} us; ")?;
        write!(f, "worst pause {pause_attacked} us, {pause_alone} us alone; {done} times")
    }
}

impl Measured {
    fn of(raas: Program<'_>, dir: &Path, attack: Option<&Attack>) -> Result<Self> {
        let hosts =
            [Host::start(raas, dir, address(), CONFIGURATION)?, Host::start(raas, dir, address(), CONFIGURATION)?];
        let (pulse, done) = (Pulse::start(&hosts)?, AtomicU64::new(0));
        let (on, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let field = Field { here: &hosts[0], far: &hosts[1], on: &on, over: &over, done: &done };
        let (mut without, mut with) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let _over = Over(&over);
            let attackers: Vec<_> = (0..attack.map_or(0, |attack| attack.programs))
                .map(|number| scope.spawn(move || attack.map_or(Ok(()), |attack| (attack.run)(field, number))))
                .collect();
            for _ in 0..ROUNDS {
                without.push(pulse.worst_in(ROUND)?);
                on.store(true, Ordering::Release);
                with.push(pulse.worst_in(ROUND)?);
                on.store(false, Ordering::Release);
            }
            over.store(true, Ordering::Release);
            let join = |attacker: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                attacker.join().map_err(|_| anyhow!("an attacker panicked"))?
            };
            attackers.into_iter().try_for_each(join)
        })?;
        pulse.finish()?;
        let stat = hosts[0].stat()?;
        let counter = |name: &str| stat.counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let found = Self {
            engine_turn: counter("engine_turn_max_us").context("no counter engine_turn_max_us")?,
            control_turn: counter("control_turn_max_us").context("no counter control_turn_max_us")?,
            pause_alone: median(without),
            pause_attacked: median(with),
            done: done.load(Ordering::Relaxed),
        };
        hosts.into_iter().try_for_each(Host::stop)?;
        Ok(found)
    }

    fn judge(&self, alone: &Self) -> Result<String> {
        let within = |what: &str, found: u64, alone: u64, least: u64| {
            let most = TIMES * alone.max(least);
            ensure!(found <= most, "{what}: {found} us, and {most} us can be; {self}");
            Ok(())
        };
        ensure!(self.done > 0, "the attackers did nothing");
        within("the longest turn of the engine", self.engine_turn, alone.engine_turn, TURN_LEAST_US)?;
        within("the longest turn of the control plane", self.control_turn, alone.control_turn, TURN_LEAST_US)?;
        within("the worst pause of others", self.pause_attacked, self.pause_alone, PAUSE_LEAST_US)?;
        Ok(self.to_string())
    }
}

/// Ends the attackers whatever ends the judge.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

/// Two programs, one of each host: each message is answered.
struct Pulse {
    worst_us: std::sync::Arc<AtomicU64>,
    ends: std::sync::Arc<AtomicBool>,
    asks: std::thread::JoinHandle<Result<()>>,
    answers: std::thread::JoinHandle<Result<()>>,
}

impl Pulse {
    fn start(hosts: &[Host; 2]) -> Result<Self> {
        let (client, server) = (session(&hosts[0], "polite-asker")?, session(&hosts[1], "polite-answerer")?);
        let listener = Listener::bind_with(&server, (hosts[1].ip, 0))?;
        let stream = Stream::connect_with(&client, listener.local_addr()?)?;
        let (accepted, _) = listener.accept_timeout(WATCHDOG)?;
        let (worst_us, ends) = <(std::sync::Arc<AtomicU64>, std::sync::Arc<AtomicBool>)>::default();
        let (worst, told) = (std::sync::Arc::clone(&worst_us), std::sync::Arc::clone(&ends));
        Ok(Self {
            worst_us,
            ends,
            asks: std::thread::spawn(move || ask(stream, &worst, &told)),
            answers: std::thread::spawn(move || answer(accepted)),
        })
    }

    /// The longest that a message took of those that ended in a time.
    fn worst_in(&self, time: Duration) -> Result<u64> {
        self.worst_us.store(0, Ordering::Relaxed);
        std::thread::sleep(time);
        let start = Instant::now();
        loop {
            let worst = self.worst_us.load(Ordering::Relaxed);
            if worst > 0 {
                return Ok(worst);
            }
            ensure!(start.elapsed() < WATCHDOG && !self.asks.is_finished(), "no message is answered any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn finish(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        for thread in [self.asks, self.answers] {
            thread.join().map_err(|_| anyhow!("a polite thread panicked"))??;
        }
        Ok(())
    }
}

fn ask(mut stream: Stream, worst_us: &AtomicU64, ends: &AtomicBool) -> Result<()> {
    stream.set_read_timeout(Some(WATCHDOG))?;
    while !ends.load(Ordering::Relaxed) {
        let start = Instant::now();
        stream.write_all(&[7; 64])?;
        stream.read_exact(&mut [0; 64]).context("no answer")?;
        worst_us.fetch_max(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(200));
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    Ok(())
}

fn answer(mut stream: Stream) -> Result<()> {
    stream.set_read_timeout(Some(WATCHDOG))?;
    let mut message = [0; 64];
    loop {
        if stream.read(&mut message[..1])? == 0 {
            return Ok(());
        }
        stream.read_exact(&mut message[1..])?;
        stream.write_all(&message)?;
    }
}
