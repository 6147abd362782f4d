//! Many transfers of one file each: `raas recv` and `raas send`, two processes that come, transfer and go.
//!
//! Owns the count of those that say something else than what happened. A receiver closes and leaves at once, so that
//! its last words, its end in order and its death race each other to the sender: whatever order they come in, a file
//! that is whole was sent well.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

use crate::host::{Host, Program, address};
use crate::verdict::Verdict;

/// Transfers that are under way at a time.
const AT_ONCE: u32 = 4;
/// First of the ports that receivers listen on, one of [`PORTS`] for each transfer of a worker in turn.
const PORT_FIRST: u16 = 20_000;
/// Ports of a worker.
const PORTS: u16 = 1000;
/// Longest file in bytes: more than a ring.
const FILE_BYTES_MAX: usize = 300_000;
/// False reports that are printed in full.
const WORDS_MAX: usize = 5;

/// Runs `count` transfers between two hosts and as many within one; the seed decides lengths and contents.
pub fn run(raas: Program<'_>, seed: u64, count: u32, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (a, b) = (Host::start(raas, dir.path(), address(), "")?, Host::start(raas, dir.path(), address(), "")?);
    for (place, from, to) in [("between two hosts", &a, &b), ("within one host", &a, &a)] {
        let found = many(&Road { raas, dir: dir.path(), from, to }, seed, count);
        verdict.case(&format!("transfers {place}: whole, and no sender or receiver says otherwise"), found);
    }
    verdict.case("the lane is on a wire that was asked for", a.wire(raas.wire).map(|wire| wire.to_string()));
    a.stop()?;
    b.stop()
}

/// From where to where.
struct Road<'a> {
    raas: Program<'a>,
    dir: &'a Path,
    from: &'a Host,
    to: &'a Host,
}

fn many(road: &Road<'_>, seed: u64, count: u32) -> Result<String> {
    let next = AtomicU32::new(0);
    let failed: Vec<anyhow::Error> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE.min(count))
            .map(|worker| {
                let next = &next;
                scope.spawn(move || {
                    let mut failed = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return failed;
                        }
                        let one = road.one(seed, worker, number);
                        failed.extend(one.err().map(|e| e.context(format!("transfer {number}"))));
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|w| w.join().unwrap_or_else(|_| vec![anyhow!("a worker panicked")])).collect()
    });
    let words: Vec<String> = failed.iter().take(WORDS_MAX).map(|e| format!("{e:#}")).collect();
    ensure!(failed.is_empty(), "{} of {count} failed: {}", failed.len(), words.join("; "));
    Ok(format!("{count} transfers, 0 false reports"))
}

impl Road<'_> {
    /// One file, by two processes.
    fn one(&self, seed: u64, worker: u32, number: u32) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed ^ u64::from(number) << 32);
        // Half of them fit a packet, where the end comes with the bytes.
        let len = if rng.random_bool(0.5) { rng.random_range(0..2000) } else { rng.random_range(0..FILE_BYTES_MAX) };
        let mut bytes = vec![0; len];
        rng.fill_bytes(&mut bytes);
        let [source, target] = ["source", "target"].map(|name| self.dir.join(format!("{name}{worker}")));
        std::fs::write(&source, &bytes)?;
        let worker_port = PORT_FIRST + u16::try_from(worker)? * PORTS;
        let port = worker_port + u16::try_from(number % u32::from(PORTS))?;
        let mut recv = self.command(self.to);
        recv.args(["recv", &port.to_string(), "-o"]).arg(&target);
        let mut receiver = Running::start(recv)?;
        receiver.wait_until_it_listens()?;
        let mut send = self.command(self.from);
        send.arg("send").arg(&source).arg(format!("{}:{port}", self.to.ip));
        let sent = Running::start(send)?.end()?;
        let received = receiver.end()?;
        let is_whole = std::fs::read(&target)? == bytes;
        ensure!(is_whole, "the file of {len} bytes arrived otherwise; send: {sent:?}, recv: {received:?}");
        ensure!(
            sent.is_empty() && received.is_empty(),
            "{len} bytes arrived whole; send: {sent:?}, recv: {received:?}"
        );
        Ok(())
    }

    fn command(&self, host: &Host) -> Command {
        let mut command = Command::new(self.raas.path);
        command.env("RAAS_SOCKET", &host.socket).env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

/// One of the two processes.
struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.spawn().context("cannot start `raas`")?;
        let stderr = child.stderr.take().context("stderr was asked for")?;
        Ok(Self { child, stderr: BufReader::new(stderr) })
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let mut line = String::new();
        while self.stderr.read_line(&mut line)? > 0 {
            if line.starts_with("listening on ") {
                return Ok(());
            }
            line.clear();
        }
        Err(anyhow!("the receiver did not listen"))
    }

    /// Waits for its end. What it complained of: nothing, if all went well.
    fn end(mut self) -> Result<String> {
        let mut words = String::new();
        self.stderr.read_to_string(&mut words)?;
        let status = self.child.wait()?;
        Ok(if status.success() { String::new() } else { format!("{status}: {}", words.trim()) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
