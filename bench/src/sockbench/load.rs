//! Ping-pong and streams on one connection, and the serving side of every test.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::link::{Link, Listener};
use super::wire::{Spec, read_u64, write_u64};
use super::{Test, many, opens, streams};
use crate::{cpu, trips};

/// Writes between two looks at the clock, of small messages.
const WRITES: u32 = 64;
/// Messages from which on each write is followed by a look at the clock.
const LARGE_BYTES: u32 = 4096;
/// Buffer of a receiving side, where messages are shorter.
const RECEIVE_BYTES: u32 = 64 << 10;

/// Messages of a ping-pong or a stream so far; each way of a ping-pong is one.
static MESSAGES: AtomicU64 = AtomicU64::new(0);

fn note(messages: u64) {
    // Only this thread writes it.
    MESSAGES.store(MESSAGES.load(Ordering::Relaxed) + messages, Ordering::Relaxed);
}

/// Answers each line on stdin with `messages N`, until it ends.
fn tell_messages() {
    std::thread::spawn(|| {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            println!("messages {}", MESSAGES.load(Ordering::Relaxed));
        }
    });
}

/// Serves one client to its end.
pub(crate) fn serve(listener: &Listener) -> Result<()> {
    let link = listener.accept()?;
    let spec = Spec::hear(&link)?;
    match spec.test {
        Test::Lat => {
            let mut message = vec![0; spec.size_bytes as usize];
            // The client ends it by closing.
            while link.read_exact(&mut message).is_ok() {
                link.write_all(&message)?;
            }
            Ok(())
        }
        Test::Bw => {
            let mut buffer = vec![0; spec.size_bytes.max(RECEIVE_BYTES) as usize];
            let mut bytes = 0;
            loop {
                match link.read(&mut buffer)? {
                    0 => break,
                    n => bytes += n as u64,
                }
            }
            write_u64(&link, bytes)?;
            // Until the client has read it and closes.
            link.read(&mut buffer)?;
            Ok(())
        }
        Test::Many | Test::Hold | Test::Flood => many::serve(listener, &link, spec),
        Test::Opens => opens::serve(listener, &link, spec),
        Test::Streams => streams::serve(listener, &link, spec),
    }
}

/// When a load ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Time(Duration),
    /// Of a stream alone: then what it cost can be divided by them.
    Messages(u64),
}

/// What is done around a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    /// Other processes whose processor time is its cost.
    pub(crate) cpu_of: &'a [u32],
    /// A stream says when it begins and ends.
    pub(crate) announce: bool,
}

/// Runs a ping-pong or a stream.
pub(crate) fn run(link: &Link, spec: Spec, until: Until, around: Around<'_>) -> Result<Value> {
    let server = spec.agree(link)?;
    let mut pids = vec![std::process::id(), server];
    pids.extend(around.cpu_of);
    tell_messages();
    let before = cpu::of(&pids);
    let mut report = match (spec.test, until) {
        (Test::Lat, Until::Time(duration)) => ping_pong(link, spec, duration)?,
        (Test::Lat, Until::Messages(_)) => bail!("ping-pongs are measured for a time, not for a number of messages"),
        _ if around.announce => {
            println!("measuring");
            let report = stream(link, spec, until)?;
            println!("measured");
            report
        }
        _ => stream(link, spec, until)?,
    };
    // The server may be gone already after a ping-pong, whose cost nobody asks for.
    let seconds = cpu::of(&pids).saturating_sub(before).as_secs_f64();
    if let Some(bytes) = report["bytes"].as_f64().filter(|bytes| *bytes > 0.0) {
        report["cpu_seconds_per_gb"] = json!(seconds / (bytes / 1e9));
    }
    report["path"] = json!(link.path());
    report["size_bytes"] = json!(spec.size_bytes);
    Ok(report)
}

fn ping_pong(link: &Link, spec: Spec, duration: Duration) -> Result<Value> {
    let mut message = vec![0x5a; spec.size_bytes as usize];
    trips::measure(duration, || {
        link.write_all(&message)?;
        link.read_exact(&mut message)?;
        note(2);
        Ok(())
    })
}

fn stream(link: &Link, spec: Spec, until: Until) -> Result<Value> {
    let message = vec![0x5a; spec.size_bytes as usize];
    let writes = if spec.size_bytes >= LARGE_BYTES { 1 } else { WRITES };
    let begin = Instant::now();
    let mut sent = 0_u64;
    let goes_on = |sent: u64| match until {
        Until::Time(duration) => begin.elapsed() < duration,
        Until::Messages(messages) => sent < messages,
    };
    // At least once, also where a busy machine took the whole time away.
    while sent == 0 || goes_on(sent) {
        for _ in 0..writes {
            link.write_all(&message)?;
        }
        sent += u64::from(writes);
        note(writes.into());
    }
    link.finish()?;
    let bytes = read_u64(link)?;
    let seconds = begin.elapsed().as_secs_f64();
    anyhow::ensure!(bytes == sent * u64::from(spec.size_bytes), "{bytes} bytes arrived of {sent} messages");
    Ok(json!({
        "bytes": bytes,
        "seconds": seconds,
        "gbit_per_s": bytes as f64 * 8.0 / 1e9 / seconds,
        "msgs_per_s": sent as f64 / seconds,
    }))
}
