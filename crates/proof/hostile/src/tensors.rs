//! Judge `tensors`: a pool whose tensors come and go, read by programs of its host and of another one, while readers, owners
//! and daemons are killed or stand still.
//!
//! Owns what must hold: whoever gets a tensor, by its name or by a reference, has the bytes of that generation of that pool,
//! or an error; and no block stays with the dead. Each word of a tensor says which pool and generation it is of.

pub mod owner;
pub mod reader;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use raas::RegionKey;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};

use crate::host::{Host, Program, WATCHDOG, address};
use crate::verdict::Verdict;

pub(crate) const POOL: &str = "tensors";
pub(crate) const KEY: RegionKey = RegionKey::new([0x52; 16]);
pub(crate) const POOL_BYTES: u64 = 256 << 10;

/// Rounds of each kind, however many tries they have.
const ROUNDS_MIN: u64 = 8;

/// What each word of a tensor says.
pub(crate) fn word(pool: u64, generation: u64) -> u64 {
    generation.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pool
}

/// What happens in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// Nothing.
    Nothing,
    /// A reader of the pool's host is killed.
    NearReader,
    /// A reader of another host is killed.
    FarReader,
    /// A reader stands still for a while.
    Still,
    /// The pool is revoked.
    Revoke,
    /// The owner's program is killed, and another one makes the pool anew.
    Owner,
    /// The daemon of the pool's host is killed.
    OwnerDaemon,
    /// The daemon of the other host is killed.
    ReaderDaemon,
}

/// Runs it: rounds of all kinds in turn, until there were so many tries of each.
pub fn run(raas: Program<'_>, seed: u64, count: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ips = [address(), address()];
    let start = |side: usize| Host::start(raas, dir.path(), ips[side], "");
    let hosts = [start(0)?, start(1)?];
    let owner = Process::owner(&hosts[0].socket, seed)?;
    let mut field = Field { hosts, owner, rng: SmallRng::seed_from_u64(seed), number: 0, restart: &start };
    let all = Fault::value_variants();
    for fault in all {
        let mut sums = Sums::default();
        let each = count.div_ceil(all.len() as u64);
        let mut ended = Ok(());
        while ended.is_ok() && (sums.tries() < each || sums.rounds < ROUNDS_MIN) {
            ended = field.round(*fault, &mut sums).with_context(|| format!("round {}", field.number));
        }
        let name = match fault {
            Fault::Nothing => "tensors are of their generation while they come and go",
            Fault::NearReader => "the same when a reader of the host is killed, and its pins are back",
            Fault::FarReader => "the same when a reader of another host is killed, and its pins are back",
            Fault::Still => "the same when a reader stands still",
            Fault::Revoke => "the same when the pool is revoked",
            Fault::Owner => "the same when the owner is killed, and the next pool is another one",
            Fault::OwnerDaemon => "the same when the daemon of the pool's host is killed",
            Fault::ReaderDaemon => "the same when the reader's daemon is killed",
        };
        verdict.case(name, ended.map(|()| sums.told()));
    }
    verdict.case("no block stays with the dead", field.owner.emptied());
    drop(field.owner);
    field.hosts.into_iter().try_for_each(Host::stop)
}

/// What readers found.
#[derive(Debug, Default)]
struct Sums {
    rounds: u64,
    found: BTreeMap<String, u64>,
    back: Vec<Duration>,
}

impl Sums {
    fn tries(&self) -> u64 {
        self.found.values().sum()
    }

    fn told(&self) -> String {
        let found: Vec<String> = self.found.iter().map(|(what, times)| format!("{what} {times}")).collect();
        let back = match self.back.iter().max() {
            Some(longest) => format!("; pins back within {:.0} ms", longest.as_secs_f64() * 1e3),
            None => String::new(),
        };
        format!("{} rounds: {}{back}", self.rounds, found.join(", "))
    }
}

/// Hosts and the owner.
struct Field<'a> {
    hosts: [Host; 2],
    owner: Process,
    rng: SmallRng,
    number: u64,
    restart: &'a dyn Fn(usize) -> Result<Host>,
}

