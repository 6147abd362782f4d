//! One user of a pool: its lease, its blocks, its cache.
//!
//! Owns reclamation: a block that was taken out of a structure is used again when no client can still look at it. That
//! is two epochs of the pool later; the pool's epoch moves on when every client that has a lease holds it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cache::Cache;
use crate::error::Error;
use crate::format::check;
use crate::heap::Heap;
use crate::layout::Layout;
use crate::member::Member;
use crate::memory::{Atomic, Memory};
use crate::object::{Object, Word};
use crate::place::{Choice, Placement};
use crate::ptr::{Address, Ptr};

/// Tries of one operation of a structure.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// Retired blocks of a client that wait, at most.
pub const LIMBO_MAX: usize = 1 << 16;
/// Retired blocks after which a client looks whether the epoch can move on.
const RETIRED_EACH: usize = 32;
/// Epochs that a retired block waits.
const GRACE: u64 = 2;
/// Words that the cache has room for, unless [`Client::set_cache_words`] says otherwise: 1 MiB.
const CACHE_WORDS: usize = 128 << 10;

/// A block that was taken out of its structure.
#[derive(Debug, Clone, Copy)]
struct Retired {
    ptr: Ptr<()>,
    layout: Layout,
}

/// What a client did, counted since it joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks read from the cache, without a verb.
    pub cache_hits: u64,
    /// Blocks that the cache did not have.
    pub cache_misses: u64,
    /// Blocks that wait for readers.
    pub retired: usize,
    /// Blocks that came back from there.
    pub reclaimed: u64,
    /// Clients that this one found dead.
    pub evictions: u64,
    /// How often this client was taken for dead itself, and joined again.
    pub rejoins: u64,
    /// The pool's epoch when this client last looked.
    pub epoch: u64,
}

impl Stats {
    /// Hits of the cache among all of its uses, 0 to 1; 0 if it was not used.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let all = self.cache_hits + self.cache_misses;
        if all == 0 { 0.0 } else { self.cache_hits as f64 / all as f64 }
    }
}

/// A user of a pool. Each thread or task has its own.
///
/// Structures take it as `&mut`, since every operation uses its lease, its free blocks and its cache. It renews its lease
/// by itself within operations; one that does none for a lease is taken for dead, keeps nobody waiting from then on, and
/// joins again with its next operation.
///
/// A future of an operation that is dropped before its end leaves what a client leaves that dies at that step: the
/// structure is right, the operation may have been done, and blocks in hand may be lost.
#[derive(Debug)]
pub struct Client<M: Memory> {
    memory: M,
    member: Member,
    heap: Heap,
    /// Those that were retired since the last look at the pool's epoch.
    fresh_limbo: Vec<Retired>,
    /// Older ones, each with an epoch that the pool had afterwards.
    limbo: VecDeque<(u64, Retired)>,
    next_look: usize,
    cache: Cache,
    staging: Vec<u64>,
    turn: u64,
    epoch: u64,
    reclaimed: u64,
    rejoins: u64,
}

/// The tries of one operation.
#[derive(Debug)]
pub(crate) struct Attempts {
    what: &'static str,
    count: u32,
    has_settled: bool,
}

impl Attempts {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, count: 0, has_settled: false }
    }
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum Tried<T> {
    Done(T),
    /// Somebody else was faster.
    Again,
}

impl<M: Memory> Client<M> {
    /// Joins the pool: looks at each node's head (one READ), and takes a place among the clients (one READ, one atomic).
    pub async fn join(memory: M) -> Result<Self, Error> {
        let lease_us = check(&memory).await?;
        let member = Member::join(&memory, lease_us).await?;
        let epoch = member.held();
        Ok(Self {
            memory,
            member,
            heap: Heap::default(),
            fresh_limbo: Vec::new(),
            limbo: VecDeque::new(),
            next_look: RETIRED_EACH,
            cache: Cache::new(CACHE_WORDS),
            staging: Vec::new(),
            turn: 0,
            epoch,
            reclaimed: 0,
            rejoins: 0,
        })
    }

    /// Leaves: gives back its place and its free blocks. What it retired and still waits is lost with it; so
    /// [`Client::settle`] first.
    pub async fn leave(mut self) -> Result<(), Error> {
        self.heap.give_all_back(&self.memory).await?;
        self.member.leave(&self.memory).await
    }

    /// The memory that it uses.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Its number among the clients, 0 to [`MEMBERS_MAX`](crate::MEMBERS_MAX) - 1. No other client that is alive has it.
    pub fn slot(&self) -> usize {
        self.member.slot()
    }

    /// The pool's lease, in microseconds.
    pub fn lease_us(&self) -> u64 {
        self.member.lease_us()
    }

    /// What it did.
    pub fn stats(&self) -> Stats {
        Stats {
            cache_hits: self.cache.hits,
            cache_misses: self.cache.misses,
            retired: self.limbo.len() + self.fresh_limbo.len(),
            reclaimed: self.reclaimed,
            evictions: self.member.evictions,
            rejoins: self.rejoins,
            epoch: self.epoch,
        }
    }

