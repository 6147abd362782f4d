//! Judge `writers`: regions with one writer, taken over while the writer before runs or stands still, or while its daemon
//! does.
//!
//! Owns what must hold: nothing that the writer before had not done by then lands behind a take-over, what it was told to be
//! done stays, readers go on, and so does what that writer's program writes to another region by the same lane. How long a take-over takes is told, beside opening the region to read it, which is a message
//! to its host and back, and not judged: a busy machine decides it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, Session};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};

use crate::host::{Host, Program, address};
use crate::verdict::Verdict;

const NAME: &str = "written";
/// What the writer's program writes too, and nobody takes over.
const BESIDE: &str = "beside";
const KEY: RegionKey = RegionKey::new([0x31; 16]);
const BYTES: u64 = 64 << 10;
/// The word that writers count in.
const WORD: u64 = 0;
/// What a writer fills with its count behind each, so that some of it is under way all the time.
const FILL_AT: u64 = 4096;
const FILL_BYTES: usize = 32 << 10;
/// Handles that are opened, and timed, before each take-over.
const OPENS: usize = 5;
/// How long a lane may take to be made anew.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who stands still during a take-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Still {
    Nobody,
    Program,
    Daemon,
    Both,
}

const ALL: [Still; 4] = [Still::Nobody, Still::Program, Still::Daemon, Still::Both];

/// Runs it: so many take-overs, of all kinds in turn. The seed decides how long each writer has written before.
pub fn run(raas: Program<'_>, seed: u64, count: u32, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let start = || Host::start(raas, dir.path(), address(), "");
    let (owner, holder, taker) = (start()?, start()?, start()?);
    let session_there = Session::connect(&taker.socket)?;
    let field = Field { owner, holder, taker, session: session_there };
    let mut rng = SmallRng::seed_from_u64(seed);
    let session = Session::connect(&field.owner.socket)?;
    let options = RegionOptions::new().key(KEY).single_writer(true);
    let own = [NAME, BESIDE].map(|name| options.create(&session, name, BYTES));
    let [own, beside] = own;
    let own = (&own?, &beside?);
    let mut rounds: Vec<(Still, Result<Round>)> = Vec::new();
    for number in 0..count {
        let still = ALL[number as usize % ALL.len()];
        let round = field.round(own, u64::from(number), still, Duration::from_micros(rng.random_range(0..20_000)));
        let failed = round.is_err();
        rounds.push((still, round.with_context(|| format!("take-over {number}"))));
        if failed {
            break;
        }
    }
    for still in ALL {
        let of: Vec<_> = rounds.extract_if(.., |(kind, _)| *kind == still).map(|(_, round)| round).collect();
        let name = match still {
            Still::Nobody => "nothing of a fenced writer lands, and what it was told stays",
            Still::Program => "the same while the writer's program stands still",
            Still::Daemon => "the same while the writer's daemon stands still",
            Still::Both => "the same while both do",
        };
        verdict.case(name, of.into_iter().collect::<Result<Vec<Round>>>().and_then(|rounds| told(&rounds)));
    }
    let on_one_host = field.on_one_host(own, u64::from(count));
    verdict.case("a writer of the region's own host is fenced while it stands still", on_one_host);
    field.stop()
}

/// What a take-over found.
struct Round {
    took: Duration,
    /// To open a handle, which a take-over does too.
    opened: Duration,
    /// Stores that its program was told to be done.
    done: u64,
}

fn told(rounds: &[Round]) -> Result<String> {
    ensure!(!rounds.is_empty(), "no take-over");
    let done: u64 = rounds.iter().map(|round| round.done).sum();
    ensure!(done > 0, "the writers wrote nothing");
    let mut times: Vec<f64> = rounds.iter().map(|r| r.took.as_secs_f64() / r.opened.as_secs_f64().max(1e-9)).collect();
    times.sort_by(f64::total_cmp);
    let place = |share: f64| times.get(((times.len() - 1) as f64 * share) as usize).copied().unwrap_or_default();
    Ok(format!(
        "{} take-overs, {done} stores; {:.1} x an open in the middle, {:.1} at p99",
        times.len(),
        place(0.5),
        place(0.99)
    ))
}

/// The owner's region that is taken over, and the other.
type Own<'a> = (&'a Region, &'a Region);

/// The hosts.
struct Field {
    owner: Host,
    holder: Host,
    taker: Host,
    /// Of a program there.
    session: Session,
}

impl Field {
    /// One writer comes, and then another one in its place.
    fn round(&self, (own, beside): Own<'_>, number: u64, still: Still, after: Duration) -> Result<Round> {
        let term = 2 * number + 1;
        [own, beside].into_iter().try_for_each(|region| region.store(WORD, 0))?;
        let mut writer = Writer::start(&self.holder.socket, &self.owner, term)?;
        let session = &self.session;
        let open = || Region::open_for(session, self.owner.ip, NAME, KEY, RegionAccess::READ);
        let reader = open()?;
        let opened = middle((0..OPENS).map(|_| timed(open)).collect::<Result<_>>()?);
        std::thread::sleep(after);
        let mut stopped = Vec::new();
        if matches!(still, Still::Program | Still::Both) {
            stopped.push(Stopped::new(writer.child.id())?);
        }
        if matches!(still, Still::Daemon | Still::Both) {
            stopped.push(Stopped::new(self.holder.pid())?);
        }
        let begin = Instant::now();
        let (next, last_term) = Region::take_over(session, self.owner.ip, NAME, KEY, term + 1)?;
        let took = begin.elapsed();
        ensure!(last_term == term, "the term before was {last_term}, and {term} was granted");
        let found = whole(own)?;
        drop(stopped);
        let done = writer.end(term + 1)?;
        goes_on(beside)?;
        writer.end_beside(beside)?;
        ensure!(whole(own)? == found, "bytes changed behind the take-over");
        let count = reader.load(WORD)?;
        ensure!(count == done || count == done + 1, "{done} stores were told to be done, and {count} is there");
        next.store(WORD, u64::MAX)?;
        ensure!(reader.load(WORD)? == u64::MAX, "the reader does not see what the next one writes");
        Ok(Round { took, opened, done })
    }

