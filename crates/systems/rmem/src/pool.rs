//! The memory of several nodes over regions of `raas`.
//!
//! Owns what errors of regions mean for a pool, and the two ways to wait: of threads and of tasks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raas::kernels::{Failure, Sorted, Sought};
use raas::{Batch, Completion, Ended, Pending, Region, RegionError, RegionSlice};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::memory::{Atomic, Chain, Found, Memory, Step};
use crate::ptr::{Address, NODES_MAX};

/// Attempts after which a pause is a sleep, and no more a turn for others.
const YIELDS: u32 = 8;
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// The memory of several nodes. A node is a region, of this host or of another one: on this host an operation is a copy
/// or an instruction of the processor, on another one it is a verb.
///
/// Every program of a pool lists the same regions in the same order; a node's number is its place in that list, from 0
/// to 255. Node 0 also has the epoch, the clients and the roots: without it the pool is lost. The first words of each
/// node say which one it is ([`format`](crate::format())).
///
/// As it is built, operations wait on their thread. `Pool::for_tasks` (feature `tokio`) makes one whose operations are awaited.
#[derive(Debug, Clone)]
pub struct Pool {
    nodes: Arc<[Region]>,
    started: Instant,
    is_for_tasks: bool,
}

impl Pool {
    /// A pool of these regions, in this order.
    pub fn new(nodes: Vec<Region>) -> Result<Self, Error> {
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            let value = nodes.len() as u64;
            return Err(Error::OutOfRange { what: "the number of nodes", value, max: NODES_MAX as u64 });
        }
        Ok(Self { nodes: nodes.into(), started: Instant::now(), is_for_tasks: false })
    }

    /// The same pool, for tasks of a runtime: no operation on another host keeps its thread.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn for_tasks(&self) -> Self {
        Self { is_for_tasks: true, ..self.clone() }
    }

    /// The region of a node.
    pub fn region(&self, node: u8) -> Result<&Region, Error> {
        self.nodes.get(usize::from(node)).ok_or(Error::NoNode { node, nodes: self.nodes.len() })
    }

    // ---- beyond what structures need

    /// Submits operations on one node, and does not wait: a writer goes on at once, and learns of the end later.
    pub fn submit(&self, chain: &Chain) -> Result<Submitted, Error> {
        let node = chain.steps().first().map_or(0, |(step, _)| step.at().node);
        if let Some((other, _)) = chain.steps().iter().find(|(step, _)| step.at().node != node) {
            return Err(Error::NoNode { node: other.at().node, nodes: 1 });
        }
        let batch = self.batch(node, chain, |_| true)?;
        let pending = batch.submit().map_err(|e| meaning(node, e))?;
        Ok(Submitted { node, pending, count: chain.steps().len() })
    }

    /// Writes words and returns when they have been taken: they may land later. Only operations of the same chain are
    /// sure to come behind it.
    pub fn post(&self, at: Address, words: &[u64]) -> Result<(), Error> {
        let done = self.region(at.node)?.write_as(at.offset, words.as_bytes(), Completion::Posted);
        done.map_err(|e| meaning(at.node, e))
    }

    /// Reads bytes straight into parts of regions of this host: nobody copies them. One READ.
    pub fn read_into(&self, at: Address, to: &[RegionSlice]) -> Result<(), Error> {
        self.region(at.node)?.read_into(at.offset, to).map_err(|e| meaning(at.node, e))
    }

    /// Writes bytes straight from parts of regions of this host, which must not change before this returns. One WRITE.
    pub fn write_from(&self, at: Address, from: &[RegionSlice]) -> Result<(), Error> {
        let done = self.region(at.node)?.write_from(at.offset, from, Completion::Visible);
        done.map_err(|e| meaning(at.node, e))
    }

    // ---- ways to wait

    fn batch(&self, node: u8, chain: &Chain, wants: impl Fn(usize) -> bool) -> Result<Batch, Error> {
        let region = self.region(node)?;
        let mut batch = Batch::new();
        for (_, (step, is_fenced)) in chain.steps().iter().enumerate().filter(|(number, _)| wants(*number)) {
            if *is_fenced {
                batch.fence();
            }
            match step {
                Step::Read { at, words } => batch.read(region, at.offset, words * 8),
                Step::Write { at, words } => batch.write(region, at.offset, words.as_bytes()),
                Step::Atomic { at, op } => match *op {
                    Atomic::CompareSwap { expected, new } => batch.compare_swap(region, at.offset, expected, new),
                    Atomic::Add(value) => batch.fetch_add(region, at.offset, value),
                    Atomic::Swap(value) => batch.swap(region, at.offset, value),
                    Atomic::Max(value) => batch.fetch_max(region, at.offset, value),
                },
            };
        }
        Ok(batch)
    }

    async fn end(&self, node: u8, batch: Batch) -> Result<Ended, Error> {
        let pending = batch.submit().map_err(|e| meaning(node, e))?;
        #[cfg(feature = "tokio")]
        if self.is_for_tasks {
            return pending.await.map_err(|e| meaning(node, e));
        }
        pending.wait().map_err(|e| meaning(node, e))
    }

    async fn one(&self, step: Step) -> Result<Vec<u64>, Error> {
        let node = step.at().node;
        let mut chain = Chain::new();
        match step {
            Step::Read { at, words } => chain.read(at, words),
            Step::Write { at, words } => chain.write(at, words),
            Step::Atomic { at, op } => chain.atomic(at, op),
        };
        let ended = self.end(node, self.batch(node, &chain, |_| true)?).await?;
        Ok(found_all(node, &ended, 1)?.pop().unwrap_or_default())
    }
}

