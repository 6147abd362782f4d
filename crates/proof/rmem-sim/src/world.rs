//! Nodes, clients and the scheduler.
//!
//! Owns the choice of what happens next. Time passes with each step, so that leases run out.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rmem::{Chain, Error};

use crate::flight::{Flight, Outcome};
use crate::keeper::Keeper;

/// Steps after which a story does not end.
const STEPS_MAX: u64 = 400_000;

/// What may go wrong in a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Of 1000 operations, those that are delayed for up to three leases.
    pub delayed: u32,
    /// Of 10,000 steps, those before which a client ends for good. The first client never does.
    pub deaths: u32,
    /// The step before which the last node dies.
    pub node_dies_at: Option<u64>,
    /// The lease, in microseconds, as far as delays know it.
    pub lease_us: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) nodes: Vec<Option<Vec<u64>>>,
    /// What the daemon of each node knows.
    pub(crate) keepers: Vec<Keeper>,
    pub(crate) clock_us: u64,
    pub(crate) rng: StdRng,
    pub(crate) flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    /// When each client that pauses goes on.
    pub(crate) pauses: BTreeMap<usize, u64>,
    faults: Faults,
    /// Order of what clients did.
    moment: u64,
}

/// A model of the memory of several nodes, and of those who use it.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<State>>);

/// How a story ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Steps that it took.
    pub steps: u64,
    /// Clients that ended before their end.
    pub deaths: u32,
}

/// A client's life, as the scheduler drives it.
pub(crate) type Life = Pin<Box<dyn Future<Output = ()>>>;

