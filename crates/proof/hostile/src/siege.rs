//! The siege: polite tenants transfer over two daemons while a hostile one does its worst beside them.
//!
//! Owns the bounds, and the checks for each tenant. It must never believe the hostile tenant's own word: the daemon's
//! log, its tables and the kernel's counts say what happened.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::breach::{self, Target};
use crate::held::Held;
use crate::host::{Footprint, Host, Program, address};
use crate::polite::datagrams::Exchange;
use crate::polite::regions::Sharing;
use crate::polite::{self, Sink, Transfer};
use crate::readers;
use crate::tenant::Tenant;
use crate::verdict::Verdict;
use crate::words::{self, Step};

/// Limits of the daemons, small enough that the hostile tenant reaches each of them.
const CONFIGURATION: &str = "[limits]\napps_max = 96\nclients_max = 128\nconnections_per_app_max = 512\n\
    connections_max = 2048\nlisteners_max = 256\nring_memory_per_app_max = 67108864\n\
    handshake_ms = 1000\nregions_max = 64\n";
/// Bytes of anonymous memory that a daemon with these limits may have at most, whatever its tenants do.
const ANONYMOUS_BYTES_MAX: u64 = 48 << 20;
/// Bytes of shared memory: rings and sessions of all applications that fit.
const SHARED_BYTES_MAX: u64 = 96 * ((64 << 20) + (1 << 20));
/// Descriptors: for each program its control socket, wake socket and what is on its way to it, and four for each region.
const FDS_MAX: u64 = PROGRAMS_MAX * 6 + 64 * 4 + 64;
/// Programs at a time.
const PROGRAMS_MAX: u64 = 128;
/// Threads: the main one, the daemon's two, the two whose ends say that the daemon ended, to programs and to those that map
/// regions, the helper of the software NIC, and of the runtime one that comes and goes, one that makes huge pages for a
/// region, one that reads a kernel's module, and those that did either before and are not idle yet.
const THREADS_MAX: u64 = 11;
/// What a daemon may keep after its hostile tenants have gone: the allocator's own, in pieces.
const ANONYMOUS_LEFT_MAX: u64 = 32 << 20;
/// The daemon writes the log before it tells the tenant, but the reader of the log may be a little behind.
const LOG_PATIENCE: Duration = Duration::from_secs(20);
/// Streams of the polite pair.
const STREAMS: u64 = 2;
/// Pairs of rounds, without and with the hostile tenant.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1400);
/// Share of their throughput that polite tenants keep: the median over the rounds.
const SHARE_MIN: f64 = 0.5;

