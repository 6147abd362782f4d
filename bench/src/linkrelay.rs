//! A wire of a bench: a relay between two taps, which loses, delays, reorders, queues and marks frames by a model
//! (crate `netmodel`) and a seed. It has no offloads: a tap gets each packet by itself, as a wire does.
//!
//! It makes both taps in its own network namespace; whoever started it moves one of them into another, and gives both a
//! long queue (`txqueuelen`): the relay's own queue is the one that counts, and theirs must hold what comes while the
//! relay waits for a processor. On its stdin it takes lines: `set SETTINGS`, with settings as JSON, and `stats`. It ends
//! with its stdin.

mod ecn;
mod port;
mod relay;
mod settings;
mod stats;

use std::io::BufRead;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use verbs::Time;

use self::port::Tap;
use self::relay::Relay;
use self::settings::Settings;

/// Sleeps end this late by themselves, in nanoseconds; the kernel's default is 50 us.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Name of the tap that stays.
    #[arg(long)]
    near: String,
    /// Name of the other one.
    #[arg(long)]
    far: String,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    let taps = [Tap::make(&cli.near)?, Tap::make(&cli.far)?];
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS)).context("asking for exact timers")?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    println!("ready");
    let origin = Instant::now();
    run(Relay::new(taps, Settings::default()), &lines, || Time(origin.elapsed().as_nanos() as u64))
}

/// Carries frames until the commands end.
fn run(mut relay: Relay<Tap>, lines: &Receiver<String>, mut clock: impl FnMut() -> Time) -> Result<()> {
    loop {
        match lines.try_recv() {
            Ok(line) => obey(&mut relay, clock(), &line),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        if !relay.turn(&mut clock)? {
            port::wait(relay.ports(), relay.next_at().map(|at| at.saturating_since(clock())))?;
        }
    }
}

/// Does what a line says, and prints the answer: `set`, `stats JSON` or `error WHY`.
fn obey(relay: &mut Relay<Tap>, now: Time, line: &str) {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("set", json) => match serde_json::from_str(json) {
            Ok(settings) => {
                relay.set(now, settings);
                println!("set");
            }
            Err(e) => println!("error these are no settings of a link: {e}: {json}"),
        },
        ("stats", "") => println!("stats {}", relay.stats(now)),
        _ => println!("error there is `set SETTINGS` and `stats`, not: {line}"),
    }
}
