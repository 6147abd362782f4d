//! Stories: what some clients do with a structure, and what must hold.
//!
//! Owns the size of a story, the search for a smaller one that fails too, and what all stories have in common: one client
//! makes the structure and names it, the others find it by its name, and an auditor looks at the end.

mod containers;
mod locks;
mod registers;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmem::{Client, Error, Ptr, format};

use crate::history::{Calls, History, WordAct};
use crate::remote::Remote;
use crate::world::{Ended, Faults, Life, World};

/// The lease of all stories' pools.
const LEASE_US: u64 = 4000;
const NODES: usize = 2;
const NODE_BYTES: u64 = 16 << 10;
const NAME: &str = "it";
/// Leases that a dead client can keep memory back in all: its own, and those of what it still has in flight.
const LEASES_TO_SETTLE: u64 = 6;

/// The structure that a story is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The list set.
    Set,
    /// The hash map.
    Map,
    /// The queue.
    Queue,
    /// The counter and the max-register.
    Words,
    /// The register of several words.
    Register,
    /// The lock with cohorts.
    ALock,
    /// The lock with a lease.
    LeaseLock,
}

/// A story: everything about it follows from these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// The structure.
    pub kind: Kind,
    /// What is chosen by chance.
    pub seed: u64,
    /// Clients, from 1.
    pub clients: usize,
    /// Operations of each.
    pub operations: u64,
    /// Of 1000 operations on memory, those that are delayed.
    pub delayed: u32,
    /// Of 10,000 steps, those before which a client ends.
    pub deaths: u32,
    /// When the last node dies.
    pub node_dies_at: Option<u64>,
}

/// What came out of a story in which nothing was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Story {
    /// How it ended.
    pub ended: Ended,
    /// Calls that ended with a result.
    pub calls: usize,
    /// Clients that were taken for dead and joined again.
    pub rejoins: u64,
    /// Blocks that were used again.
    pub reclaimed: u64,
    /// Locks that were taken over.
    pub taken_over: u64,
    /// Errors that clients got, all of them of a kind that must be expected.
    pub errors: u64,
}

/// What the clients of a story share outside of its memory.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) scenario: Scenario,
    pub(crate) world: World,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Debug, Default)]
struct Notes {
    wrong: Vec<String>,
    rejoins: u64,
    reclaimed: u64,
    taken_over: u64,
    errors: u64,
}

pub(crate) type Mine = Client<Remote>;

impl Stage {
    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wrong(&self, words: String) {
        self.notes().wrong.push(words);
    }

    pub(crate) fn taken_over(&self) {
        self.notes().taken_over += 1;
    }

    /// Joins; the first client also makes the nodes.
    async fn join(&self, number: usize) -> Result<Mine, Error> {
        let home = (number % 3 != 2).then_some((number % 3) as u8);
        let remote = self.world.remote(number, home);
        if number == 0 {
            for node in 0..NODES {
                format(&remote, node as u8, Duration::from_micros(LEASE_US)).await?;
            }
        }
        for attempt in 0.. {
            match Client::join(remote.clone()).await {
                // The first client is not that far.
                Err(Error::NotFormatted { .. }) if attempt < 1000 => rmem::Memory::pause(&remote, attempt).await,
                other => return other,
            }
        }
        Err(Error::LockBroken)
    }

    /// The structure that the first client made.
    pub(crate) async fn find<T>(&self, client: &Mine) -> Result<Ptr<T>, Error> {
        for attempt in 0..1000 {
            if let Some(found) = client.root(NAME).await? {
                return Ok(found);
            }
            rmem::Memory::pause(client.memory(), attempt).await;
        }
        Err(Error::WrongKind { wanted: "root", found: 0 })
    }

    pub(crate) async fn name<T>(&self, client: &Mine, it: Ptr<T>) -> Result<(), Error> {
        client.set_root(NAME, it).await?.map_err(|other| Error::WrongKind { wanted: "free name", found: other.bits() })
    }

    /// A client is over, in order or by an error.
    async fn over(&self, result: Result<Mine, Error>) {
        match result {
            Ok(client) => {
                let stats = client.stats();
                let mut notes = self.notes();
                notes.rejoins += stats.rejoins;
                notes.reclaimed += stats.reclaimed;
            }
            Err(error) => {
                self.notes().errors += 1;
                if !self.may_be(&error) {
                    self.wrong(format!("a client got an error that it must not get: {error}"));
                }
            }
        }
    }

