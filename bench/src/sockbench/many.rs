//! Many connections between two processes: messages on all in turn, beside the same on a few, in alternating halves of
//! rounds; and connections that carried something and then rest.
//!
//! Both sides go through the connections in the same order, so a blocking read never waits for a message that the other
//! side sends only after it was read.

use std::io::{BufRead, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::link::{Link, Listener};
use super::wire::{Spec, read_u64, write_u64};

/// Bytes that each connection carries each way before it rests.
const CARRIED_BYTES: usize = 64 << 10;
/// Turns before anything is measured, so that every page of every ring has been touched once.
const WARM_UP_TURNS: u64 = 5;
/// First byte of the last message of a half.
const LAST: u8 = 1;

/// Commands on the first connection: how many connections to read from in turn, or one of these.
const CARRY: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

/// Serves the other connections as the first one says.
pub(crate) fn serve(listener: &Listener, control: &Link, spec: Spec) -> Result<()> {
    let links = (0..spec.connections).map(|_| listener.accept()).collect::<Result<Vec<_>>>()?;
    write_u64(control, links.len() as u64)?;
    let mut message = vec![0; spec.size_bytes as usize];
    let mut carried = vec![0; CARRIED_BYTES];
    loop {
        // A client that dies ends it too.
        match read_u64(control).unwrap_or(END) {
            END => return Ok(()),
            CARRY => {
                for link in &links {
                    link.read_exact(&mut carried)?;
                    link.write_all(&carried)?;
                }
            }
            count => {
                let turn = links.get(..usize::try_from(count)?).context("more connections than there are")?;
                let mut messages = 0_u64;
                for link in turn.iter().cycle() {
                    link.read_exact(&mut message)?;
                    messages += 1;
                    if message.first() == Some(&LAST) {
                        break;
                    }
                }
                write_u64(control, messages)?;
            }
        }
    }
}

fn open(connect: &dyn Fn() -> Result<Link>, spec: Spec) -> Result<(Link, Vec<Link>)> {
    let control = connect()?;
    spec.agree(&control)?;
    let links = (0..spec.connections).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    ensure!(read_u64(&control)? == u64::from(spec.connections), "the server has other connections");
    Ok((control, links))
}

/// Rounds of both halves; the half that begins changes each round.
pub(crate) fn compare(
    connect: &dyn Fn() -> Result<Link>,
    spec: Spec,
    half: Duration,
    base: u32,
    rounds: u32,
) -> Result<Value> {
    ensure!(base >= 1 && base <= spec.connections, "the base is 1 to {} connections", spec.connections);
    let begin = Instant::now();
    let (control, links) = open(connect, spec)?;
    let open_seconds = begin.elapsed().as_secs_f64();
    let mut values = [Vec::new(), Vec::new()];
    let counts = [base as usize, links.len()];
    for count in counts {
        let turn = links.get(..count).unwrap_or_default();
        stream(&control, turn, spec, Duration::ZERO, WARM_UP_TURNS)?;
    }
    for round in 0..rounds {
        for place in [round % 2, 1 - round % 2] {
            let place = place as usize;
            let turn = links.get(..counts[place]).unwrap_or_default();
            values[place].push(stream(&control, turn, spec, half, 1)?);
        }
    }
    write_u64(&control, END)?;
    let [base_values, all_values] = values;
    Ok(json!({
        "connections": spec.connections, "base": base, "size_bytes": spec.size_bytes, "path": control.path(),
        "open_seconds": open_seconds, "gbit_per_s": all_values, "base_gbit_per_s": base_values,
    }))
}

/// Messages on these connections in turn, for so long and so many turns at least; Gbit/s.
fn stream(control: &Link, links: &[Link], spec: Spec, duration: Duration, turns: u64) -> Result<f64> {
    write_u64(control, links.len() as u64)?;
    let mut message = vec![0; spec.size_bytes as usize];
    let begin = Instant::now();
    let mut messages = 0_u64;
    let least = turns.saturating_mul(links.len() as u64);
    for link in links.iter().cycle() {
        let is_last = messages + 1 >= least && begin.elapsed() >= duration;
        message[0] = if is_last { LAST } else { 0 };
        link.write_all(&message)?;
        messages += 1;
        if is_last {
            break;
        }
    }
    ensure!(read_u64(control)? == messages, "messages are missing");
    let bytes = messages * u64::from(spec.size_bytes);
    Ok(bytes as f64 * 8.0 / 1e9 / begin.elapsed().as_secs_f64())
}

/// Opens the connections, carries something on each, says `holding`, and waits until stdin ends.
pub(crate) fn hold(connect: &dyn Fn() -> Result<Link>, spec: Spec) -> Result<()> {
    let (control, links) = open(connect, spec)?;
    write_u64(&control, CARRY)?;
    let mut carried = vec![0x5a; CARRIED_BYTES];
    for link in &links {
        link.write_all(&carried)?;
        link.read_exact(&mut carried)?;
        if carried.iter().any(|byte| *byte != 0x5a) {
            bail!("other bytes came back");
        }
    }
    println!("holding {}", links.len());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    write_u64(&control, END)?;
    Ok(())
}

/// Messages of the flood so far, and whether it is to end.
static FLOODED: AtomicU64 = AtomicU64::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Opens the connections, says `flooding`, and writes messages on them in turn until stdin ends.
pub(crate) fn flood(connect: &dyn Fn() -> Result<Link>, spec: Spec) -> Result<()> {
    let (control, links) = open(connect, spec)?;
    write_u64(&control, links.len() as u64)?;
    std::thread::spawn(|| {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            println!("messages {}", FLOODED.load(Ordering::Relaxed));
        }
        IS_OVER.store(true, Ordering::Relaxed);
    });
    println!("flooding {}", links.len());
    let mut message = vec![0; spec.size_bytes as usize];
    for link in links.iter().cycle() {
        let is_last = IS_OVER.load(Ordering::Relaxed);
        message[0] = if is_last { LAST } else { 0 };
        link.write_all(&message)?;
        let messages = FLOODED.fetch_add(1, Ordering::Relaxed) + 1;
        if is_last {
            ensure!(read_u64(&control)? == messages, "messages are missing");
            break;
        }
    }
    write_u64(&control, END)?;
    Ok(())
}
