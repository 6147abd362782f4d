//! The threads of a load, each with its handles. Counting begins for all at one moment, after all handles are open.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::choice::Choice;
use crate::{cpu, pattern};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use raas::{Batch, Pending, Region, RegionOptions, Session};
use serde_json::{Value, json};

use super::{LoadArgs, Verb};

/// Three digits of a time in nanoseconds, up to a minute.
const DIGITS: u8 = 3;
const TIME_MAX_NS: u64 = 60_000_000_000;
/// Share of the time that warms up and is not counted.
const WARM_UP: f64 = 0.1;
/// Additions that are submitted together; with fewer outstanding, all.
const ADDITIONS: u64 = 16;

/// When counting begins, and when nothing more is begun.
struct Times {
    start: Barrier,
    is_counted: AtomicBool,
    is_over: AtomicBool,
}

/// What a thread did in the time that counts.
struct Worked {
    operations: u64,
    times: Histogram<u64>,
}

/// Operations that were submitted together.
struct UnderWay {
    pending: Pending,
    operations: u64,
    /// Of a READ: its place in the local region, and from where it reads.
    read: Option<(u64, u64)>,
    begin: Instant,
}

/// One thread's load.
struct Worker {
    load: LoadArgs,
    regions: Vec<Region>,
    /// Where READs put their bytes: memory of this program that its daemon knows, as a native program's is registered.
    local: Option<Region>,
    /// Places of it that nothing uses.
    free: Vec<u64>,
    under_way: VecDeque<UnderWay>,
    choice: Choice,
    times: Histogram<u64>,
}

pub(crate) fn run(load: &LoadArgs) -> Result<Value> {
    let sessions = load.threads / load.share;
    let socket = Session::global()?.socket().to_owned();
    let sessions = (0..sessions).map(|_| Session::connect(&socket)).collect::<Result<Vec<_>, _>>()?;
    let times = Arc::new(Times {
        start: Barrier::new(load.threads as usize + 1),
        is_counted: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    });
    let opening = Instant::now();
    let threads: Vec<_> = (0..load.threads)
        .map(|number| {
            let session = sessions[(number / load.share) as usize].clone();
            let (times, load) = (Arc::clone(&times), load.clone());
            std::thread::spawn(move || {
                let worker = Worker::open(load, &session, number);
                // Also after a failure, so that nobody waits for ever.
                times.start.wait();
                worker?.work(&times)
            })
        })
        .collect();
    times.start.wait();
    let open_seconds = opening.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs_f64(load.seconds * WARM_UP));
    let mut pids = vec![std::process::id()];
    pids.extend(&load.cpu_of);
    let processor = cpu::of(&pids);
    times.is_counted.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    if load.rate > 0 {
        println!("counting");
    }
    std::thread::sleep(Duration::from_secs_f64(load.seconds));
    times.is_over.store(true, Ordering::Relaxed);
    let seconds = begin.elapsed().as_secs_f64();
    let processor = cpu::of(&pids).saturating_sub(processor).as_secs_f64();
    let (mut operations, mut all) = (0, Histogram::new_with_bounds(1, TIME_MAX_NS, DIGITS)?);
    for thread in threads {
        let worked = thread.join().ok().context("a thread panicked")??;
        operations += worked.operations;
        all.add(worked.times)?;
    }
    let rate = operations as f64 / seconds;
    let us = |percent: f64| all.value_at_percentile(percent) as f64 / 1e3;
    Ok(json!({
        "operations": operations, "seconds": seconds, "ops_per_s": rate, "open_seconds": open_seconds,
        "gbit_per_s": rate * f64::from(load.size) * 8.0 / 1e9, "cpu_seconds": processor,
        "p50_us": us(50.0), "p99_us": us(99.0),
    }))
}

