//! Operations in flight, cut into steps.
//!
//! Owns which steps may come next: what the order of `rmem::Chain` allows, and nothing else.

use kernels::{Sorted, Sought};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use rmem::{Address, Atomic, Chain, Error, Found, Step};

use crate::keeper::{Keeper, Taken};
use crate::search::Search;

/// Parts into which an operation on several words is cut, at most.
const PARTS_MAX: usize = 3;
/// Those of a write that a fence may cut off.
const FENCED_PARTS_MAX: usize = 5;
/// Slices of a kernel before one that a delay comes between, at most, and one more.
const SLICES_BEFORE_MAX: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    Write,
    Atomic,
}

/// A part of an operation that happens in one moment.
#[derive(Debug)]
struct Part {
    operation: usize,
    from: usize,
    to: usize,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) client: usize,
    /// Nothing of it happens before.
    pub(crate) not_before_us: u64,
    work: Work,
    /// The node, and how often its daemon had ended when this began; of a write also the grant.
    under: Option<(usize, u64, Option<u64>)>,
    /// After so many steps it is halted until this moment.
    halt: Option<(u32, u64)>,
}

#[derive(Debug)]
enum Work {
    Operations(Operations),
    Search(Search),
    TakeOver { node: usize, fence: u64, taken: Option<Result<Taken, Error>> },
}

/// What came of a flight.
#[derive(Debug)]
pub(crate) enum Outcome {
    Found(Found),
    Sought(Sought),
    Taken(Taken),
}

#[derive(Debug)]
struct Operations {
    operations: Vec<(Step, bool)>,
    parts: Vec<Part>,
    found: Found,
    failed: Option<Error>,
}

fn what(step: &Step) -> What {
    match step {
        Step::Read { .. } => What::Read,
        Step::Write { .. } => What::Write,
        Step::Atomic { .. } => What::Atomic,
    }
}

fn words(step: &Step) -> usize {
    match step {
        Step::Read { words, .. } => *words,
        Step::Write { words, .. } => words.len(),
        Step::Atomic { .. } => 1,
    }
}

impl Flight {
    pub(crate) fn of_chain(client: usize, chain: &Chain, not_before_us: u64, rng: &mut StdRng) -> Self {
        let work = Work::Operations(Operations::new(chain, PARTS_MAX, rng));
        Self { client, not_before_us, work, under: None, halt: None }
    }

    /// One that ends with the node's daemon; a write ends with its grant too.
    pub(crate) fn of_member(
        client: usize,
        chain: &Chain,
        under: (usize, u64, Option<u64>),
        not_before_us: u64,
        rng: &mut StdRng,
    ) -> Self {
        let parts = if under.2.is_some() { FENCED_PARTS_MAX } else { PARTS_MAX };
        let work = Work::Operations(Operations::new(chain, parts, rng));
        Self { client, not_before_us, work, under: Some(under), halt: None }
    }

    /// A node's daemon is asked for the writer's place.
    pub(crate) fn of_take_over(client: usize, node: usize, fence: u64, not_before_us: u64) -> Self {
        let work = Work::TakeOver { node, fence, taken: None };
        Self { client, not_before_us, work, under: None, halt: None }
    }

    /// It goes no further: what did not happen yet never does.
    pub(crate) fn lose(&mut self) {
        let lost = |node: u8| Error::NodeLost { node, why: "the model's link is cut".to_owned() };
        match &mut self.work {
            Work::Operations(operations) => operations.failed = Some(lost(0)),
            Work::TakeOver { taken, .. } => *taken = Some(Err(lost(0))),
            Work::Search(_) => {}
        }
    }