impl World {
    /// Nodes of zeroes.
    pub fn new(seed: u64, nodes: usize, bytes: u64, faults: Faults) -> Self {
        Self(Arc::new(Mutex::new(State {
            nodes: vec![Some(vec![0; (bytes / 8) as usize]); nodes],
            keepers: (0..nodes).map(|node| Keeper::new(node as u64)).collect(),
            clock_us: 0,
            rng: StdRng::seed_from_u64(seed),
            flights: BTreeMap::new(),
            next_flight: 0,
            pauses: BTreeMap::new(),
            faults,
            moment: 0,
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next moment in the order of what clients do.
    pub fn moment(&self) -> u64 {
        let mut state = self.state();
        state.moment += 1;
        state.moment
    }

    /// The model's own time, in microseconds.
    pub fn now_us(&self) -> u64 {
        self.state().clock_us
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.state().rng.random_range(0..end.max(1))
    }

    /// From here on the node answers nothing.
    pub fn kill_node(&self, node: usize) {
        self.state().nodes[node] = None;
    }

    /// The node's daemon ends: nobody writes there any more, and what is under way ends here. Its bytes stay.
    pub(crate) fn stop_node(&self, node: usize) {
        let mut state = self.state();
        let State { nodes, keepers, .. } = &mut *state;
        if let Some(words) = nodes[node].take() {
            keepers[node].stop(words);
        }
    }

    /// It is back. It may have forgotten what it granted, and a node that is wiped is another one, of zeroes.
    pub(crate) fn start_node(&self, node: usize, forgets: bool, is_wiped: bool) {
        let mut state = self.state();
        let State { nodes, keepers, .. } = &mut *state;
        if let Some(words) = keepers[node].start(forgets, is_wiped) {
            nodes[node] = Some(words);
        }
    }

    /// It is back after power went: nothing of its memory is there.
    pub(crate) fn start_empty_node(&self, node: usize) {
        let mut state = self.state();
        let State { nodes, keepers, .. } = &mut *state;
        if let Some(words) = keepers[node].start_empty() {
            nodes[node] = Some(words);
        }
    }

    /// From here on nothing goes wrong any more.
    pub fn calm(&self) {
        let faults = &mut self.state().faults;
        *faults = Faults { delayed: 0, deaths: 0, node_dies_at: None, ..*faults };
    }

    /// Lets something begin, now or when a delay is over. `make` gets the moment before which nothing of it happens.
    pub(crate) fn post(&self, make: impl FnOnce(u64, &mut StdRng) -> Flight) -> u64 {
        let mut state = self.state();
        let State { rng, faults, clock_us, next_flight, flights, .. } = &mut *state;
        let is_delayed = rng.random_range(0..1000) < faults.delayed;
        let delay_us = if is_delayed { rng.random_range(0..3 * faults.lease_us) } else { 0 };
        *next_flight += 1;
        flights.insert(*next_flight, make(*clock_us + delay_us, rng));
        *next_flight
    }

    /// As [`World::post`], an operation on one node that ends with its daemon, and a write with its grant.
    pub(crate) fn post_to(&self, client: usize, chain: &Chain, grant: Option<u64>) -> u64 {
        let node = chain.steps().first().map_or(0, |(step, _)| usize::from(step.at().node));
        let ends = self.state().keepers[node].ends();
        self.post(|at, rng| Flight::of_member(client, chain, (node, ends, grant), at, rng))
    }

    /// The end of a flight, if it has come.
    pub(crate) fn take(&self, flight: u64) -> Option<Result<Outcome, Error>> {
        let mut state = self.state();
        if !state.flights.get(&flight)?.is_over() {
            return None;
        }
        state.flights.remove(&flight).map(Flight::outcome)
    }

    /// Lets all live until their ends, in an order of the seed's. An error: somebody does not end.
    pub fn run(&self, lives: Vec<Pin<Box<dyn Future<Output = ()>>>>) -> Result<Ended, String> {
        let mut lives: BTreeMap<usize, Life> = lives.into_iter().enumerate().collect();
        let mut deaths = 0;
        for step in 0..STEPS_MAX {
            if lives.is_empty() {
                return Ok(Ended { steps: step, deaths });
            }
            let next = self.choose(step, &lives);
            match next {
                Next::Dies(client) => {
                    deaths += 1;
                    lives.remove(&client);
                    self.state().pauses.remove(&client);
                }
                Next::Lives(client) => {
                    let Some(life) = lives.get_mut(&client) else { continue };
                    if life.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                        lives.remove(&client);
                    }
                }
                Next::Step(flight) => {
                    let mut state = self.state();
                    let State { flights, nodes, keepers, rng, .. } = &mut *state;
                    if let Some(flight) = flights.get_mut(&flight) {
                        flight.step(nodes, keepers, rng);
                    }
                }
                Next::Time => {}
            }
        }
        Err(format!("clients {:?} did not end in {STEPS_MAX} steps", lives.keys()))
    }

    fn choose(&self, step: u64, lives: &BTreeMap<usize, Life>) -> Next {
        let mut state = self.state();
        state.clock_us += u64::from(state.rng.random_range(1..8u32));
        let State { faults, clock_us, .. } = *state;
        if faults.node_dies_at == Some(step)
            && let Some(last) = state.nodes.last_mut()
        {
            *last = None;
        }
        if faults.deaths > 0 && state.rng.random_range(0..10_000) < faults.deaths {
            let mortal: Vec<usize> = lives.keys().copied().filter(|client| *client > 0).collect();
            if !mortal.is_empty() {
                return Next::Dies(mortal[state.rng.random_range(0..mortal.len())]);
            }
        }
        let is_ready = |flight: &Flight| !flight.is_over() && flight.not_before_us <= clock_us;
        let flights: Vec<u64> = state.flights.iter().filter(|(_, f)| is_ready(f)).map(|(id, _)| *id).collect();
        let waits = |client: &usize| {
            state.flights.values().any(|f| f.client == *client && !f.is_over())
                || state.pauses.get(client).is_some_and(|until| *until > clock_us)
        };
        let clients: Vec<usize> = lives.keys().copied().filter(|client| !waits(client)).collect();
        let count = flights.len() + clients.len();
        if count == 0 {
            // Nothing can happen now: time goes on to where something can.
            let due = state.flights.values().filter(|f| !f.is_over()).map(|f| f.not_before_us);
            let next = due.chain(state.pauses.values().copied()).filter(|at| *at > clock_us).min();
            state.clock_us = next.unwrap_or(clock_us + 1);
            return Next::Time;
        }
        match state.rng.random_range(0..count) {
            at if at < flights.len() => Next::Step(flights[at]),
            at => Next::Lives(clients[at - flights.len()]),
        }
    }
}

enum Next {
    Dies(usize),
    Lives(usize),
    Step(u64),
    Time,
}
