//! Judge `memory`: programs of two users take of everything that a daemon can hold for them as much as they get, and keep
//! it, beside polite programs of another user.
//!
//! Owns the bounds, which are the sum of the shares that docs/operate/memory.md has. It must never believe the hoarders:
//! what a daemon holds the kernel says.

pub mod hoarder;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::host::{Footprint, Host, Program, WATCHDOG, address, eventually};
use crate::polite::{self, Sink, Transfer};
use crate::pulse::Pulse;
use crate::verdict::Verdict;

/// Shares small enough that each is reached.
const CONFIGURATION: &str = "socket_mode = \"0666\"\n[limits]\napps_max = 96\nclients_max = 192\nconnections_max = 1024\n\
    regions_max = 128\nregion_bytes_max = 268435456\nkernel_bytes_max = 134217728\nclient_queue_bytes_max = 16777216\n\
    ring_memory_max = 268435456\nregion_handles_max = 8000\n";
/// Users that nobody has. Each has a quarter.
const UIDS: [u32; 3] = [61_100, 61_101, 61_102];
const MIB: u64 = 1 << 20;
/// What a user may have of the daemon's own memory: kernels, unread messages.
const OF_USER: u64 = 32 * MIB + 4 * MIB;
/// Runs of a user's kernels that have begun.
const RUNS_OF_USER: u64 = 8 * MIB;
/// A program with all that has no size of its own: its place, slots, rows, turns.
const OF_PROGRAM: u64 = 512 << 10;
const PROGRAMS_OF_USER: u64 = 48;
/// A handle, a row of a connection, and all else that is counted in numbers of thousands.
const OF_COUNTED: u64 = 2 * 4096 * 1024;
/// Rings and sessions of a user: shared memory that somebody wrote to.
const SHARED_OF_USER: u64 = 64 * MIB + 24 * 2 * MIB;
/// Modules that are being read, frames that are being written, and the allocator's own pieces.
const SLACK: u64 = 32 * MIB;
/// What may stay: the allocator's pieces, of which each thread has its own. The kernels alone take more.
const LEFT_MAX: u64 = 48 * MIB;

/// Runs it. The seed decides how many users come, what each of them takes beside kernels and messages, and in which order.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let mut hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    let transfer = Transfer::start(&hosts[0], &hosts[1], 1)?;
    let far = Sink::start(&hosts[1])?;
    // What a daemon takes for its lane, its receives and its first pair is there before.
    verdict.case("a polite pair is served", polite::fresh(&hosts));
    std::thread::sleep(Duration::from_millis(500));
    let before = Footprint::of(hosts[0].pid())?;
    let pulse = Pulse::default();
    let socket = hosts[0].socket.clone();
    let held = std::thread::scope(|scope| {
        scope.spawn(|| pulse.beat(&socket));
        let held = hoard(&hosts, &far, &before, (&pulse, seed), verdict);
        pulse.end();
        held
    });
    held?;
    verdict.case("the daemon answered others all the time", pulse.said());
    verdict.case("memory has come back after they left", come_back(&hosts[0], &before));
    verdict.case("the polite bytes are all there and right", transfer.finish().map(|bytes| format!("{bytes} bytes")));
    verdict.case("a new polite pair is served as before", polite::fresh(&hosts));
    let alive = hosts.iter_mut().all(Host::is_alive);
    verdict.case("both daemons live", if alive { Ok("both".into()) } else { Err(anyhow!("{}", hosts[0].words())) });
    Ok(())
}