    /// A kernel may be delayed before it begins, or between two slices.
    pub(crate) fn of_search(client: usize, (node, search): (u8, &Sorted), until_us: u64, rng: &mut StdRng) -> Self {
        let work = Work::Search(Search::new(node, search, rng));
        match rng.random_range(0..SLICES_BEFORE_MAX) {
            0 => Self { client, not_before_us: until_us, work, under: None, halt: None },
            slices => Self { client, not_before_us: 0, work, under: None, halt: Some((slices, until_us)) },
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        match &self.work {
            Work::Operations(operations) => operations.is_over(),
            Work::Search(search) => search.is_over(),
            Work::TakeOver { taken, .. } => taken.is_some(),
        }
    }

    pub(crate) fn outcome(self) -> Result<Outcome, Error> {
        match self.work {
            Work::Operations(operations) => operations.outcome().map(Outcome::Found),
            Work::Search(search) => search.outcome().map(Outcome::Sought),
            Work::TakeOver { node, taken, .. } => {
                let unknown = Error::NodeLost { node: node as u8, why: "nobody answered".to_owned() };
                taken.unwrap_or(Err(unknown)).map(Outcome::Taken)
            }
        }
    }

    /// Carries out one part that may come next.
    pub(crate) fn step(&mut self, nodes: &mut [Option<Vec<u64>>], keepers: &mut [Keeper], rng: &mut StdRng) {
        if let Some((steps, until_us)) = &mut self.halt {
            *steps -= 1;
            if *steps == 0 {
                self.not_before_us = *until_us;
                self.halt = None;
            }
        }
        if let (Some((node, ends, grant)), Work::Operations(operations)) = (self.under, &mut self.work)
            && let Err(why) = keepers[node].lets(node as u8, ends, grant)
        {
            operations.failed = Some(why);
            return;
        }
        match &mut self.work {
            Work::Operations(operations) => operations.step(nodes, rng),
            Work::Search(search) => search.step(nodes, rng),
            Work::TakeOver { node, fence, taken } => {
                let is_up = nodes[*node].is_some();
                let lost = || Error::NodeLost { node: *node as u8, why: "the model's daemon is down".to_owned() };
                *taken = Some(if is_up { Ok(keepers[*node].take_over(*fence)) } else { Err(lost()) });
            }
        }
    }
}

impl Operations {
    fn new(chain: &Chain, parts_max: usize, rng: &mut StdRng) -> Self {
        let operations = chain.steps().to_vec();
        let mut parts = Vec::new();
        for (operation, (step, _)) in operations.iter().enumerate() {
            let count = words(step);
            let mut cuts = vec![0, count];
            if count > 1 {
                cuts.extend((1..parts_max).map(|_| rng.random_range(0..=count)));
            }
            cuts.sort_unstable();
            let pieces = cuts.windows(2).filter(|cut| cut[0] < cut[1]);
            parts.extend(pieces.map(|cut| Part { operation, from: cut[0], to: cut[1] }));
        }
        let found = operations.iter().map(|(step, _)| vec![0; words(step)]).collect();
        Self { operations, parts, found, failed: None }
    }

    fn is_over(&self) -> bool {
        self.parts.is_empty() || self.failed.is_some()
    }

    fn outcome(self) -> Result<Found, Error> {
        self.failed.map_or(Ok(self.found), Err)
    }

    /// Whether the part waits for an operation before it.
    fn waits(&self, part: &Part) -> bool {
        let (step, _) = &self.operations[part.operation];
        let fence = (0..=part.operation).rev().find(|o| self.operations[*o].1).unwrap_or(0);
        self.parts.iter().map(|other| other.operation).filter(|other| *other < part.operation).any(|other| {
            let before = &self.operations[other].0;
            let is_kept = matches!((what(before), what(step)), (What::Write, _) | (What::Atomic, What::Atomic));
            before.at().node == step.at().node && (is_kept || other < fence)
        })
    }

    fn step(&mut self, nodes: &mut [Option<Vec<u64>>], rng: &mut StdRng) {
        let ready: Vec<usize> = (0..self.parts.len()).filter(|i| !self.waits(&self.parts[*i])).collect();
        let part = self.parts.swap_remove(ready[rng.next_u64() as usize % ready.len()]);
        let (step, _) = &self.operations[part.operation];
        let Address { node, offset } = step.at();
        let count = nodes.len();
        let memory = match nodes.get_mut(usize::from(node)) {
            Some(Some(memory)) => memory,
            Some(None) => {
                self.failed = Some(Error::NodeLost { node, why: "the model's node is dead".to_owned() });
                return;
            }
            None => {
                self.failed = Some(Error::NoNode { node, nodes: count });
                return;
            }
        };
        let (begin, bytes) = ((offset / 8) as usize, memory.len() as u64 * 8);
        if !offset.is_multiple_of(8) || begin + words(step) > memory.len() {
            self.failed = Some(Error::BadPointer { at: step.at(), bytes });
            return;
        }
        let place = &mut memory[begin + part.from..begin + part.to];
        match step {
            Step::Read { .. } => self.found[part.operation][part.from..part.to].copy_from_slice(place),
            Step::Write { words, .. } => place.copy_from_slice(&words[part.from..part.to]),
            Step::Atomic { op, .. } => {
                self.found[part.operation][0] = place[0];
                place[0] = match *op {
                    Atomic::CompareSwap { expected, new } if place[0] == expected => new,
                    Atomic::CompareSwap { .. } => place[0],
                    Atomic::Add(value) => place[0].wrapping_add(value),
                    Atomic::Swap(value) => value,
                    Atomic::Max(value) => place[0].max(value),
                };
            }
        }
    }
}