/// Operations that were submitted together.
#[derive(Debug)]
#[must_use = "dropped, nobody learns how they ended"]
pub struct Submitted {
    node: u8,
    pending: Pending,
    count: usize,
}

impl Submitted {
    /// Whether all have ended.
    pub fn is_ended(&self) -> bool {
        self.pending.is_ended()
    }

    /// Waits until all have ended; what they found.
    pub fn wait(self) -> Result<Found, Error> {
        let Self { node, pending, count } = self;
        let ended = pending.wait().map_err(|e| meaning(node, e))?;
        found_all(node, &ended, count)
    }

    /// As [`Submitted::wait`], for tasks.
    #[cfg(feature = "tokio")]
    pub async fn ended(self) -> Result<Found, Error> {
        let Self { node, pending, count } = self;
        let ended = pending.await.map_err(|e| meaning(node, e))?;
        found_all(node, &ended, count)
    }
}

fn found_all(node: u8, ended: &Ended, count: usize) -> Result<Found, Error> {
    ended.check().map_err(|e| meaning(node, e))?;
    (0..count).map(|number| words_found(node, ended, number)).collect()
}

fn words_found(node: u8, ended: &Ended, number: usize) -> Result<Vec<u64>, Error> {
    let bytes = ended.bytes(number).map_err(|e| meaning(node, e))?;
    if bytes.is_empty() {
        // An atomic, or a WRITE, of which nobody asks.
        return Ok(vec![ended.value(number).map_err(|e| meaning(node, e))?]);
    }
    let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(8).map(word).collect())
}

/// What an error of a node's region means.
fn meaning(node: u8, cause: RegionError) -> Error {
    match cause {
        RegionError::Revoked { .. } | RegionError::Kernel { failure: Failure::Revoked, .. } => Error::Revoked { node },
        RegionError::OutcomeUnknown { .. } => Error::OutcomeUnknown { node, why: cause.to_string() },
        RegionError::OwnerGone { .. }
        | RegionError::DaemonLost { .. }
        | RegionError::Refused { .. }
        | RegionError::Session(_) => Error::NodeLost { node, why: cause.to_string() },
        RegionError::OutOfBounds { offset, bytes, .. } => Error::BadPointer { at: Address { node, offset }, bytes },
        cause => Error::Region { node, cause },
    }
}

