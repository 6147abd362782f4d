//! The same messages through bare relays: as many processes as there are daemons, and nothing else. They are still while
//! it is not their turn.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bare::{BareRing, BareSegment, RING_BYTES, Wait};
use crate::star::head;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::cost::Used;
use super::flow::LAST;

/// The ring between the application and the relay in the middle.
const CENTER_RING_BYTES: u64 = 4 << 20;

/// A relay.
#[derive(Debug)]
struct Relay {
    process: Child,
    ring: BareRing,
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It has ended already if this fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One relay in the middle and its leaves.
#[derive(Debug)]
pub(crate) struct Star {
    center: Relay,
    leaves: Vec<Relay>,
    size: usize,
}

impl Star {
    /// The star number `place` of this process, from 0. Its leaves together hold as much as the rings of all connections
    /// do, of `ring_bytes` each.
    pub(crate) fn start(place: usize, leaves: usize, size: usize, rings: (usize, u64)) -> Result<Self> {
        let net = u8::try_from(120 + place).context("too many stars")?;
        let (connections, ring_bytes) = rings;
        let each = (connections as u64 * ring_bytes).div_ceil(leaves as u64).next_power_of_two();
        let each = each.clamp(*RING_BYTES.start(), *RING_BYTES.end()).to_string();
        let mut addresses = Vec::new();
        let mut started = Vec::new();
        for number in 1..=leaves {
            let [high, low] = u16::try_from(number)?.to_be_bytes();
            let listen = format!("{}:0", IpAddr::from([127, net, high, low]));
            let (relay, address) = start(&["--ring-bytes", &each, "leaf", "--listen", &listen])?;
            addresses.push(address.context("a leaf says where it listens")?);
            started.push(relay);
        }
        let own = CENTER_RING_BYTES.to_string();
        let to = addresses.iter().flat_map(|address| ["--to", address]);
        let words: Vec<&str> = ["--ring-bytes", own.as_str(), "center"].into_iter().chain(to).collect();
        let (center, _) = start(&words)?;
        let star = Self { center, leaves: started, size };
        star.signal(Signal::STOP)?;
        Ok(star)
    }

    /// The relay in the middle waits by yielding, which would take from others.
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.center.process);
        kill_process(pid, signal).context("signalling the relay in the middle")
    }

    /// Messages for so long to all leaves in turn, and `least` of them; Gbit/s, and what the one in the middle took a
    /// gigabyte.
    pub(crate) fn run(&mut self, duration: Duration, least: usize) -> Result<(f64, f64)> {
        let before = Used::of(self.center.process.id())?;
        self.signal(Signal::CONT)?;
        let (begin, size, count) = (Instant::now(), self.size, self.leaves.len());
        let Self { center, leaves, .. } = self;
        let messages = std::thread::scope(|scope| {
            let reader = scope.spawn(move || read_turn(leaves, size));
            let written = write_turn(&center.ring, count, size, (duration, least))?;
            let read = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
            ensure!(read == written, "{read} messages of {written} arrived");
            anyhow::Ok(read)
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        self.signal(Signal::STOP)?;
        let used = Used::of(self.center.process.id())? - before;
        let gigabytes = (messages * size as u64) as f64 / 1e9;
        Ok((gigabytes * 8.0 / seconds, used.seconds / gigabytes))
    }
}

fn write_turn(ring: &BareRing, leaves: usize, size: usize, (duration, least): (Duration, usize)) -> Result<u64> {
    let (begin, mut message, mut messages) = (Instant::now(), vec![0; size], 0);
    loop {
        for leaf in 0..leaves {
            let is_last = messages + 1 >= least && begin.elapsed() >= duration;
            message[0] = if is_last { LAST } else { 0 };
            for part in [&head(u32::try_from(leaf)?, u32::try_from(size)?)[..], &message] {
                let mut rest = part;
                while !rest.is_empty() {
                    rest = &rest[ring.write(rest)?..];
                }
            }
            messages += 1;
            if is_last {
                return Ok(messages as u64);
            }
        }
    }
}

fn read_turn(leaves: &mut [Relay], size: usize) -> Result<u64> {
    let mut message = vec![0; size];
    let mut messages = 0;
    loop {
        for leaf in leaves.iter_mut() {
            let mut filled = 0;
            while filled < size {
                let count = leaf.ring.read(&mut message[filled..])?;
                ensure!(count > 0, "a leaf has ended");
                filled += count;
            }
            messages += 1;
            if message.first() == Some(&LAST) {
                return Ok(messages);
            }
        }
    }
}

/// Starts a relay, which is another program of this file; also says where it is bound, if it says that.
fn start(words: &[&str]) -> Result<(Relay, Option<String>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("barehub").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().context("cannot start a bare relay")?;
    let ready = (|| {
        let mut lines = BufReader::new(process.stdout.take().context("stdout is piped")?).lines();
        let mut bound = None;
        loop {
            let line = lines.next().context("a relay ended before it was ready")??;
            if let Some(address) = line.strip_prefix("bound ") {
                bound = Some(address.to_owned());
            } else if let Some(path) = line.strip_prefix("ready ") {
                return anyhow::Ok((BareSegment::open(path)?.end(true, Wait::Yield)?, bound));
            }
        }
    })();
    match ready {
        Ok((ring, bound)) => Ok((Relay { process, ring }, bound)),
        Err(error) => {
            let _ = process.kill();
            let _ = process.wait();
            Err(error)
        }
    }
}
