//! A load of commits, the same on all sides of bench `agree`: so many clients, each with one commit under way, as fast
//! as they go or at a rate. Owns what is said of it. `bench/openraft` has this file too.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Bytes of a command.
pub(crate) const COMMAND_BYTES: usize = 64;
/// The load runs for this part of the time before it counts.
const WARM_PART: u32 = 4;
/// Parts of a hundred of the times that are told.
const PARTS: [f64; 12] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0];

/// See the head of this file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) clients: u32,
    time: Duration,
    /// Commits a second of all clients together; 0: as many as can be.
    rate: f64,
}

impl Load {
    /// Of `CLIENTS SECONDS RATE`.
    pub(crate) fn parse(words: &str) -> Result<Self> {
        let mut words = words.split_whitespace();
        let mut word = || words.next().context("`load` takes clients, seconds and a rate");
        let (clients, seconds, rate) = (word()?.parse()?, word()?.parse()?, word()?.parse()?);
        Ok(Self { clients, time: Duration::try_from_secs_f64(seconds)?, rate })
    }

    /// The times of a client, which begins now.
    pub(crate) fn begin(&self) -> Times {
        let now = Instant::now();
        let warm = now + self.time / WARM_PART;
        let step =
            if self.rate > 0.0 { Duration::from_secs_f64(f64::from(self.clients) / self.rate) } else { Duration::ZERO };
        Times { warm, end: warm + self.time, next: now, step, total: 0, all: Vec::new() }
    }

    /// What the clients found.
    pub(crate) fn told(&self, clients: Vec<Times>) -> Value {
        let total: u64 = clients.iter().map(|times| times.total).sum();
        let mut all: Vec<Duration> = clients.into_iter().flat_map(|times| times.all).collect();
        all.sort_unstable();
        let at = |part: f64| {
            let place = (part / 100.0 * all.len() as f64) as usize;
            all.get(place.min(all.len().saturating_sub(1))).map(|time| time.as_secs_f64() * 1e6)
        };
        json!({
            "total": total, "commits": all.len(), "rate": all.len() as f64 / self.time.as_secs_f64(),
            "p50_us": at(50.0), "p99_us": at(99.0), "parts": PARTS, "times_us": PARTS.map(at),
        })
    }
}

/// When one client commits, and how long each took.
#[derive(Debug)]
pub(crate) struct Times {
    warm: Instant,
    end: Instant,
    next: Instant,
    step: Duration,
    /// Commits, also those that do not count.
    total: u64,
    all: Vec<Duration>,
}

impl Times {
    /// How long to wait before the next commit; none when the load is over.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let wait = self.next.saturating_duration_since(now);
        self.next += self.step;
        (now + wait < self.end).then_some(wait)
    }

    /// One that began then has ended.
    pub(crate) fn on_end(&mut self, begin: Instant) {
        let now = Instant::now();
        self.total += 1;
        if begin >= self.warm && now <= self.end {
            self.all.push(now - begin);
        }
    }
}

/// The clock that all processes of a machine share, in nanoseconds.
pub(crate) fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