impl Worker {
    fn open(load: LoadArgs, session: &Session, number: u32) -> Result<Self> {
        // Each thread has at least one handle, and the first threads have those that are left over.
        let (each, left) = (load.connections / load.threads, load.connections % load.threads);
        let count = (each + u32::from(number < left)).max(1);
        let regions = (0..count)
            .map(|handle| {
                let place = (number + handle) as usize % load.host.len();
                Region::open(session, load.host[place], &load.name, load.key[place])
            })
            .collect::<Result<Vec<_>, _>>()?;
        let local = if load.verb == Verb::Read {
            let name = format!("regionbench-{}-{number}", std::process::id());
            let bytes = place_bytes(&load) * u64::from(load.depth);
            let region = RegionOptions::new().create(session, &name, bytes)?;
            // Touched once, so that page faults are not measured.
            pattern::pages(bytes).try_for_each(|page| region.write(page, &[0]))?;
            Some(region)
        } else {
            None
        };
        Ok(Self {
            regions,
            local,
            free: (0..u64::from(load.depth)).collect(),
            under_way: VecDeque::new(),
            choice: Choice::new(u64::from(number) + 1),
            times: Histogram::new_with_bounds(1, TIME_MAX_NS, DIGITS)?,
            load,
        })
    }

    fn work(mut self, times: &Times) -> Result<Worked> {
        let pause = (self.load.rate > 0).then(|| Duration::from_secs(1) / self.load.rate);
        let (mut operations, mut due, mut is_counted) = (0, Instant::now(), false);
        while !times.is_over.load(Ordering::Relaxed) {
            if !is_counted && times.is_counted.load(Ordering::Relaxed) {
                (is_counted, operations) = (true, 0);
                self.times.reset();
            }
            if let Some(pause) = pause {
                due = (due + pause).max(Instant::now());
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            while let Some(next) = self.begin()? {
                self.under_way.push_back(next);
            }
            operations += self.end()?;
        }
        while !self.under_way.is_empty() {
            self.end()?;
        }
        ensure!(is_counted || operations == 0, "the time that counts was over before it began");
        Ok(Worked { operations, times: self.times })
    }

    /// Begins what still fits beside what is under way.
    fn begin(&mut self) -> Result<Option<UnderWay>> {
        let region = &self.regions[self.choice.below(self.regions.len() as u64) as usize];
        let (mut batch, begin) = (Batch::new(), Instant::now());
        let (operations, read) = if let Some(local) = &self.local {
            let Some(place) = self.free.pop() else { return Ok(None) };
            let places = (region.bytes() - u64::from(self.load.size)) / pattern::PAGE_BYTES + 1;
            let offset = self.choice.below(places) * pattern::PAGE_BYTES;
            let slice = local.slice(place * place_bytes(&self.load), self.load.size.into())?;
            batch.read_into(region, offset, &[slice]);
            (1, Some((place, offset)))
        } else {
            let together = u64::from(self.load.depth).min(ADDITIONS);
            if (self.under_way.len() as u64 + 1) * together > u64::from(self.load.depth) {
                return Ok(None);
            }
            for _ in 0..together {
                batch.fetch_add(region, self.choice.below(self.load.counters.into()) * 8, 1);
            }
            (together, None)
        };
        Ok(Some(UnderWay { pending: batch.submit()?, operations, read, begin }))
    }

    /// Waits for what was begun first; how many operations that were.
    fn end(&mut self) -> Result<u64> {
        let Some(UnderWay { pending, operations, read, begin }) = self.under_way.pop_front() else { return Ok(0) };
        pending.wait()?.check()?;
        self.times.saturating_record(begin.elapsed().as_nanos() as u64 / operations);
        if let (Some((place, offset)), Some(local)) = (read, &self.local) {
            let mut word = [0; 8];
            local.read(place * place_bytes(&self.load), &mut word)?;
            let (found, wanted) = (u64::from_le_bytes(word), pattern::word(offset));
            ensure!(found == wanted, "read {found:#x} at {offset}, where {wanted:#x} stands");
            self.free.push(place);
        }
        Ok(operations)
    }
}

/// Bytes of a READ's place in the local region: whole pages, as applications lay out buffers.
fn place_bytes(load: &LoadArgs) -> u64 {
    u64::from(load.size).next_multiple_of(pattern::PAGE_BYTES)
}
