//! Judge `kernels`: tenants of two hosts whose kernels loop, trap and ask out of bounds at one daemon, beside polite
//! programs of the same daemons.
//!
//! Owns the rounds and what polite programs must keep. How many runs there were the daemon's counters say, and not the
//! hostile tenants alone.

mod lookups;
pub mod tenant;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::host::{Host, Program, address, eventually};
use crate::polite::Transfer;
use crate::polite::regions::Sharing;
use crate::verdict::Verdict;
use lookups::Lookups;

/// Streams of the polite pair.
const STREAMS: u64 = 2;
/// Pairs of rounds, without and with the hostile tenants.
const ROUNDS: u64 = 5;
/// And at most.
const ROUNDS_MAX: u64 = 4 * ROUNDS;
const ROUND: Duration = Duration::from_millis(350);
/// Share of their throughput that polite programs are to keep: the median over the rounds. It is printed.
const SHARE: f64 = 0.5;
/// With less the judge fails: the rounds are short, and the machine may be under other load.
const SHARE_MIN: f64 = 0.2;

/// The polite programs.
struct Polite {
    streams: Transfer,
    operations: Sharing,
    lookups: Lookups,
}

/// What they did in a time: bytes, blocks through a region, lookups by kernels.
type Done = [u64; 3];
const WHAT: [&str; 3] = ["bytes of streams", "blocks by operations", "lookups by kernels"];

impl Polite {
    fn done(&self) -> Done {
        [self.streams.verified(), self.operations.checked(), self.lookups.checked()]
    }

    /// In each second of a while.
    fn rates(&self, during: impl FnOnce() -> Result<()>) -> Result<[f64; 3]> {
        let (start, before) = (Instant::now(), self.done());
        during()?;
        let (after, time) = (self.done(), start.elapsed().as_secs_f64());
        Ok(std::array::from_fn(|what| (after[what] - before[what]) as f64 / time))
    }
}

/// Runs it; the seed decides the hostile tenants' choices.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut hosts = [Host::start(raas, dir.path(), address(), "")?, Host::start(raas, dir.path(), address(), "")?];
    // What is polite goes to the daemon that is attacked, from the other one.
    let polite = Polite {
        streams: Transfer::start(&hosts[1], &hosts[0], STREAMS)?,
        operations: Sharing::start(&hosts[0], &hosts[1])?,
        lookups: Lookups::start(&hosts[0], &hosts[1])?,
    };
    verdict.case("the lane is on a wire that was asked for", hosts[1].wire(raas.wire).map(|wire| wire.to_string()));
    std::thread::sleep(ROUND);
    let regions = raas::inspect::regions(Some(&hosts[0].socket))?.len();
    let before = counters(&hosts[0])?;
    rounds(&hosts, seed, &polite, verdict)?;
    let after = counters(&hosts[0])?;
    verdict.case("the kernels ran in the daemon, and failed there", ran(&before, &after));
    let alive = hosts.iter_mut().all(Host::is_alive);
    verdict.case("both daemons live", if alive { Ok("both".into()) } else { Err(anyhow!("{}", hosts[0].words())) });
    verdict.case("nothing of the hostile tenants is left", left(&hosts[0], regions));
    finish(polite, verdict);
    let failed = hosts.iter().find_map(|host| host.first_line("the lane failed"));
    verdict.case("no lane failed, which others share", failed.map_or_else(|| Ok("none".into()), |l| Err(anyhow!(l))));
    let panics: usize = hosts.iter().map(|h| h.lines(|l| l.contains("panick") || l.contains("ERROR"))).sum();
    let words = hosts[0].words();
    let ended = || {
        ensure!(panics == 0, "{panics} lines: {words}");
        hosts.into_iter().try_for_each(Host::stop)?;
        Ok("exit codes 0".into())
    };
    verdict.case("the daemons end in order, no panic and no error in their logs", ended());
    Ok(())
}

