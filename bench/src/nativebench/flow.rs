//! One thread, and a queue pair for each connection: so many work requests outstanding, on connections and blocks that
//! are chosen at random; or one at a time, and how long each takes; or a few in a second, and what they cost.

use std::time::{Duration, Instant};

use crate::choice::Choice;
use crate::{cpu, pattern};
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use verbs::{Payload, SendFlags, SendOp, SendWr};

use super::end::{End, Needs};
use super::waiting::Waiting;
use super::{DeviceArgs, LoadArgs, Verb};

/// Three digits of a time in nanoseconds, up to a minute.
const DIGITS: u8 = 3;
const TIME_MAX_NS: u64 = 60_000_000_000;
/// Share of the time that warms up and is not counted.
const WARM_UP: f64 = 0.1;

/// What is outstanding at a place of the local memory.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    connection: usize,
    addr: u64,
    begin: Option<Instant>,
}

/// The requester's side of a load.
pub(crate) struct Flow<'l> {
    load: &'l LoadArgs,
    choice: Choice,
    /// Places of the local memory that nothing uses.
    free: Vec<u64>,
    out: Vec<Option<Outstanding>>,
    /// Outstanding on each connection.
    busy: Vec<u32>,
    pub(crate) operations: u64,
    pub(crate) times: Histogram<u64>,
    /// Each operation's time is taken where there is one at a time.
    is_timed: bool,
}

impl<'l> Flow<'l> {
    pub(crate) fn new(load: &'l LoadArgs, connections: usize, seed: u64) -> Result<Self> {
        Ok(Self {
            load,
            choice: Choice::new(seed),
            free: (0..u64::from(load.depth)).rev().collect(),
            out: vec![None; load.depth as usize],
            busy: vec![0; connections],
            operations: 0,
            times: Histogram::new_with_bounds(1, TIME_MAX_NS, DIGITS)?,
            is_timed: load.depth == 1,
        })
    }

    /// Begins one operation if there is a place for it; `base` is the first byte of this flow's local memory, and `tag`
    /// stands in the upper half of each work request's name.
    pub(crate) fn post(&mut self, end: &mut End, base: u64, tag: u64) -> Result<bool> {
        let Some(place) = self.free.pop() else { return Ok(false) };
        let connection = self.choice.below(self.busy.len() as u64) as usize;
        let is_counted = matches!(self.load.verb, Verb::Read | Verb::FetchAdd);
        if is_counted && self.busy[connection] >= end.reads_max {
            // The next choice will be another one.
            self.free.push(place);
            return Ok(false);
        }
        let size = self.load.size;
        let addr = match self.load.verb {
            Verb::FetchAdd => self.choice.below(self.load.counters.into()) * 8,
            Verb::Send | Verb::Hold => 0,
            // Blocks begin at pages, so that what is read shows from where.
            _ => {
                self.choice.below((self.load.region_bytes - u64::from(size)) / pattern::PAGE_BYTES + 1)
                    * pattern::PAGE_BYTES
            }
        };
        let op = match self.load.verb {
            Verb::Read => SendOp::Read(end.remote(connection, addr)),
            Verb::Write => SendOp::Write(end.remote(connection, addr)),
            Verb::UcWrite => SendOp::WriteImm(end.remote(connection, addr), 0),
            Verb::FetchAdd => SendOp::FetchAdd { remote: end.remote(connection, addr), add: 1 },
            Verb::Send | Verb::Hold => SendOp::Send,
        };
        let bytes = if self.load.verb == Verb::FetchAdd { 8 } else { size };
        let sges = [end.sge(base + place * place_bytes(self.load), bytes)];
        let wr = SendWr {
            wr_id: tag << 32 | place,
            op,
            payload: Payload::Sges(&sges),
            flags: SendFlags::SIGNALED,
            dest: None,
        };
        let begin = self.is_timed.then(Instant::now);
        end.nic.post_send(end.qpns[connection], &[wr])?;
        self.busy[connection] += 1;
        self.out[place as usize] = Some(Outstanding { connection, addr, begin });
        Ok(true)
    }