impl Field<'_> {
    fn round(&mut self, fault: Fault, sums: &mut Sums) -> Result<()> {
        self.number += 1;
        sums.rounds += 1;
        if matches!(fault, Fault::NearReader | Fault::FarReader) {
            return self.reader_dies(usize::from(fault == Fault::FarReader), sums);
        }
        let mut readers = [self.reader(0)?, self.reader(1)?];
        self.pause(20..120);
        match fault {
            Fault::Nothing | Fault::NearReader | Fault::FarReader => {}
            Fault::Still => {
                let stopped = Stopped::new(readers[self.rng.random_range(0..2)].child.id())?;
                self.pause(20..200);
                drop(stopped);
            }
            Fault::Revoke => {
                let said = self.owner.ask("revoke")?;
                ensure!(said == "revoked", "the owner says: {said}");
            }
            Fault::Owner => {
                self.owner.kill()?;
                self.pause(0..60);
                self.owner = Process::owner(&self.hosts[0].socket, self.rng.random())?;
            }
            Fault::OwnerDaemon | Fault::ReaderDaemon => {
                let side = usize::from(fault == Fault::ReaderDaemon);
                self.hosts[side].kill()?;
                self.pause(0..60);
                self.hosts[side] = (self.restart)(side)?;
            }
        }
        self.pause(20..120);
        for reader in &mut readers {
            reader.end(sums)?;
        }
        Ok(())
    }

    /// Nothing is held by it any more, soon after.
    fn reader_dies(&mut self, side: usize, sums: &mut Sums) -> Result<()> {
        let mut whole = self.reader(side)?;
        let mut dies = self.reader(side)?;
        self.pause(20..150);
        whole.end(sums)?;
        dies.kill()?;
        let begin = Instant::now();
        loop {
            let said = self.owner.ask("pins")?;
            if said == "pins 0" {
                break;
            }
            ensure!(begin.elapsed() < WATCHDOG, "the dead reader's pins stay: {said}");
        }
        sums.back.push(begin.elapsed());
        Ok(())
    }

    fn reader(&mut self, side: usize) -> Result<Process> {
        Process::reader(&self.hosts[side].socket, self.hosts[0].ip, self.rng.random())
    }

    fn pause(&mut self, millis: std::ops::Range<u64>) {
        std::thread::sleep(Duration::from_millis(self.rng.random_range(millis)));
    }
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

/// An owner or a reader, which ends when its standard input does.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    says: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn owner(socket: &Path, seed: u64) -> Result<Self> {
        Self::start(&["tensor-owner", "--seed", &seed.to_string(), "--socket"], socket)
    }

    fn reader(socket: &Path, host: IpAddr, seed: u64) -> Result<Self> {
        let words = ["tensor-reader", "--host", &host.to_string(), "--seed", &seed.to_string(), "--socket"];
        Self::start(&words, socket)
    }

    fn start(words: &[&str], socket: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().context("its output")?);
        let mut process = Self { child, stdin, says: BufReader::new(stdout).lines() };
        let ready = process.line()?;
        ensure!(ready == "ready", "{words:?} says: {ready}");
        Ok(process)
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.says.next().context("the process ended without a word")??)
    }

    fn ask(&mut self, words: &str) -> Result<String> {
        writeln!(self.stdin.as_mut().context("its input")?, "{words}")?;
        self.line()
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Of a reader: what it found.
    fn end(&mut self, sums: &mut Sums) -> Result<()> {
        drop(self.stdin.take());
        let line = self.line()?;
        for found in line.split_whitespace() {
            let (what, times) = found.split_once('=').with_context(|| format!("a reader says: {line}"))?;
            *sums.found.entry(what.to_owned()).or_default() += times.parse::<u64>()?;
        }
        ensure!(self.child.wait()?.success(), "a reader failed: {line}");
        Ok(())
    }

    /// Of an owner, when no reader is left.
    fn emptied(&mut self) -> Result<String> {
        let begin = Instant::now();
        loop {
            let said = self.ask("empty")?;
            if said == format!("free {}", POOL_BYTES - tensor::HEADER_BYTES) {
                return Ok(said);
            }
            ensure!(begin.elapsed() < WATCHDOG, "blocks stay: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.kill();
    }
}