    /// Whether a client may get the error in this story.
    fn may_be(&self, error: &Error) -> bool {
        let Scenario { kind, deaths, node_dies_at, .. } = self.scenario;
        match error {
            Error::NodeLost { .. } => node_dies_at.is_some(),
            Error::TimedOut { .. } | Error::LockBroken => kind == Kind::ALock && (deaths > 0 || node_dies_at.is_some()),
            // The first client may have ended by an error before it named the structure.
            Error::WrongKind { wanted: "root", .. } | Error::NotFormatted { .. } => node_dies_at.is_some(),
            _ => false,
        }
    }

    /// The clients' lives until their ends; then an auditor's.
    async fn settle(&self, client: &mut Mine) -> Result<(), Error> {
        let begin = self.world.now_us();
        while client.settle().await? > 0 {
            if self.world.now_us() - begin > LEASES_TO_SETTLE * LEASE_US {
                self.wrong(format!("memory waits for dead clients for more than {LEASES_TO_SETTLE} leases"));
                break;
            }
        }
        Ok(())
    }
}

/// What a kind of story does: a life for each client, one for the auditor, and the judgement.
pub(crate) struct Play {
    pub(crate) lives: Vec<Life>,
    pub(crate) audit: Life,
    pub(crate) judge: Box<dyn Fn() -> Result<(), String>>,
    pub(crate) calls: Box<dyn Fn() -> usize>,
    /// What was asked of words, in stories about them.
    pub(crate) words: Option<History<WordAct>>,
}

impl Scenario {
    /// Plays it. An error says what was wrong.
    pub fn play(self) -> Result<Story, String> {
        self.record().map(|(story, _)| story)
    }

    /// As [`Scenario::play`]; and what was asked of words and found, in stories about them.
    pub fn record(self) -> Result<(Story, Calls<WordAct>), String> {
        let Self { seed, delayed, deaths, node_dies_at, .. } = self;
        let faults = Faults { delayed, deaths, node_dies_at, lease_us: LEASE_US };
        let world = World::new(seed, NODES, NODE_BYTES, faults);
        let stage = Stage { scenario: self, world: world.clone(), notes: Arc::default() };
        let Play { lives, audit, judge, calls, words } = match self.kind {
            Kind::Set => containers::set(&stage),
            Kind::Map => containers::map(&stage),
            Kind::Queue => containers::queue(&stage),
            Kind::Words => registers::words(&stage),
            Kind::Register => registers::register(&stage),
            Kind::ALock => locks::alock(&stage),
            Kind::LeaseLock => locks::lease_lock(&stage),
        };
        let ended = world.run(lives)?;
        world.calm();
        if world.state().nodes.iter().all(Option::is_some) {
            world.run(vec![audit])?;
        }
        judge()?;
        let notes = stage.notes();
        match notes.wrong.first() {
            Some(wrong) => Err(wrong.clone()),
            None => {
                let (calls, words) = (calls(), words.map(|words| words.calls()).unwrap_or_default());
                let Notes { rejoins, reclaimed, taken_over, errors, .. } = *notes;
                Ok((Story { ended, calls, rejoins, reclaimed, taken_over, errors }, words))
            }
        }
    }
}

/// A smaller story of the same kind that fails too, and what is wrong in it.
pub fn shrink(mut scenario: Scenario, mut wrong: String) -> (Scenario, String) {
    const SEEDS: u64 = 300;
    loop {
        let Scenario { clients, operations, .. } = scenario;
        let smaller = [
            Scenario { node_dies_at: None, ..scenario },
            Scenario { deaths: 0, ..scenario },
            Scenario { delayed: 0, ..scenario },
            Scenario { clients: clients.saturating_sub(1).max(1), ..scenario },
            Scenario { operations: (operations / 2).max(1), ..scenario },
            Scenario { operations: operations.saturating_sub(1).max(1), ..scenario },
        ];
        let fails = |candidate: &Scenario| {
            let seeds = std::iter::once(candidate.seed).chain(0..SEEDS);
            seeds.map(|seed| Scenario { seed, ..*candidate }).find_map(|s| s.play().err().map(|wrong| (s, wrong)))
        };
        match smaller.iter().filter(|s| **s != scenario).find_map(fails) {
            Some(found) => (scenario, wrong) = found,
            None => return (scenario, wrong),
        }
    }
}
