//! The model as `rmem::Memory`.
//!
//! Owns how a client waits: for its operation's steps, or for the end of a pause.

use std::task::Poll;

use kernels::{Sorted, Sought};
use rand::RngExt;
use rand::rngs::StdRng;
use rmem::{Address, Atomic, Chain, Error, Found, Memory};

use crate::flight::{Flight, Outcome};
use crate::world::World;

/// A client's view of a [`World`].
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) world: World,
    pub(crate) client: usize,
    pub(crate) home: Option<u8>,
    pub(crate) skew_us: u64,
}

impl World {
    /// The memory as a client sees it; node `home` is its own host's. Its clock begins anywhere.
    pub fn remote(&self, client: usize, home: Option<u8>) -> Remote {
        let skew_us = self.state().rng.random_range(0..1_000_000);
        Remote { world: self.clone(), client, home, skew_us }
    }
}

impl Remote {
    async fn fly(&self, make: impl FnOnce(u64, &mut StdRng) -> Flight) -> Result<Outcome, Error> {
        let flight = self.world.post(make);
        std::future::poll_fn(|_| self.world.take(flight).map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl Memory for Remote {
    fn nodes(&self) -> usize {
        self.world.state().nodes.len()
    }

    fn bytes(&self, node: u8) -> Result<u64, Error> {
        let state = self.world.state();
        match state.nodes.get(usize::from(node)) {
            Some(Some(memory)) => Ok(memory.len() as u64 * 8),
            Some(None) => Err(Error::NodeLost { node, why: "the model's node is dead".to_owned() }),
            None => Err(Error::NoNode { node, nodes: state.nodes.len() }),
        }
    }

    fn is_local(&self, node: u8) -> bool {
        self.home == Some(node)
    }

    fn now_us(&self) -> u64 {
        self.world.state().clock_us + self.skew_us
    }

    async fn read(&self, at: Address, words: &mut [u64]) -> Result<(), Error> {
        let mut chain = Chain::new();
        let number = chain.read(at, words.len());
        words.copy_from_slice(&self.chain(chain).await?[number]);
        Ok(())
    }

    async fn write(&self, at: Address, words: &[u64]) -> Result<(), Error> {
        let mut chain = Chain::new();
        chain.write(at, words);
        self.chain(chain).await.map(drop)
    }

    async fn atomic(&self, at: Address, op: Atomic) -> Result<u64, Error> {
        let mut chain = Chain::new();
        let number = chain.atomic(at, op);
        Ok(self.chain(chain).await?[number][0])
    }

    async fn chain(&self, chain: Chain) -> Result<Found, Error> {
        match self.fly(|at, rng| Flight::of_chain(self.client, &chain, at, rng)).await? {
            Outcome::Found(found) => Ok(found),
            Outcome::Sought(_) | Outcome::Taken(_) => Ok(Found::new()),
        }
    }

    async fn seek(&self, node: u8, search: &Sorted) -> Result<Sought, Error> {
        match self.fly(|at, rng| Flight::of_search(self.client, (node, search), at, rng)).await? {
            Outcome::Sought(sought) => Ok(sought),
            Outcome::Found(_) | Outcome::Taken(_) => Ok(Sought::Changed),
        }
    }

    async fn pause(&self, attempt: u32) {
        let until = {
            let mut state = self.world.state();
            let longest = 20 << attempt.min(5);
            let until = state.clock_us + state.rng.random_range(0..longest);
            state.pauses.insert(self.client, until);
            until
        };
        std::future::poll_fn(|_| {
            let mut state = self.world.state();
            if state.clock_us < until {
                return Poll::Pending;
            }
            state.pauses.remove(&self.client);
            Poll::Ready(())
        })
        .await;
    }
}
