//! A client's place among those that use a pool: its lease, and the epoch that it holds.
//!
//! Owns the member's word on node 0. It must never move the pool's epoch past a client that is alive, and never keep it
//! back for a dead one longer than a lease.
//!
//! Nobody's clock is compared with another's: a client is dead if its word has not changed for a lease by the observer's
//! clock. So a client that looks at its own clock before its lease is over knows that nobody has taken it for dead: the
//! observer saw the word later than the client wrote it.

use crate::error::Error;
use crate::format::{MEMBERS_MAX, epoch, member};
use crate::memory::{Atomic, Memory};

const STATE_BITS: u32 = 2;
const HELD_BITS: u32 = 24;
const BEAT_BITS: u32 = 22;
const ACTIVE: u64 = 1;
const EVICTED: u64 = 2;

/// A member's word: state, the epoch that it holds, a count of its renewals, a count of those who had the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(life: u64, beat: u64, held: u64, state: u64) -> Self {
        let part = |value: u64, bits: u32, at: u32| (value & ((1 << bits) - 1)) << at;
        let life = life << (STATE_BITS + HELD_BITS + BEAT_BITS);
        Self(life | part(beat, BEAT_BITS, STATE_BITS + HELD_BITS) | part(held, HELD_BITS, STATE_BITS) | state)
    }

    fn state(self) -> u64 {
        self.0 & ((1 << STATE_BITS) - 1)
    }

    fn held(self) -> u64 {
        self.0 >> STATE_BITS & ((1 << HELD_BITS) - 1)
    }

    fn beat(self) -> u64 {
        self.0 >> (STATE_BITS + HELD_BITS) & ((1 << BEAT_BITS) - 1)
    }

    fn life(self) -> u64 {
        self.0 >> (STATE_BITS + HELD_BITS + BEAT_BITS)
    }

    fn holds(self, epoch: u64) -> bool {
        self.held() == epoch & ((1 << HELD_BITS) - 1)
    }

    fn renewed(self, epoch: u64) -> Self {
        Self::new(self.life(), self.beat() + 1, epoch, ACTIVE)
    }
}

/// When this client first saw another's word as it is.
#[derive(Debug, Clone, Copy)]
struct Observed {
    word: u64,
    since_us: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Member {
    slot: usize,
    word: Word,
    held: u64,
    /// Before the last renewal began.
    renewed_us: u64,
    lease_us: u64,
    others: [Observed; MEMBERS_MAX],
    pub(crate) evictions: u64,
}

/// The epoch and all words.
type Table = [u64; MEMBERS_MAX + 1];

async fn table<M: Memory>(memory: &M) -> Result<Table, Error> {
    let mut table = [0; MEMBERS_MAX + 1];
    memory.read(epoch(), &mut table).await?;
    Ok(table)
}

async fn swap<M: Memory>(memory: &M, slot: usize, from: u64, to: Word) -> Result<bool, Error> {
    let op = Atomic::CompareSwap { expected: from, new: to.0 };
    Ok(memory.atomic(member(slot), op).await? == from)
}

impl Member {
    /// Takes a slot: a free one, or that of a dead client. Waits for a lease at most.
    pub(crate) async fn join<M: Memory>(memory: &M, lease_us: u64) -> Result<Self, Error> {
        let begin = memory.now_us();
        let unseen = Observed { word: u64::MAX, since_us: begin };
        let mut new = Self {
            slot: 0,
            word: Word(0),
            held: 0,
            renewed_us: begin,
            lease_us,
            others: [unseen; MEMBERS_MAX],
            evictions: 0,
        };
        for attempt in 0.. {
            let asked = memory.now_us();
            let found = table(memory).await?;
            new.observe(&found, memory.now_us());
            for slot in (0..MEMBERS_MAX).filter(|slot| Word(found[slot + 1]).state() != ACTIVE) {
                let was = Word(found[slot + 1]);
                let word = Word::new(was.life() + 1, 0, found[0], ACTIVE);
                if swap(memory, slot, was.0, word).await? {
                    (new.slot, new.word, new.held, new.renewed_us) = (slot, word, found[0], asked);
                    return Ok(new);
                }
            }
            for slot in 0..MEMBERS_MAX {
                new.evict_if_dead(memory, slot, memory.now_us()).await?;
            }
            if memory.now_us() - begin > lease_us * 2 {
                break;
            }
            memory.pause(attempt).await;
        }
        Err(Error::MembersFull { max: MEMBERS_MAX, lease_us })
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    pub(crate) fn lease_us(&self) -> u64 {
        self.lease_us
    }

    /// The epoch that this client holds: nothing that was retired in it or later is used again.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Whether a quarter of the lease is over.
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.renewed_us) >= self.lease_us / 4
    }

