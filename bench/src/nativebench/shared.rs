//! Threads that share queue pairs under a lock, as FaRM and LITE do: who posts or polls holds the lock, and takes what
//! is done for the others too.
//!
//! Owns the lock's use. Nobody may wait for the device while it is held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::end::End;
use super::flow::{Flow, needs, place_bytes, report};
use super::waiting::{Waiting, YIELDS};
use super::{DeviceArgs, LoadArgs};

/// How long a thread sleeps that found nothing so often: about a round trip with its queue.
const NAP: Duration = Duration::from_micros(50);
/// Share of the time that warms up and is not counted.
const WARM_UP: f64 = 0.1;
/// Nothing takes longer unless it hangs.
const STALL_MAX: Duration = Duration::from_secs(20);

/// What a lock protects: the context, and what its threads have not taken yet.
struct Shared {
    end: End,
    waiting: Waiting,
    /// Completions by thread.
    boxes: Vec<Vec<u64>>,
}

/// When counting begins, and when nothing more is begun.
struct Times {
    start: Barrier,
    is_counted: AtomicBool,
    is_over: AtomicBool,
}

pub(crate) fn run(device: &DeviceArgs, load: &LoadArgs) -> Result<Value> {
    let contexts = load.contexts().len();
    let mut ends = (0..contexts).map(|_| End::open(device, needs(load, 1, load.share))).collect::<Result<Vec<_>>>()?;
    let mut controls = End::connect_all(&mut ends, load)?;
    let times = Arc::new(Times {
        start: Barrier::new(load.threads as usize + 1),
        is_counted: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    });
    let mut threads = vec![];
    for (group, end) in ends.into_iter().enumerate() {
        let boxes = vec![vec![]; load.share as usize];
        let shared = Arc::new(Mutex::new(Shared { end, waiting: Waiting::new(), boxes }));
        for member in 0..load.share {
            let (shared, times, load) = (Arc::clone(&shared), Arc::clone(&times), load.clone());
            let seed = group as u64 * u64::from(load.share) + u64::from(member) + 1;
            threads.push(std::thread::spawn(move || work(&shared, &times, &load, member, seed)));
        }
    }
    times.start.wait();
    std::thread::sleep(Duration::from_secs_f64(load.seconds * WARM_UP));
    times.is_counted.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(load.seconds));
    times.is_over.store(true, Ordering::Relaxed);
    let seconds = begin.elapsed().as_secs_f64();
    let mut operations = 0;
    for thread in threads {
        operations += thread.join().ok().context("a thread panicked")??;
    }
    End::finish(&mut controls)?;
    Ok(report(load, operations, seconds))
}

/// One thread; how many of its operations ended in the time that counts.
fn work(shared: &Mutex<Shared>, times: &Times, load: &LoadArgs, member: u32, seed: u64) -> Result<u64> {
    let base = place_bytes(load) * u64::from(load.depth) * u64::from(member);
    let mut flow = Flow::new(load, 1, seed)?;
    let (mut idle, mut counted_from, mut counted_to) = (0_u32, None, None);
    let mut since = Instant::now();
    times.start.wait();
    loop {
        let is_over = times.is_over.load(Ordering::Relaxed);
        if times.is_counted.load(Ordering::Relaxed) {
            counted_from.get_or_insert(flow.operations);
        }
        if is_over {
            counted_to.get_or_insert(flow.operations);
            if flow.is_idle() {
                break;
            }
        }
        let before = flow.operations;
        {
            let mut held = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let Shared { end, waiting, boxes } = &mut *held;
            waiting.take(end)?;
            for completion in &waiting.done {
                let owner = (completion.wr_id >> 32) as usize;
                boxes.get_mut(owner).context("a completion of no thread")?.push(completion.wr_id);
            }
            let own = boxes.get_mut(member as usize).context("a thread too many")?;
            own.drain(..).try_for_each(|wr_id| flow.done(end, base, wr_id))?;
            while !is_over && flow.post(end, base, member.into())? {}
        }
        if flow.operations > before {
            (idle, since) = (0, Instant::now());
            continue;
        }
        idle += 1;
        anyhow::ensure!(since.elapsed() < STALL_MAX, "nothing happened for {STALL_MAX:?}");
        if idle > YIELDS {
            std::thread::sleep(NAP);
        } else {
            std::thread::yield_now();
        }
    }
    Ok(counted_to.unwrap_or_default() - counted_from.unwrap_or_default())
}
