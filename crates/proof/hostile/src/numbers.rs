//! Judge `numbers`: requests with the largest numbers that they can have, again and again, beside a polite pair.
//!
//! Owns how long others may wait for them. What is judged is the longest turn of the daemon's threads in time of a
//! processor, which other load on the machine does not change, and the pair's worst pause, by medians of rounds with
//! and without the attack.

mod attacks;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;

use crate::host::{Host, Program, address};
use crate::pair::Pair;
use crate::verdict::Verdict;
use attacks::{ATTACKS, Attack, Field};

const CONFIGURATION: &str = "socket_mode = \"0666\"\n";
/// Attacks of one run.
const OF_ONE_RUN: usize = 8;
/// Rounds with the attack, and as many without.
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(400);
/// How much longer than alone.
const TIMES: u64 = 3;
/// A turn of a thread that serves others is not called long below this, nor a pause: of programs that are not
/// optimised, on a machine that has other things to do.
const TURN_LEAST_US: u64 = 5_000;
const PAUSE_LEAST_US: u64 = 20_000;

/// Threads that a message and its answer wake, one after the other. Each may come as late as one that only sleeps: attackers
/// of one's own machine take its processors too.
const WAKES: u64 = 6;

/// Runs it. The seed decides which attacks, in which order, and which of the largest numbers each has.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let alone = Measured::of(raas, dir.path(), None, seed).context("a polite pair alone")?;
    println!("     a polite pair alone: {alone}");
    let mut attacks: Vec<&Attack> = ATTACKS.iter().collect();
    attacks.shuffle(&mut SmallRng::seed_from_u64(seed));
    for (number, attack) in (1..).zip(attacks.into_iter().take(OF_ONE_RUN)) {
        let found = Measured::of(raas, dir.path(), Some(attack), seed.wrapping_add(number));
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
    /// How late a thread comes that only sleeps, during the attack.
    late: u64,
    /// What the attackers did.
    done: u64,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { engine_turn, control_turn, pause_alone, pause_attacked, late, done } = self;
        write!(f, "longest turn of the engine {engine_turn} us, of the control plane {control_turn} us; ")?;
        write!(f, "worst pause {pause_attacked} us, {pause_alone} us alone, {late} us the machine's; {done} times")
    }
}

impl Measured {
    fn of(raas: Program<'_>, dir: &Path, attack: Option<&Attack>, seed: u64) -> Result<Self> {
        let hosts =
            [Host::start(raas, dir, address(), CONFIGURATION)?, Host::start(raas, dir, address(), CONFIGURATION)?];
        let (pair, done) = (Pair::start(&hosts)?, AtomicU64::new(0));
        let (on, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let field = Field { here: &hosts[0], far: &hosts[1], on: &on, over: &over, done: &done };
        let (mut without, mut with, mut late) = (Vec::new(), Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let _over = Over(&over);
            let attackers: Vec<_> = (0..attack.map_or(0, |attack| attack.programs))
                .map(|number| {
                    let mut rng = SmallRng::seed_from_u64(seed.rotate_left(32) ^ number as u64);
                    scope.spawn(move || attack.map_or(Ok(()), |attack| (attack.run)(field, number, &mut rng)))
                })
                .collect();
            for _ in 0..ROUNDS {
                without.push(pair.worst_in(ROUND)?.0);
                on.store(true, Ordering::Release);
                let (worst, machine) = pair.worst_in(ROUND)?;
                with.push(worst);
                late.push(machine);
                on.store(false, Ordering::Release);
            }
            over.store(true, Ordering::Release);
            let join = |attacker: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                attacker.join().map_err(|_| anyhow!("an attacker panicked"))?
            };
            attackers.into_iter().try_for_each(join)
        })?;
        pair.finish()?;
        let stat = hosts[0].stat()?;
        let counter = |name: &str| stat.counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let found = Self {
            engine_turn: counter("engine_turn_max_us").context("no counter engine_turn_max_us")?,
            control_turn: counter("control_turn_max_us").context("no counter control_turn_max_us")?,
            pause_alone: median(without),
            pause_attacked: median(with),
            late: median(late),
            done: done.load(Ordering::Relaxed),
        };
        hosts.into_iter().try_for_each(Host::stop)?;
        Ok(found)
    }

    fn judge(&self, alone: &Self) -> Result<String> {
        let within = |what: &str, found: u64, alone: u64, least: u64, beside: u64| {
            let most = TIMES * alone.max(least) + beside;
            ensure!(found <= most, "{what}: {found} us, and {most} us can be; {self}");
            Ok(())
        };
        ensure!(self.done > 0, "the attackers did nothing");
        within("the longest turn of the engine", self.engine_turn, alone.engine_turn, TURN_LEAST_US, 0)?;
        within("the longest turn of the control plane", self.control_turn, alone.control_turn, TURN_LEAST_US, 0)?;
        within("the worst pause of others", self.pause_attacked, self.pause_alone, PAUSE_LEAST_US, WAKES * self.late)?;
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
