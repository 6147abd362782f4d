//! kill -9 of applications and daemons at every step of connect, transfer and close; then everything is counted.
//!
//! Owns the deaths and the accounts. What a daemon must hold after a death is what it held before the dead came.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use control::Reason;
use raas::{PathKind, Session, Stream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::breach::Target;
use crate::held::Held;
use crate::host::{Footprint, Host, Program, address, eventually};
use crate::verdict::Verdict;
use crate::victim::{DeathNotice, STEPS, Step};
use crate::witness::{End, Witness, watch};

/// Deaths of applications at times that the seed decides.
const RANDOM_DEATHS: usize = 60;
/// Latest of them, after the start.
const DEATH_MS_MAX: u64 = 60;
/// Deaths of daemons at times that the seed decides, half of them on each side.
const DAEMON_DEATHS: usize = 24;
/// The other daemon notices by the control link's end, or else by a heartbeat that does not come.
/// Nobody waits for a daemon that is dead: that is what judge `restarts` looks at.
const CONFIGURATION: &str = "heartbeat_ms = 200\nheartbeat_misses = 5\n[limits]\npeer_return_ms = 0\n";

/// Runs it; the seed decides the times of the deaths that no step names.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    applications(&hosts, raas, &mut rng, verdict)?;
    let [a, b] = hosts;
    verdict.case("daemons: nothing is left in /proc of their own", alone(&a));
    a.stop()?;
    b.stop()?;
    let name = format!("daemons: {DAEMON_DEATHS} deaths at connect, transfer and close, on both sides");
    verdict.case(&name, daemons(raas, dir.path(), &mut rng));
    Ok(())
}

/// The witnesses of one run: at the other host and at this one, reading and writing.
struct Court {
    far: [Witness; 2],
    near: [Witness; 2],
}

impl Court {
    fn sit(hosts: &[Host; 2]) -> Result<Self> {
        let both = |host| Ok::<_, anyhow::Error>([Witness::start(host, false)?, Witness::start(host, true)?]);
        Ok(Self { near: both(&hosts[0])?, far: both(&hosts[1])? })
    }

    fn of(&self, step: &Step) -> &Witness {
        let side = if step.is_near { &self.near } else { &self.far };
        &side[usize::from(step.is_reading)]
    }

    fn all_ends(&self) -> Result<Vec<End>> {
        let ends = self.far.iter().chain(&self.near).map(Witness::ends).collect::<Result<Vec<_>>>()?;
        Ok(ends.concat())
    }
}

fn applications(hosts: &[Host; 2], raas: Program<'_>, rng: &mut SmallRng, verdict: &mut Verdict) -> Result<()> {
    let court = Court::sit(hosts)?;
    // Rings of witnesses stay with them once they were needed; so the account begins after a first round.
    warm_up(hosts, &court, raas.engines)?;
    verdict.case("the lane is on a wire that was asked for", hosts[0].wire(raas.wire).map(|wire| wire.to_string()));
    let before = Held::of(hosts)?;
    for step in STEPS {
        verdict.case(&format!("killed at {}", step.name), one_death(hosts, &court, step, &before));
    }
    let mut late = 0;
    let random = (0..RANDOM_DEATHS).try_for_each(|n| {
        let after = Duration::from_micros(rng.random_range(0..DEATH_MS_MAX * 1000));
        late = late.max(after.as_millis());
        let mut child = victim("cycle", hosts, &court, false)?;
        std::thread::sleep(after);
        kill(&mut child)?;
        court.all_ends()?;
        // The full account takes a while, so it is taken in between too, but not each time.
        if n % 10 == 9 { before.wait_for(hosts).with_context(|| format!("death {n} after {after:?}")) } else { Ok(()) }
    });
    verdict.case(
        &format!("killed at {RANDOM_DEATHS} times that the seed decides"),
        random.map(|()| format!("up to {late} ms after the start, all accounts balance")),
    );
    Ok(())
}

/// Each engine has rings of its own for a witness, so there are as many connections at a time.
fn warm_up(hosts: &[Host; 2], court: &Court, engines: u32) -> Result<()> {
    let session = Session::builder().socket(&hosts[0].socket).name("warms-up").connect()?;
    for witness in court.far.iter().chain(&court.near) {
        let streams =
            (0..engines).map(|_| Stream::connect_with(&session, witness.at)).collect::<Result<Vec<_>, _>>()?;
        drop(streams);
    }
    drop(session);
    court.all_ends()?;
    // The 64 KiB rings of the raw victims are of another size than the default.
    let mut app = crate::raw::RawApp::attach(&hosts[0].socket, "warms-up")?;
    for witness in &court.far {
        for _ in 0..engines {
            app.connect(witness.at, 65_536)?;
        }
    }
    drop(app);
    court.all_ends()?;
    eventually("the warm-up is over", || {
        let apps = hosts[0].stat()?.apps.len();
        Ok(if apps == 2 { Ok(()) } else { Err(apps) })
    })
}

fn victim(step: &str, hosts: &[Host; 2], court: &Court, is_reading: bool) -> Result<Child> {
    let which = usize::from(is_reading);
    let target = Target { socket: &hosts[0].socket, far: court.far[which].at, near: court.near[which].at };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["victim", "--step", step, "--far", &target.far.to_string(), "--near", &target.near.to_string()]);
    command.arg("--socket").arg(target.socket).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start a victim")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim() != format!("at {step}") {
        kill(&mut child)?;
        let mut words = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut words)?;
        }
        return Err(anyhow!("the victim did not get to {step}: {line}{words}"));
    }
    Ok(child)
}