    /// One of this flow's operations is done.
    pub(crate) fn done(&mut self, end: &End, base: u64, wr_id: u64) -> Result<()> {
        let place = wr_id & u64::from(u32::MAX);
        let Some(out) = self.out.get_mut(place as usize).and_then(Option::take) else {
            anyhow::bail!("a completion of something that was not outstanding: {wr_id:#x}");
        };
        if let Some(begin) = out.begin {
            self.times.saturating_record(begin.elapsed().as_nanos() as u64);
        }
        if self.load.verb == Verb::Read && self.load.size >= 8 {
            let mut word = [0; 8];
            end.region.read(base + place * place_bytes(self.load), &mut word)?;
            let (found, wanted) = (u64::from_le_bytes(word), pattern::word(out.addr));
            ensure!(found == wanted, "read {found:#x} at {}, where {wanted:#x} stands", out.addr);
        }
        self.busy[out.connection] -= 1;
        self.free.push(place);
        self.operations += 1;
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.out.len()
    }
}

/// Bytes of local memory of one operation: whole pages, as applications lay out buffers.
pub(crate) fn place_bytes(load: &LoadArgs) -> u64 {
    u64::from(load.size).next_multiple_of(pattern::PAGE_BYTES)
}

/// What a client's context needs for the flows of so many threads.
pub(crate) fn needs(load: &LoadArgs, connections: u32, flows: u32) -> Needs {
    Needs {
        connections,
        transport: load.verb.transport(),
        sends: load.sends(),
        receives: 0,
        bytes: place_bytes(load) * u64::from(load.depth) * u64::from(flows),
    }
}

pub(crate) fn run(device: &DeviceArgs, load: &LoadArgs) -> Result<Value> {
    let mut ends = [End::open(device, needs(load, load.connections * u32::try_from(load.to.len())?, 1))?];
    let mut controls = End::connect_all(&mut ends, load)?;
    let [mut end] = ends;
    let mut waiting = Waiting::new();
    let mut flow = Flow::new(load, end.qpns.len(), 1)?;
    let (mut begin, mut warm) = (Instant::now(), false);
    let (duration, warm_up) = (Duration::from_secs_f64(load.seconds), Duration::from_secs_f64(load.seconds * WARM_UP));
    let pause = (load.rate > 0).then(|| Duration::from_secs(1) / load.rate);
    let mut due = begin;
    let mut processor = cpu::of(&[std::process::id()]);
    loop {
        let now = Instant::now();
        if !warm && now - begin >= warm_up {
            (warm, begin, flow.operations) = (true, now, 0);
            flow.times.reset();
            processor = cpu::of(&[std::process::id()]);
            if load.rate > 0 {
                println!("counting");
            }
        }
        let goes_on = !warm || now - begin < duration;
        if !goes_on && flow.is_idle() {
            break;
        }
        if let Some(pause) = pause.filter(|_| goes_on && flow.is_idle()) {
            due = (due + pause).max(now);
            waiting.rest(&mut end, due)?;
        }
        while goes_on && flow.post(&mut end, 0, 0)? {}
        if waiting.poll(&mut end, None)? > 0 {
            for completion in &waiting.done {
                flow.done(&end, 0, completion.wr_id)?;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let processor = cpu::of(&[std::process::id()]).saturating_sub(processor).as_secs_f64();
    let arrived = End::finish(&mut controls)?;
    let mut report = report(load, flow.operations, seconds);
    report["cpu_seconds"] = json!(processor);
    if load.verb == Verb::UcWrite {
        // What left is no figure; the warm-up's messages count on both sides.
        report["sent_gbit_per_s"] = report["gbit_per_s"].take();
        report["gbit_per_s"] = json!(arrived as f64 * 8.0 / 1e9 / (seconds * (1.0 + WARM_UP)));
    }
    if load.depth == 1 {
        for (key, percent) in [("p50_us", 50.0), ("p99_us", 99.0)] {
            report[key] = json!(flow.times.value_at_percentile(percent) as f64 / 1e3);
        }
    }
    Ok(report)
}

/// The rates.
pub(crate) fn report(load: &LoadArgs, operations: u64, seconds: f64) -> Value {
    let rate = operations as f64 / seconds;
    json!({
        "operations": operations, "seconds": seconds, "ops_per_s": rate,
        "gbit_per_s": rate * f64::from(load.size) * 8.0 / 1e9,
    })
}