/// Starts the hoarders one after the other, and looks what the daemon has while they all keep what they got.
fn hoard(
    hosts: &[Host; 2],
    far: &Sink,
    before: &Footprint,
    (pulse, seed): (&Pulse, u64),
    verdict: &mut Verdict,
) -> Result<()> {
    let users = SmallRng::seed_from_u64(seed).random_range(1..=UIDS.len());
    let mut hoarders = Vec::new();
    for (count, uid) in (1..).zip(&UIDS[..users]) {
        let mut hoarder = Hoarder::start(&hosts[0], far, *uid, seed.wrapping_add(count))?;
        let said = hoarder.filled();
        verdict.case(&format!("user {uid} has taken all it could of everything"), said);
        hoarders.push(hoarder);
        verdict.case("the daemon holds no more than the shares of those users", bounded(&hosts[0], before, count));
        pulse.goes_on()?;
    }
    verdict.case("a polite pair of another user is served beside them", polite::fresh(hosts));
    hoarders.into_iter().try_for_each(Hoarder::end)
}

fn bounded(host: &Host, before: &Footprint, users: u64) -> Result<String> {
    let now = Footprint::of(host.pid())?;
    let of_user = OF_USER + RUNS_OF_USER + PROGRAMS_OF_USER * OF_PROGRAM + OF_COUNTED;
    let bounds = [
        ("anonymous", now.anonymous_bytes, before.anonymous_bytes + users * of_user + SLACK),
        ("shared", now.shared_bytes, before.shared_bytes + users * SHARED_OF_USER + SLACK),
    ];
    for (kind, found, bound) in bounds {
        ensure!(found <= bound, "{} MiB of {kind} memory, more than {}", found / MIB, bound / MIB);
    }
    let stat = host.stat()?;
    let counter = |name: &str| stat.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    let (kernels, unread) = (counter("kernel_bytes"), counter("client_queue_bytes"));
    // Both were filled: what is left of a share is less than what was asked for last.
    ensure!(kernels > users * 31 * MIB && kernels <= users * 32 * MIB, "{kernels} bytes of kernels");
    ensure!(unread > users * MIB && unread <= users * 4 * MIB, "{unread} bytes of unread messages");
    let [a, s] = bounds.map(|(kind, found, bound)| format!("{} of {} MiB of {kind}", found / MIB, bound / MIB));
    Ok(format!("{a}, {s} memory; kernels {} MiB, unread messages {} KiB", kernels / MIB, unread >> 10))
}

fn come_back(host: &Host, before: &Footprint) -> Result<String> {
    let mut last = 0;
    eventually("the memory of the hoarders is free", || {
        let now = Footprint::of(host.pid())?;
        last = now.anonymous_bytes.saturating_sub(before.anonymous_bytes);
        let shared = now.shared_bytes.saturating_sub(before.shared_bytes);
        Ok(if last <= LEFT_MAX && shared <= LEFT_MAX { Ok(()) } else { Err((last, shared)) })
    })?;
    let stat = host.stat()?;
    let kernels = stat.counters.iter().find(|(name, _)| name == "kernel_bytes").map(|(_, value)| *value);
    ensure!(kernels == Some(0), "kernels of {kernels:?} bytes");
    Ok(format!("{} KiB more than before", last >> 10))
}

/// A process that hoards.
struct Hoarder {
    child: Child,
    input: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Hoarder {
    fn start(host: &Host, far: &Sink, uid: u32, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hoarder", "--uid", &uid.to_string(), "--host", &host.ip.to_string()]);
        command.args(["--far", &far.at.to_string(), "--seed", &seed.to_string()]).arg("--socket").arg(&host.socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("cannot start a hoarder")?;
        let (input, out) = (child.stdin.take(), child.stdout.take().context("no output")?);
        Ok(Self { child, input, out: BufReader::new(out) })
    }

    /// What it has, when it gets nothing more.
    fn filled(&mut self) -> Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        let words = line.trim();
        let said = words.strip_prefix(hoarder::FILLED).with_context(|| format!("it gave up: {words}"))?;
        Ok(said.trim().to_owned())
    }

    fn end(mut self) -> Result<()> {
        if let Some(mut input) = self.input.take() {
            let _ = input.write_all(b"end\n");
        }
        eventually("the hoarder ends", || Ok(self.child.try_wait()?.map(drop).ok_or(())))
    }
}

impl Drop for Hoarder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No hoarder waits longer for one thing.
pub(crate) const PATIENCE: Duration = WATCHDOG;