fn rounds(hosts: &[Host; 2], seed: u64, polite: &Polite, verdict: &mut Verdict) -> Result<()> {
    let (mut ratios, mut deeds) = ([const { Vec::new() }; 3], BTreeMap::new());
    // On a busy machine a tenant may not come to all of its misdeeds in a round.
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && misdeeds(&deeds).is_ok() {
            break;
        }
        let alone = polite.rates(|| {
            std::thread::sleep(ROUND);
            Ok(())
        })?;
        let seed = seed.wrapping_add(round);
        // The tenant of the attacked host makes the region and its kernels, and the other one finds them.
        let mut near = Hostile::start(hosts, &hosts[0], seed)?;
        let mut far = Hostile::start(hosts, &hosts[1], seed)?;
        let beside = polite.rates(|| {
            std::thread::sleep(ROUND);
            ensure!(near.is_alive() && far.is_alive(), "a hostile tenant gave up: {} {}", near.end()?, far.end()?);
            Ok(())
        })?;
        for said in [far.end()?, near.end()?] {
            for (deed, times) in said.split(", ").filter_map(|part| part.rsplit_once(' ')) {
                *deeds.entry(deed.to_owned()).or_insert(0) += times.parse::<u64>().unwrap_or(0);
            }
        }
        for (what, ratios) in ratios.iter_mut().enumerate() {
            ratios.push(beside[what] / alone[what].max(1.0));
        }
    }
    verdict.case("every misdeed was done, and ended with its own failure", misdeeds(&deeds));
    for (what, mut ratios) in WHAT.into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        let detail = format!("median {median:.2} of {SHARE} that are wanted, rounds {ratios:.2?}");
        // Who runs kernels shares the turns of kernels with all others that do, by design.
        let is_bound = what != WHAT[2];
        let kept =
            if median >= SHARE_MIN || !is_bound { Ok(detail) } else { Err(anyhow!("{detail}: below {SHARE_MIN}")) };
        verdict.case(&format!("polite programs beside them: {what}"), kept);
    }
    Ok(())
}

fn misdeeds(done: &BTreeMap<String, u64>) -> Result<String> {
    for name in tenant::names() {
        ensure!(done.get(name).is_some_and(|n| *n > 0), "{name} was not done: {done:?}");
    }
    Ok(done.iter().map(|(name, times)| format!("{name} {times}")).collect::<Vec<_>>().join(", "))
}

fn counters(host: &Host) -> Result<BTreeMap<String, u64>> {
    Ok(host.stat()?.counters.into_iter().collect())
}

fn ran(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Result<String> {
    let more = |name: &str| after[name] - before[name];
    let (run, failed, fuel) = (more("kernels_run"), more("kernels_failed"), more("kernel_fuel"));
    ensure!(failed > 0 && run > failed && fuel > 0, "{run} ran, {failed} of them failed, {fuel} units of fuel");
    Ok(format!("{run} ran, {failed} of them failed, {fuel} units of fuel"))
}

fn left(host: &Host, regions: usize) -> Result<String> {
    eventually("the hostile tenants' runs and regions are gone", || {
        let waiting = counters(host)?["kernels_waiting"];
        let found = raas::inspect::regions(Some(&host.socket))?.len();
        // One polite program runs kernels, one at a time.
        Ok(if waiting <= 1 && found == regions { Ok(()) } else { Err((waiting, found)) })
    })?;
    Ok(format!("{regions} regions"))
}

fn finish(polite: Polite, verdict: &mut Verdict) {
    let Polite { streams, operations, lookups } = polite;
    let whole = || {
        ensure!(streams.is_whole(), "a polite stream ended early");
        Ok(format!("{} bytes", streams.finish()?))
    };
    verdict.case("the polite streams' bytes are all there and right", whole());
    verdict.case("the polite programs' region was theirs alone all the time", operations.finish());
    verdict.case("the polite program's kernels found what is there", lookups.finish());
}

/// A hostile tenant's process.
struct Hostile {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Hostile {
    /// Starts one at a daemon, and waits until it begins.
    fn start(hosts: &[Host; 2], at: &Host, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let millis = (ROUND * 2).as_millis();
        command.args(["kernel-tenant", "--seed", &seed.to_string(), "--millis", &millis.to_string()]);
        command.arg("--socket").arg(&at.socket).args(["--host", &hosts[0].ip.to_string()]);
        if at.ip == hosts[0].ip {
            command.arg("--owner");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("cannot start a hostile tenant")?;
        let out = child.stdout.take().context("no output of the hostile tenant")?;
        let mut new = Self { child, out: BufReader::new(out) };
        let mut line = String::new();
        new.out.read_line(&mut line)?;
        ensure!(line.trim() == tenant::READY, "the hostile tenant does not begin: {line}");
        Ok(new)
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; what it did.
    fn end(&mut self) -> Result<String> {
        let mut said = String::new();
        self.out.read_to_string(&mut said)?;
        if !self.child.wait()?.success() {
            bail!("the hostile tenant gave up: {said}");
        }
        Ok(said.trim().to_owned())
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
