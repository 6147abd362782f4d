//! A server of a comparison: it is ready when it listens or says so, and ends with its whole process group.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use harness::child::{self, Stream};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::place::{End, Place};
use crate::process::{Beside, READY_WITHIN};

const LISTEN_LIMIT: Duration = Duration::from_secs(30);
/// How long a server has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// Runs of a client in which a connection over RaaS must be seen.
const SEEN_WITHIN: u32 = 10;
/// State of a listening socket in /proc/net/tcp.
const LISTENS: &str = "0A";
/// Path of a connection that is not over RaaS, in `raas ss`, and the reason of one whose two ends look before they sleep.
const TCP: &str = "tcp";
const POLLED: &str = "polled-tcp";

/// How a server shows that it serves.
#[derive(Debug, Clone)]
pub(super) enum Ready {
    /// The kernel has a listener at the port.
    Listens(u16),
    /// It prints a line that begins so.
    Says(&'static str),
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct Serving(Beside);

impl Serving {
    pub(super) fn start(place: &Place, words: &[String], ready: &Ready) -> Result<Self> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut serving = Self(Beside::start(&mut place.command(End::Server, &words))?);
        match ready {
            Ready::Listens(port) => wait_port(place, *port)?,
            Ready::Says(prefix) => drop(serving.0.wait_line(prefix, READY_WITHIN)?),
        }
        Ok(serving)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The rest of the next line that begins so.
    pub(super) fn wait_line(&mut self, prefix: &str, within: Duration) -> Result<String> {
        self.0.wait_line(prefix, within)
    }
}

impl Drop for Serving {
    /// Politely, so that workers end with their master, and then for certain. The group is its leader's, who is waited
    /// for last.
    fn drop(&mut self) {
        let Some(group) = i32::try_from(self.0.pid()).ok().and_then(Pid::from_raw) else { return };
        for signal in [Signal::TERM, Signal::KILL] {
            // It is gone already if this fails.
            let _ = kill_process_group(group, signal);
            let sent = Instant::now();
            while sent.elapsed() < GRACE && !self.0.has_ended() {
                std::thread::sleep(POLL);
            }
        }
    }
}

/// Waits until the port is listened on, as the kernel of the server's host tells.
fn wait_port(place: &Place, port: u16) -> Result<()> {
    let wanted = format!(":{port:04X}");
    let begin = Instant::now();
    while begin.elapsed() < LISTEN_LIMIT {
        let told = child::run_quiet(
            &mut place.command(End::Server, &["cat", "/proc/net/tcp", "/proc/net/tcp6"]),
            LISTEN_LIMIT,
        )?;
        if told.text(Stream::Out).lines().any(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            cells.len() > 3 && cells[1].ends_with(&wanted) && cells[3] == LISTENS
        }) {
            return Ok(());
        }
    }
    bail!("nobody listens on port {port}")
}

/// Runs `work` until the server's daemon has a connection meanwhile that is over RaaS and carried bytes, or whose two ends
/// know that they stay on TCP between software NICs; fails if it never has: what is on TCP because an end is missing would
/// be measured as RaaS. Work may be over before anybody looks, and so it is run several times.
pub(super) fn over_raas<T>(place: &Place, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut ss = place.command(End::Server, &[&place.program("raas"), "ss", "--json"]);
    for _ in 0..SEEN_WITHIN {
        let is_over = AtomicBool::new(false);
        let (done, is_seen) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut is_seen = false;
                while !is_seen && !is_over.load(Ordering::Relaxed) {
                    is_seen = is_carried(&mut ss);
                }
                is_seen
            });
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            (done, watch.join().expect("it asks a program and reads its answer"))
        });
        let done = done?;
        if is_seen {
            return Ok(done);
        }
    }
    bail!("no connection was seen over RaaS in {SEEN_WITHIN} runs: are all of them on kernel TCP?")
}

fn is_carried(ss: &mut Command) -> bool {
    let Ok(output) = ss.output() else { return false };
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told["connections"].as_array().into_iter().flatten().any(|row| {
        let carried = ["tx_bytes", "rx_bytes"].iter().any(|key| row[*key].as_u64().is_some_and(|bytes| bytes > 0));
        carried && row["path"].as_str().is_some_and(|path| path != TCP) || row["reason"] == POLLED
    })
}