    /// The writer is a program of the region's host, which stands still.
    fn on_one_host(&self, (own, beside): Own<'_>, number: u64) -> Result<String> {
        let term = 2 * number + 1;
        [own, beside].into_iter().try_for_each(|region| region.store(WORD, 0))?;
        let mut writer = Writer::start(&self.owner.socket, &self.owner, term)?;
        let stopped = Stopped::new(writer.child.id())?;
        let session = Session::connect(&self.owner.socket)?;
        let (next, _) = Region::take_over(&session, self.owner.ip, NAME, KEY, term + 1)?;
        let found = whole(own)?;
        drop(stopped);
        let done = writer.end(term + 1)?;
        goes_on(beside)?;
        writer.end_beside(beside)?;
        ensure!(whole(own)? == found, "bytes changed behind the take-over");
        next.store(WORD, 7)?;
        ensure!(own.load(WORD)? == 7, "the next one does not write");
        Ok(format!("{done} stores"))
    }

    fn stop(self) -> Result<()> {
        drop(self.session);
        [self.owner, self.holder, self.taker].into_iter().try_for_each(Host::stop)
    }
}

fn whole(own: &Region) -> Result<Vec<u8>> {
    let mut bytes = vec![0; BYTES as usize];
    own.read(0, &mut bytes)?;
    Ok(bytes)
}

/// What is not taken over is still written.
fn goes_on(beside: &Region) -> Result<()> {
    let (before, begin) = (beside.load(WORD)?, Instant::now());
    while beside.load(WORD)? == before {
        ensure!(begin.elapsed() < PATIENCE, "the writer's other region is written no more");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn timed<T>(what: impl FnOnce() -> Result<T, RegionError>) -> Result<Duration> {
    let begin = Instant::now();
    what()?;
    Ok(begin.elapsed())
}

fn middle(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// A process that stands still while this lives.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A writer in a process of its own.
struct Writer {
    child: Child,
    says: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Writer {
    /// Has one take the region over, and returns when it writes.
    fn start(socket: &Path, owner: &Host, term: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("writer").arg("--socket").arg(socket);
        command.args(["--host", &owner.ip.to_string(), "--term", &term.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let says = BufReader::new(child.stdout.take().context("its output")?).lines();
        let mut writer = Self { child, says };
        let line = writer.line()?;
        ensure!(line == "writes", "the writer says: {line}");
        Ok(writer)
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.says.next().ok_or_else(|| anyhow!("the writer ended without a word"))??)
    }

    /// It has noticed that it is over: how many stores it was told to be done.
    fn end(&mut self, by: u64) -> Result<u64> {
        let line = self.line()?;
        let (done, why) = line.split_once(' ').with_context(|| format!("the writer says: {line}"))?;
        ensure!(why.contains(&format!("term {by}")) || why.contains("lane"), "it ended otherwise: {why}");
        Ok(done.parse()?)
    }

    /// It is to end: of the other region the last store that it was told to be done is there.
    fn end_beside(&mut self, beside: &Region) -> Result<()> {
        drop(self.child.stdin.take());
        let done: u64 = self.line()?.parse()?;
        ensure!(self.child.wait()?.success(), "the writer failed");
        let found = beside.load(WORD)?;
        ensure!(found == done, "beside: store {done} was told to be done last, and {found} is there");
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A writer: it counts in a word of either region, fills bytes behind each count of the one that is taken over, and says how
/// far it came.
pub fn write(socket: &Path, host: std::net::IpAddr, term: u64) -> Result<()> {
    let session = Session::connect(socket)?;
    let take = |name| Region::take_over(&session, host, name, KEY, term).map(|(region, _)| region);
    let (region, beside) = (take(NAME)?, take(BESIDE)?);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| count_beside(&beside, &is_over));
        let (done, error) = count(&region);
        if done == 0 {
            is_over.store(true, Ordering::Relaxed);
            bail!(error);
        }
        println!("{done} {error}");
        // Until there is no more input.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        is_over.store(true, Ordering::Relaxed);
        println!("{}", others.join().map_err(|_| anyhow!("the other thread"))??);
        Ok(())
    })
}

/// Until it is fenced off.
fn count(region: &Region) -> (u64, RegionError) {
    let mut done = 0;
    loop {
        let stored = region.store(WORD, done + 1).and_then(|()| {
            done += 1;
            region.write(FILL_AT, &vec![done.to_le_bytes()[0]; FILL_BYTES])
        });
        match stored {
            Ok(()) if done == 1 => println!("writes"),
            Ok(()) => {}
            Err(error) => return (done, error),
        }
    }
}

/// A store whose queue pair broke may be done or not.
fn count_beside(region: &Region, is_over: &AtomicBool) -> Result<u64> {
    let mut done = 0;
    for next in 1.. {
        match region.store(WORD, next) {
            Ok(()) => done = next,
            Err(RegionError::OutcomeUnknown { .. }) => continue,
            Err(other) => bail!(other),
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(done)
}