/// Runs it; the seed decides the hostile tenant's choices.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    let transfer = Transfer::start(&hosts[0], &hosts[1], STREAMS)?;
    let exchange = Exchange::start(&hosts[0], &hosts[1])?;
    let sharing = Sharing::start(&hosts[0], &hosts[0])?;
    // Its operations leave by the queues and the lane that the hostile tenant uses too.
    let far_sharing = Sharing::start(&hosts[1], &hosts[0])?;
    verdict.case("the lane is on a wire that was asked for", hosts[0].wire(raas.wire).map(|wire| wire.to_string()));
    std::thread::sleep(Duration::from_millis(500));
    let before = Held::of(&hosts)?;
    let (near, far) = (Sink::start(&hosts[0])?, Sink::start(&hosts[1])?);
    let socket = hosts[0].socket.clone();
    let target = Target { socket: &socket, far: far.at, near: near.at };

    for breach in breach::ALL {
        verdict.case(&format!("breach: {}", breach.name), detached(&hosts[0], breach, target));
    }
    verdict.case("strangers at the door are refused with a reason", door(target));
    verdict.case("every shared word overwritten at every step", flip_all(target, seed));
    verdict.case("tools that do not read cost a page each", readers::silent(&hosts[0]));
    let (answered, checked, far_checked) = (exchange.answered(), sharing.checked(), far_sharing.checked());
    let peak = rounds(&mut hosts, seed, target, &transfer, verdict)?;
    let (answered, checked) = (exchange.answered() - answered, sharing.checked() - checked);
    let far_checked = far_sharing.checked() - far_checked;
    verdict.case("no lane failed, which others share", lanes_held(&hosts));
    verdict.case("memory, descriptors and threads stay bounded", bounded(&peak, raas.engines));
    drop((near, far));
    verdict.case("what the hostile tenants held has returned", returned(&hosts, &before));
    verdict.case(
        "the polite tenants' bytes are all there and right",
        (|| {
            ensure!(
                transfer.is_whole(),
                "a polite stream ended early: {:#}",
                transfer.finish().err().map_or_else(String::new, |e| format!("{e:#}"))
            );
            Ok(format!("{} bytes", transfer.finish()?))
        })(),
    );
    verdict.case(
        "the polite tenants' datagrams were answered all the time, and are right",
        exchange.finish().and_then(|said| {
            ensure!(answered > 0, "none was answered in the rounds: {said}");
            Ok(format!("{answered} in the rounds; {said}"))
        }),
    );
    verdict.case(
        "the polite programs' region was theirs alone all the time",
        sharing.finish().and_then(|said| {
            ensure!(checked > 0, "no block was checked in the rounds: {said}");
            Ok(format!("{checked} in the rounds; {said}"))
        }),
    );
    verdict.case(
        "the polite programs' operations on another host's region are all done, and nobody else's",
        far_sharing.finish().and_then(|said| {
            ensure!(far_checked > 0, "no block was checked in the rounds: {said}");
            Ok(format!("{far_checked} in the rounds; {said}"))
        }),
    );
    verdict.case("a new polite pair is served as before", polite::fresh(&hosts));
    let panics: usize = hosts.iter().map(|h| h.lines(|l| l.contains("panick") || l.contains("ERROR"))).sum();
    let words = hosts[0].words();
    verdict.case(
        "the daemons end in order, no panic and no error in their logs",
        (|| {
            ensure!(panics == 0, "{panics} lines: {words}");
            hosts.into_iter().try_for_each(Host::stop)?;
            Ok("exit codes 0".into())
        })(),
    );
    Ok(())
}