    /// Whether nobody can have taken this client for dead. An eighth of the lease is for clocks that run at other speeds.
    pub(crate) fn is_sure(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.renewed_us) < self.lease_us - self.lease_us / 8
    }

    /// `now_us` is behind the look: taken earlier, a word could seem older than it is.
    fn observe(&mut self, table: &Table, now_us: u64) {
        for (observed, word) in self.others.iter_mut().zip(&table[1..]) {
            if observed.word != *word {
                *observed = Observed { word: *word, since_us: now_us };
            }
        }
    }

    /// Whether another client keeps nothing back (any more).
    async fn evict_if_dead<M: Memory>(&mut self, memory: &M, slot: usize, now_us: u64) -> Result<bool, Error> {
        let Observed { word, since_us } = self.others[slot];
        let seen = Word(word);
        if seen.state() != ACTIVE || word == u64::MAX {
            return Ok(seen.state() != ACTIVE);
        }
        if now_us.saturating_sub(since_us) < self.lease_us {
            return Ok(false);
        }
        let evicted = Word::new(seen.life(), seen.beat(), seen.held(), EVICTED);
        let is_out = swap(memory, slot, word, evicted).await?;
        self.evictions += u64::from(is_out);
        Ok(is_out)
    }

    /// Renews the lease and goes on holding the same epoch, since the client uses what it found.
    pub(crate) async fn beat<M: Memory>(&mut self, memory: &M) -> Result<(), Error> {
        self.renew(memory, self.held).await
    }

    async fn renew<M: Memory>(&mut self, memory: &M, epoch: u64) -> Result<(), Error> {
        let asked = memory.now_us();
        let word = self.word.renewed(epoch);
        if !swap(memory, self.slot, self.word.0, word).await? {
            return Err(Error::LeaseLost { lease_us: self.lease_us });
        }
        (self.word, self.held, self.renewed_us) = (word, epoch, asked);
        Ok(())
    }

    /// The client uses nothing at the moment: renews the lease, holds the pool's epoch, and moves that on if all hold it.
    /// Returns the pool's epoch.
    pub(crate) async fn advance<M: Memory>(&mut self, memory: &M) -> Result<u64, Error> {
        let table = table(memory).await?;
        let (now_us, pool) = (memory.now_us(), table[0]);
        self.observe(&table, now_us);
        self.renew(memory, pool).await?;
        let own = self.slot;
        for slot in (0..MEMBERS_MAX).filter(|slot| *slot != own) {
            let other = Word(table[slot + 1]);
            let keeps = other.state() == ACTIVE && !other.holds(pool);
            if keeps && !self.evict_if_dead(memory, slot, now_us).await? {
                return Ok(pool);
            }
        }
        let op = Atomic::CompareSwap { expected: pool, new: pool + 1 };
        let found = memory.atomic(epoch(), op).await?;
        Ok(if found == pool { pool + 1 } else { found })
    }

    /// Gives the slot back.
    pub(crate) async fn leave<M: Memory>(&self, memory: &M) -> Result<(), Error> {
        let free = Word::new(self.word.life(), self.word.beat(), self.held, 0);
        swap(memory, self.slot, self.word.0, free).await.map(drop)
    }
}
