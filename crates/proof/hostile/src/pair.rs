//! A polite pair: each message is answered, and how long that took is known.
//!
//! Owns the longest time. Whether it is too long is for a judge to say, who knows what else the machine has to do.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use raas::{Listener, Stream};

use crate::host::{Host, WATCHDOG};
use crate::polite::session;

/// How long a thread sleeps that finds out how late it comes.
const NAP: Duration = Duration::from_millis(1);

/// Two programs, one of each host: each message is answered.
pub(crate) struct Pair {
    worst_us: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    asks: std::thread::JoinHandle<Result<()>>,
    answers: std::thread::JoinHandle<Result<()>>,
}

impl Pair {
    pub(crate) fn start(hosts: &[Host; 2]) -> Result<Self> {
        let (client, server) = (session(&hosts[0], "polite-asker")?, session(&hosts[1], "polite-answerer")?);
        let listener = Listener::bind_with(&server, (hosts[1].ip, 0))?;
        let stream = Stream::connect_with(&client, listener.local_addr()?)?;
        let (accepted, _) = listener.accept_timeout(WATCHDOG)?;
        let (worst_us, ends) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (worst, told) = (Arc::clone(&worst_us), Arc::clone(&ends));
        Ok(Self {
            worst_us,
            ends,
            asks: std::thread::spawn(move || ask(stream, &worst, &told)),
            answers: std::thread::spawn(move || answer(accepted)),
        })
    }

    /// The longest that a message took of those that ended in a time, and by how much a thread that only sleeps came late
    /// then: that is the machine's doing, whatever the daemons do.
    pub(crate) fn worst_in(&self, time: Duration) -> Result<(u64, u64)> {
        self.worst_us.store(0, Ordering::Relaxed);
        let (start, mut late) = (Instant::now(), Duration::ZERO);
        while start.elapsed() < time {
            let before = Instant::now();
            std::thread::sleep(NAP);
            late = late.max(before.elapsed().saturating_sub(NAP));
        }
        let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let start = Instant::now();
        loop {
            let worst = self.worst_us.load(Ordering::Relaxed);
            if worst > 0 {
                return Ok((worst, late));
            }
            ensure!(start.elapsed() < WATCHDOG && !self.asks.is_finished(), "no message is answered any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        for thread in [self.asks, self.answers] {
            thread.join().map_err(|_| anyhow!("a polite thread panicked"))??;
        }
        Ok(())
    }
}

fn ask(mut stream: Stream, worst_us: &AtomicU64, ends: &AtomicBool) -> Result<()> {
    stream.set_read_timeout(Some(WATCHDOG))?;
    while !ends.load(Ordering::Relaxed) {
        let start = Instant::now();
        stream.write_all(&[7; 64])?;
        stream.read_exact(&mut [0; 64]).context("no answer")?;
        worst_us.fetch_max(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(200));
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    Ok(())
}

fn answer(mut stream: Stream) -> Result<()> {
    stream.set_read_timeout(Some(WATCHDOG))?;
    let mut message = [0; 64];
    loop {
        if stream.read(&mut message[..1])? == 0 {
            return Ok(());
        }
        stream.read_exact(&mut message[1..])?;
        stream.write_all(&message)?;
    }
}