    /// Empties the cache, and gives it room for that many words; 0 turns it off.
    pub fn set_cache_words(&mut self, words: usize) {
        let (hits, misses) = (self.cache.hits, self.cache.misses);
        self.cache = Cache::new(words);
        (self.cache.hits, self.cache.misses) = (hits, misses);
    }

    // ---- the lease and the epoch

    /// Between operations: renews the lease, moves the pool's epoch on if no client holds an older one, and takes back
    /// the blocks that nobody can look at any more. One READ and one or two atomics. Operations do this by themselves
    /// once in a quarter of a lease, and for each 32 blocks that they retired.
    pub async fn renew(&mut self) -> Result<(), Error> {
        let epoch = match self.member.advance(&self.memory).await {
            Err(Error::LeaseLost { lease_us }) => {
                let (others, evictions) = (self.rejoins, self.member.evictions);
                self.member = Member::join(&self.memory, lease_us).await?;
                (self.rejoins, self.member.evictions) = (others + 1, evictions);
                self.member.held()
            }
            other => other?,
        };
        self.epoch = epoch;
        // The pool had this epoch after they were taken out of their structures.
        self.limbo.extend(self.fresh_limbo.drain(..).map(|retired| (epoch, retired)));
        while let Some((since, retired)) = self.limbo.front().copied() {
            if epoch < since + GRACE {
                break;
            }
            self.limbo.pop_front();
            self.reclaimed += 1;
            self.heap.give_back(&self.memory, retired.ptr, retired.layout).await?;
        }
        self.next_look = self.limbo.len() + RETIRED_EACH;
        Ok(())
    }

    /// Renews until nothing waits for readers, for at most two leases: then a client that is alive is slow. Returns
    /// how many blocks still wait.
    pub async fn settle(&mut self) -> Result<usize, Error> {
        let (begin, mut attempt) = (self.memory.now_us(), 0);
        loop {
            self.renew().await?;
            let waiting = self.limbo.len();
            if waiting == 0 || self.memory.now_us().saturating_sub(begin) > 2 * self.lease_us() {
                return Ok(waiting);
            }
            // The first rounds move the epoch on if nobody keeps it back.
            if attempt > GRACE as u32 {
                self.memory.pause(attempt).await;
            }
            attempt += 1;
        }
    }

    /// Before each try of an operation, when the client uses nothing of any structure.
    pub(crate) async fn begin(&mut self, attempts: &mut Attempts) -> Result<(), Error> {
        if attempts.count >= ATTEMPTS_MAX {
            return Err(Error::Contended { what: attempts.what, attempts: ATTEMPTS_MAX });
        }
        if attempts.count > 0 {
            self.memory.pause(attempts.count).await;
        }
        attempts.count += 1;
        let waiting = self.limbo.len() + self.fresh_limbo.len();
        if waiting >= LIMBO_MAX {
            let waiting = self.settle().await?;
            if waiting >= LIMBO_MAX {
                return Err(Error::LimboFull { waiting });
            }
        }
        if self.member.is_due(self.memory.now_us()) || waiting >= self.next_look {
            self.renew().await?;
        }
        Ok(())
    }

    /// After a try that failed and did nothing: whether another may succeed. What the try used is let go of.
    pub(crate) async fn forgive(&mut self, attempts: &mut Attempts, error: Error) -> Result<(), Error> {
        match error {
            Error::LeaseLost { .. } => Ok(()),
            // What was retired may be free soon.
            Error::NoMemory { .. } if !attempts.has_settled && self.stats().retired > 0 => {
                attempts.has_settled = true;
                self.settle().await.map(drop)
            }
            other => Err(other),
        }
    }

    /// Within an operation: keeps the lease, and with it all that was read.
    pub(crate) async fn touch(&mut self) -> Result<(), Error> {
        if self.member.is_due(self.memory.now_us()) { self.member.beat(&self.memory).await } else { Ok(()) }
    }

    /// While it waits for others, and uses nothing: keeps the lease, and keeps no epoch back.
    pub(crate) async fn idle(&mut self) {
        if self.member.is_due(self.memory.now_us()) {
            // If this fails, so does the operation that waits, and says why.
            self.renew().await.ok();
        }
    }

    /// What was read in this try was not used again meanwhile.
    pub(crate) async fn sure(&mut self) -> Result<(), Error> {
        if self.member.is_sure(self.memory.now_us()) { Ok(()) } else { self.member.beat(&self.memory).await }
    }

    // ---- blocks

    /// A block of zeroes or of old bytes, placed by a policy. From this client's own free blocks: no verb. Fresh: one
    /// atomic. `key` is what [`ByKey`](crate::ByKey) places by.
    pub async fn allocate(&mut self, layout: Layout, place: impl Placement, key: u64) -> Result<Ptr<()>, Error> {
        let choice = Choice { nodes: self.memory.nodes(), home: self.memory.home(), key, turn: self.turn };
        self.turn += 1;
        let node = place.node(&choice)?;
        self.heap.allocate(&self.memory, node, layout).await
    }