impl Memory for Pool {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn bytes(&self, node: u8) -> Result<u64, Error> {
        Ok(self.region(node)?.bytes())
    }

    fn is_local(&self, node: u8) -> bool {
        self.region(node).is_ok_and(Region::is_here)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    async fn read(&self, at: Address, words: &mut [u64]) -> Result<(), Error> {
        let region = self.region(at.node)?;
        if words.is_empty() {
            return Ok(());
        }
        if self.is_for_tasks && !region.is_here() {
            let found = self.one(Step::Read { at, words: words.len() }).await?;
            words.copy_from_slice(&found);
            return Ok(());
        }
        let done = match words {
            [word] => region.load(at.offset).map(|found| *word = found),
            words => region.read(at.offset, words.as_mut_bytes()),
        };
        done.map_err(|e| meaning(at.node, e))
    }

    async fn write(&self, at: Address, words: &[u64]) -> Result<(), Error> {
        let region = self.region(at.node)?;
        if self.is_for_tasks && !region.is_here() {
            return self.one(Step::Write { at, words: words.to_vec() }).await.map(drop);
        }
        region.write(at.offset, words.as_bytes()).map_err(|e| meaning(at.node, e))
    }

    async fn atomic(&self, at: Address, op: Atomic) -> Result<u64, Error> {
        let region = self.region(at.node)?;
        if self.is_for_tasks && !region.is_here() {
            return Ok(self.one(Step::Atomic { at, op }).await?.first().copied().unwrap_or(0));
        }
        let found = match op {
            Atomic::CompareSwap { expected, new } => region.compare_swap(at.offset, expected, new),
            Atomic::Add(value) => region.fetch_add(at.offset, value),
            Atomic::Swap(value) => region.swap(at.offset, value),
            Atomic::Max(value) => region.fetch_max(at.offset, value),
        };
        found.map_err(|e| meaning(at.node, e))
    }

    async fn chain(&self, chain: Chain) -> Result<Found, Error> {
        let mut found: Found = vec![Vec::new(); chain.steps().len()];
        let mut going = Vec::new();
        for node in (0..self.nodes()).map(|node| node as u8) {
            let of_node = |number: usize| chain.steps()[number].0.at().node == node;
            let numbers: Vec<usize> = (0..chain.steps().len()).filter(|number| of_node(*number)).collect();
            if !numbers.is_empty() {
                let pending = self.batch(node, &chain, of_node)?.submit().map_err(|e| meaning(node, e))?;
                going.push((node, numbers, pending));
            }
        }
        for (node, numbers, pending) in going {
            #[cfg(feature = "tokio")]
            let ended = if self.is_for_tasks { pending.await } else { pending.wait() };
            #[cfg(not(feature = "tokio"))]
            let ended = pending.wait();
            let of_node = found_all(node, &ended.map_err(|e| meaning(node, e))?, numbers.len())?;
            numbers.into_iter().zip(of_node).for_each(|(number, words)| found[number] = words);
        }
        Ok(found)
    }

    async fn seek(&self, node: u8, search: &Sorted) -> Result<Sought, Error> {
        let region = self.region(node)?;
        #[cfg(feature = "tokio")]
        if self.is_for_tasks {
            return region.call_async(search).await.map_err(|e| meaning(node, e));
        }
        region.call(search).map_err(|e| meaning(node, e))
    }

    async fn pause(&self, attempt: u32) {
        let time = (attempt >= YIELDS).then(|| {
            let doublings = ((attempt - YIELDS) / 8).min(7);
            PAUSE_MAX.min(Duration::from_micros(10) * (1 << doublings))
        });
        #[cfg(feature = "tokio")]
        if self.is_for_tasks {
            return match time {
                Some(time) => tokio::time::sleep(time).await,
                None => tokio::task::yield_now().await,
            };
        }
        match time {
            Some(time) => std::thread::sleep(time),
            None => std::thread::yield_now(),
        }
    }
}