/// Commits a breach; the daemon must end the session, tell the tenant why, and log it.
fn detached(host: &Host, breach: &breach::Breach, target: Target<'_>) -> Result<String> {
    let said = (breach.commit)(breach.name, target)?;
    ensure!(!said.is_empty(), "the tenant was not told why");
    let start = Instant::now();
    // The words in the log are escaped where they have quotes.
    while !host.log_has(&["detached a program", &format!("name=\"{}\"", breach.name)]) {
        ensure!(start.elapsed() < LOG_PATIENCE, "nothing in the log: {}", host.words());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(said)
}

fn door(target: Target<'_>) -> Result<String> {
    let answers = breach::refused_at_the_door(target)?;
    for (what, answer) in &answers {
        let wanted = if what == "another version" { "peer-version" } else { "app-fault" };
        ensure!(answer == wanted, "{what}: {answer}, not {wanted}");
    }
    Ok(format!("{} ways", answers.len()))
}

fn flip_all(target: Target<'_>, seed: u64) -> Result<String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let words = words::count(target)?;
    let (mut flips, mut ended) = (0, 0);
    for step in Step::ALL {
        for which in 0..words {
            let detached =
                words::flip(target, step, which, &mut rng).with_context(|| format!("step {step:?}, word {which}"))?;
            flips += 1;
            ended += u32::from(detached == Some(true));
        }
    }
    Ok(format!("{words} words, {} steps, {flips} runs, {ended} ended at once", Step::ALL.len()))
}

/// Rounds without and with the hostile tenant in turn; the largest footprint of either daemon meanwhile.
fn rounds(
    hosts: &mut [Host; 2],
    seed: u64,
    target: Target<'_>,
    transfer: &Transfer,
    verdict: &mut Verdict,
) -> Result<Footprint> {
    let mut peak = Footprint::default();
    let mut ratios = Vec::new();
    let mut deeds = BTreeMap::new();
    let mut rates = (0, 0);
    for round in 0..ROUNDS {
        let alone = measure(hosts, transfer, &mut peak, None)?;
        let child = tenant((seed, round), hosts, target)?;
        let beside = measure(hosts, transfer, &mut peak, Some(child))?;
        ratios.push(beside.rate / alone.rate.max(1.0));
        rates = (rates.0 + alone.rate as u64, rates.1 + beside.rate as u64);
        for (deed, times) in beside.said.split(", ").filter_map(|part| part.split_once(' ')) {
            *deeds.entry(deed.to_owned()).or_insert(0) += times.parse::<u64>().unwrap_or(0);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    verdict.case("every misdeed was done", misdeeds(&deeds));
    let alive = hosts.iter_mut().all(Host::is_alive);
    let words = hosts[0].words();
    verdict.case("both daemons live", if alive { Ok("both".into()) } else { Err(anyhow!("one ended: {words}")) });
    let detail = format!(
        "median {median:.2}, rounds {ratios:.2?}, {} and {} MB/s",
        rates.0 / ROUNDS as u64 / 1_000_000,
        rates.1 / ROUNDS as u64 / 1_000_000
    );
    let kept = if median >= SHARE_MIN { Ok(detail) } else { Err(anyhow!("{detail}: below {SHARE_MIN}")) };
    verdict.case("polite tenants keep their throughput", kept);
    Ok(peak)
}

fn misdeeds(done: &BTreeMap<String, u64>) -> Result<String> {
    for name in Tenant::misdeeds() {
        ensure!(done.get(name).is_some_and(|n| *n > 0), "{name} was not done: {done:?}");
    }
    Ok(done.iter().map(|(name, times)| format!("{name} {times}")).collect::<Vec<_>>().join(", "))
}

#[derive(Debug)]
struct Measured {
    rate: f64,
    said: String,
}

/// One round. A hostile child must still be attacking at the end; the round waits for it.
fn measure(
    hosts: &[Host; 2],
    transfer: &Transfer,
    peak: &mut Footprint,
    child: Option<std::process::Child>,
) -> Result<Measured> {
    let (start, before) = (Instant::now(), transfer.verified());
    while start.elapsed() < ROUND {
        std::thread::sleep(Duration::from_millis(50));
        for host in hosts {
            *peak =
                peak.max(Footprint::of(host.pid()).with_context(|| format!("the daemon is gone: {}", host.words()))?);
        }
    }
    let rate = (transfer.verified() - before) as f64 / start.elapsed().as_secs_f64();
    let Some(child) = child else { return Ok(Measured { rate, said: String::new() }) };
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        bail!("the hostile tenant gave up: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Measured { rate, said })
}

fn tenant((seed, round): (u64, usize), hosts: &[Host; 2], target: Target<'_>) -> Result<std::process::Child> {
    let program: PathBuf = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.args(["tenant", "--seed", &seed.to_string(), "--round", &round.to_string()]);
    command.args(["--millis", &ROUND.as_millis().to_string()]);
    command.arg("--socket").arg(&hosts[0].socket).arg("--far-socket").arg(&hosts[1].socket);
    command.args(["--far", &target.far.to_string(), "--near", &target.near.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start the hostile tenant")
}

fn bounded(peak: &Footprint, engines: u32) -> Result<String> {
    // Each engine beyond the first is a thread, with a wake socket for each program.
    let more = u64::from(engines.saturating_sub(1));
    let bounds = [
        ("anonymous bytes", peak.anonymous_bytes, ANONYMOUS_BYTES_MAX),
        ("shared bytes", peak.shared_bytes, SHARED_BYTES_MAX),
        ("descriptors", peak.fds, FDS_MAX + more * PROGRAMS_MAX),
        ("threads", peak.threads, THREADS_MAX + more),
    ];
    for (what, found, bound) in bounds {
        ensure!(found <= bound, "{found} {what}, more than {bound}");
    }
    let [a, s, f, t] = bounds.map(|(_, found, bound)| format!("{found} of {bound}"));
    Ok(format!("at most {a} anonymous bytes, {s} shared, {f} descriptors, {t} threads"))
}

fn lanes_held(hosts: &[Host; 2]) -> Result<String> {
    let failed = hosts.iter().find_map(|host| host.first_line("the lane failed"));
    failed.map_or_else(|| Ok("none".into()), |line| Err(anyhow!("{line}")))
}

fn returned(hosts: &[Host; 2], before: &Held) -> Result<String> {
    before.wait_for(hosts)?;
    let mut kept = 0;
    for host in hosts {
        kept = kept.max(Footprint::of(host.pid())?.anonymous_bytes);
    }
    ensure!(kept <= ANONYMOUS_LEFT_MAX, "{kept} anonymous bytes are left, more than {ANONYMOUS_LEFT_MAX}");
    Ok(format!("{before:?}, {kept} anonymous bytes left"))
}