fn kill(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn one_death(hosts: &[Host; 2], court: &Court, step: &Step, before: &Held) -> Result<String> {
    let mut child = victim(step.name, hosts, court, step.is_reading)?;
    if step.notice != DeathNotice::Nothing {
        eventually("the witness has the connection", || {
            Ok(if court.of(step).taken() > 0 { Ok(()) } else { Err("none") })
        })?;
    }
    kill(&mut child)?;
    let ends = court.all_ends()?;
    let broken = |end: &End| matches!(end, End::Broken(Some(Reason::PeerAppDied | Reason::ResetByPeer)));
    match step.notice {
        DeathNotice::Nothing => {}
        DeathNotice::Break => ensure!(ends.iter().all(broken) && ends.len() == 1, "the witness heard {ends:?}"),
        DeathNotice::Orderly => ensure!(ends == [End::Orderly], "the witness heard {ends:?}"),
    }
    before.wait_for(hosts)?;
    // A witness may have taken it from its backlog only after the death; the next step must not see that.
    court.all_ends()?;
    Ok(if ends.is_empty() { "all returned".into() } else { format!("all returned, the witness heard {ends:?}") })
}

/// A daemon that serves nobody any more holds no program's memory.
fn alone(host: &Host) -> Result<String> {
    eventually("no program is attached", || {
        let apps = host.stat()?.apps.len();
        Ok(if apps == 0 { Ok(()) } else { Err(apps) })
    })?;
    let print = Footprint::of(host.pid())?;
    // The engine page and the page of the regions' stamps, mapped once each. Of the stamps the daemon has a second
    // descriptor, which it hands out.
    ensure!((print.memfds, print.memfd_mappings) == (3, 2), "{print:?}");
    Ok(format!("{print:?}"))
}

/// Daemons die while connections are made, used and closed; the others notice, and a new daemon takes the place.
fn daemons(raas: Program<'_>, dir: &Path, rng: &mut SmallRng) -> Result<String> {
    let ips = [address(), address()];
    let start = |side: usize| Host::start(raas, dir, ips[side], CONFIGURATION);
    let mut hosts = [start(0)?, start(1)?];
    let empty = Held::of([&hosts[1]])?;
    let mut kept = None;
    let mut heard = std::collections::BTreeMap::<String, u32>::new();
    for death in 0..DAEMON_DEATHS {
        // The one that lives sees many deaths, then they change places.
        if death == DAEMON_DEATHS / 2 {
            kept = None;
        }
        let dying = death / (DAEMON_DEATHS / 2);
        // The first after the lane is up for certain.
        let early = if kept.is_none() { 40_000 } else { 0 };
        // Half of them while the daemon is still telling what was done.
        let late = if rng.random_bool(0.5) { 100 } else { 15_000 };
        let after = Duration::from_micros(early + rng.random_range(0..late));
        let ends = daemon_death(&mut hosts, dying, after).with_context(|| format!("death {death} after {after:?}"))?;
        for end in ends {
            *heard.entry(format!("{end:?}")).or_default() += 1;
        }
        // The pool of receives stays registered for the next lane: what the first death leaves of it, no death may
        // exceed.
        let survivor = &hosts[1 - dying];
        let account = match &kept {
            Some(kept) => kept,
            None => kept.insert(empty.with_pool_of_one_lane(survivor)?),
        };
        account.wait_for([survivor]).with_context(|| format!("the other daemon after death {death} ({after:?})"))?;
        hosts[dying] = start(dying)?;
    }
    hosts.into_iter().try_for_each(Host::stop)?;
    Ok(format!("{heard:?}"))
}

/// One death; returns what the connected programs were told.
fn daemon_death(hosts: &mut [Host; 2], dying: usize, after: Duration) -> Result<Vec<End>> {
    let witness = Witness::start(&hosts[1], false)?;
    let near = Witness::start(&hosts[dying], false)?;
    let (socket, to) = (hosts[0].socket.clone(), witness.at);
    let neighbour = Session::builder().socket(&hosts[dying].socket).name("neighbour").connect()?;
    let mut same_host = Stream::connect_with(&neighbour, near.at)?;
    ensure!(same_host.path() == PathKind::Shm, "the same-host connection goes by {:?}", same_host.path());
    let client = std::thread::spawn(move || -> Vec<End> {
        let Ok(session) = Session::builder().socket(&socket).name("client").daemon_wait(Duration::ZERO).connect()
        else {
            return Vec::new();
        };
        let mut ends = Vec::new();
        // Short connections first, which are closed again, then one that stays: the death may fall on any of them.
        for _ in 0..4 {
            match Stream::connect_with(&session, to) {
                Ok(mut stream) => drop(std::io::Write::write_all(&mut stream, &[1; 20_000])),
                Err(_) => return ends,
            }
        }
        if let Ok(stream) = Stream::connect_with(&session, to) {
            ends.push(watch(stream, true));
        }
        ends
    });
    std::thread::sleep(after);
    hosts[dying].kill()?;
    let mut ends = client.join().map_err(|_| anyhow!("the client panicked"))?;
    ends.extend(witness.ends()?);
    ensure!(!ends.contains(&End::Silence), "someone heard nothing: {ends:?}");
    // Two processes of the dead daemon's host go on.
    std::io::Write::write_all(&mut same_host, &[3; 100_000]).context("the same-host connection is gone")?;
    same_host.shutdown(std::net::Shutdown::Write)?;
    let near_ends = near.ends()?;
    ensure!(near_ends == [End::Orderly], "the same-host connection did not end in order: {near_ends:?}");
    Ok(ends)
}
