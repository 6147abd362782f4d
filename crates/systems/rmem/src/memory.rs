//! Remote memory as the structures see it: words of nodes, and operations on them.
//!
//! Owns the meaning of each operation. The structures are written against this trait alone, so that the same code runs
//! over regions ([`Pool`](crate::Pool)) and over a model that plays every order of steps and every death from a seed.

use raas::kernels::{Sorted, Sought};

use crate::error::Error;
use crate::ptr::Address;

/// What an atomic operation does with the word that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `new` if it finds `expected`.
    CompareSwap {
        /// What must be there.
        expected: u64,
        /// What is then stored.
        new: u64,
    },
    /// Adds, modulo 2^64.
    Add(u64),
    /// Stores the operand.
    Swap(u64),
    /// Stores the operand if it is greater.
    Max(u64),
}

/// One operation of a [`Chain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reads words.
    Read {
        /// From where.
        at: Address,
        /// How many.
        words: usize,
    },
    /// Writes words.
    Write {
        /// To where.
        at: Address,
        /// Which.
        words: Vec<u64>,
    },
    /// Changes a word.
    Atomic {
        /// Which.
        at: Address,
        /// How.
        op: Atomic,
    },
}

impl Step {
    /// Where it begins.
    #[must_use]
    pub fn at(&self) -> Address {
        match self {
            Self::Read { at, .. } | Self::Write { at, .. } | Self::Atomic { at, .. } => *at,
        }
    }
}

/// Operations that are submitted together. On one node a WRITE takes effect before the READs and atomics behind it;
/// otherwise they overlap, unless a fence stands between them. Between nodes there is no order at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    steps: Vec<(Step, bool)>,
    is_fenced: bool,
}

impl Chain {
    /// Without operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, step: Step) -> usize {
        self.steps.push((step, std::mem::take(&mut self.is_fenced)));
        self.steps.len() - 1
    }

    /// Reads words; returns the operation's number, as all of these do.
    pub fn read(&mut self, at: Address, words: usize) -> usize {
        self.push(Step::Read { at, words })
    }

    /// Writes words.
    pub fn write(&mut self, at: Address, words: impl Into<Vec<u64>>) -> usize {
        self.push(Step::Write { at, words: words.into() })
    }

    /// Changes a word.
    pub fn atomic(&mut self, at: Address, op: Atomic) -> usize {
        self.push(Step::Atomic { at, op })
    }

    /// The next operation begins when all before it on its node are done.
    pub fn fence(&mut self) {
        self.is_fenced = true;
    }

    /// Its operations, each with whether a fence stands before it.
    #[must_use]
    pub fn steps(&self) -> &[(Step, bool)] {
        &self.steps
    }
}

/// What the operations of a [`Chain`] found: the words of a READ, the word before an atomic; what stands there of a
/// WRITE says nothing.
pub type Found = Vec<Vec<u64>>;

/// The memory of several nodes, as one client reaches it.
///
/// A word is 8 bytes at a multiple of 8, in the byte order of the hosts, which all have the same. Words are never torn;
/// several words together may be, and their order is open. Operations on one word have one order for all clients, which
/// agrees with time, and an atomic one is one step in it, wherever it comes from.
///
/// Each method is a future. Dropping one takes nothing back: its operation may happen, or happen later.
pub trait Memory: Send + Sync {
    /// How many nodes there are; they have the numbers from 0.
    fn nodes(&self) -> usize;

    /// Bytes of a node.
    fn bytes(&self, node: u8) -> Result<u64, Error>;

    /// Whether a node lies on this client's host, so that operations on it cost no verb.
    fn is_local(&self, node: u8) -> bool;

    /// Microseconds of a clock of this client's own, which never goes back.
    fn now_us(&self) -> u64;

    /// Reads words.
    fn read(&self, at: Address, words: &mut [u64]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes words. When it is done every later look sees them.
    fn write(&self, at: Address, words: &[u64]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Changes a word; returns what was there.
    fn atomic(&self, at: Address, op: Atomic) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Does several operations. An error is that of the first that failed; those behind a fence after it are not done.
    fn chain(&self, chain: Chain) -> impl Future<Output = Result<Found, Error>> + Send;

    /// Has the kernel [`Sorted`] run at a node: one round trip, whatever the list's length. It reads words in an open
    /// order, at any moments until its answer is there, and changes none.
    fn seek(&self, node: u8, search: &Sorted) -> impl Future<Output = Result<Sought, Error>> + Send;

    /// Waits a little before attempt number `attempt`, longer for each.
    fn pause(&self, attempt: u32) -> impl Future<Output = ()> + Send;

    /// The first node on this client's host.
    fn home(&self) -> Option<u8> {
        (0..self.nodes()).map(|node| node as u8).find(|node| self.is_local(*node))
    }
}