    /// Gives a block back that nobody else has ever seen, or can still look at. No verb, mostly.
    pub async fn free<T>(&mut self, ptr: Ptr<T>, layout: Layout) -> Result<(), Error> {
        self.heap.give_back(&self.memory, ptr.cast(), layout).await
    }

    /// Gives a block back that others may still look at: it is used again when they do not. No verb.
    pub fn retire<T>(&mut self, ptr: Ptr<T>, layout: Layout) {
        self.fresh_limbo.push(Retired { ptr: ptr.cast(), layout });
    }

    /// A block that was made and never shown: the life that it was to have has not begun.
    pub(crate) async fn unmake<T>(&mut self, ptr: Ptr<T>, layout: Layout) -> Result<(), Error> {
        let before = Ptr::<()>::new(ptr.address(), ptr.epoch().saturating_sub(1));
        self.heap.give_back(&self.memory, before, layout).await
    }

    /// Allocates a block for a value and writes it there: one WRITE more than [`Client::allocate`].
    pub async fn make<T: Object>(&mut self, place: impl Placement, value: &T) -> Result<Ptr<T>, Error> {
        let ptr = self.allocate(Layout::words(T::WORDS as u64)?, place, 0).await?.cast();
        let mut words = vec![0; T::WORDS];
        value.put(&mut words);
        self.fill(ptr.address(), &words).await?;
        Ok(ptr)
    }

    /// Writes to a block that nobody else sees, so that it does not matter if it is done twice.
    pub(crate) async fn fill(&self, at: Address, words: &[u64]) -> Result<(), Error> {
        const TRIES: u32 = 3;
        for _ in 0..TRIES {
            match self.memory.write(at, words).await {
                Err(Error::OutcomeUnknown { .. }) => {}
                other => return other,
            }
        }
        self.memory.write(at, words).await
    }

    // ---- values; each is one verb, or none on this host

    /// The value at `ptr`, through a buffer of this client's that is used again each time. One READ.
    pub async fn load<T: Object>(&mut self, ptr: Ptr<T>) -> Result<T, Error> {
        self.staging.clear();
        self.staging.resize(T::WORDS, 0);
        self.memory.read(ptr.address(), &mut self.staging).await?;
        Ok(T::get(&self.staging))
    }

    /// Stores a value. One WRITE. Values of several words may be seen in parts.
    pub async fn store<T: Object>(&mut self, ptr: Ptr<T>, value: &T) -> Result<(), Error> {
        self.staging.clear();
        self.staging.resize(T::WORDS, 0);
        value.put(&mut self.staging);
        self.memory.write(ptr.address(), &self.staging).await
    }

    /// Stores `new` if `expected` is there; otherwise the error inside is what is there. One atomic.
    pub async fn compare_exchange<T: Word>(&self, ptr: Ptr<T>, expected: T, new: T) -> Result<Result<T, T>, Error> {
        let [mut from, mut to] = [[0]; 2];
        expected.put(&mut from);
        new.put(&mut to);
        let found = self.swap_if(ptr.address(), from[0], to[0]).await?;
        Ok(if found == from[0] { Ok(expected) } else { Err(T::get(&[found])) })
    }

    /// Adds, modulo 2^64; returns what was there. One atomic.
    pub async fn fetch_add(&self, ptr: Ptr<u64>, value: u64) -> Result<u64, Error> {
        self.memory.atomic(ptr.address(), Atomic::Add(value)).await
    }

    /// Stores a value; returns what was there. One atomic.
    pub async fn swap<T: Word>(&self, ptr: Ptr<T>, value: T) -> Result<T, Error> {
        let mut word = [0];
        value.put(&mut word);
        let found = self.memory.atomic(ptr.address(), Atomic::Swap(word[0])).await?;
        Ok(T::get(&[found]))
    }

    // ---- words

    pub(crate) async fn word(&self, at: Address) -> Result<u64, Error> {
        let mut word = [0];
        self.memory.read(at, &mut word).await?;
        Ok(word[0])
    }

    pub(crate) async fn words<const N: usize>(&self, at: Address) -> Result<[u64; N], Error> {
        let mut words = [0; N];
        self.memory.read(at, &mut words).await?;
        Ok(words)
    }

    /// What was there; it is `expected` if `new` is there now.
    pub(crate) async fn swap_if(&self, at: Address, expected: u64, new: u64) -> Result<u64, Error> {
        self.memory.atomic(at, Atomic::CompareSwap { expected, new }).await
    }

    /// The words of a block that does not change within a life: from the cache, else by one READ. `ptr` was read in
    /// this try of an operation.
    pub(crate) async fn constant(&mut self, ptr: Ptr<()>, words: usize) -> Result<Arc<[u64]>, Error> {
        if let Some(words) = self.cache.get(ptr.bits(), self.epoch) {
            return Ok(words);
        }
        let mut found = vec![0; words];
        self.memory.read(ptr.address(), &mut found).await?;
        self.sure().await?;
        self.cache.put(ptr.bits(), self.epoch, &found);
        Ok(found.into())
    }

    pub(crate) fn is_local(&self, at: Address) -> bool {
        self.memory.is_local(at.node)
    }
}
