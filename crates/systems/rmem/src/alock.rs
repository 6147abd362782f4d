//! ALock: a lock for clients of the lock's host and of others (Baran and others, SPAA 2024).
//!
//! Owns the hand-over. The clients of each *cohort*, local and remote, wait in a queue (Mellor-Crummey and Scott 1991),
//! each at its own *seat*, which lies in memory of its own host if the pool has some there: so waiting costs no verb.
//! The heads of both queues settle by Peterson's algorithm (1981) whose cohort has the lock. A cohort passes the lock on
//! within itself [`BUDGET`] times, and then lets the other one in if somebody waits there.
//!
//! It has no repair: if its holder dies, whoever waits for longer than its patience *breaks* the lock, and everybody gets
//! an error from then on. [`LeaseLock`](crate::LeaseLock) goes on after a death, and costs more under contention.

use crate::client::Client;
use crate::error::Error;
use crate::layout::Layout;
use crate::memory::{Atomic, Memory};
use crate::place::{On, Placement};
use crate::ptr::{Address, Ptr};

/// How often a cohort passes the lock on within itself while the other one waits.
pub const BUDGET: u64 = 5;

const KIND: u64 = u64::from_le_bytes(*b"rmem alk");
const LOCK_WORDS: u64 = 5;
/// The cohorts: their tails are the words behind the kind.
const LOCAL: u64 = 0;
const REMOTE: u64 = 1;
const BROKEN: u64 = 1;
/// In a seat's first word: the lock has not come yet. Otherwise the budget that it came with.
const WAITS: u64 = u64::MAX;
const SEAT_WORDS: u64 = 2;
/// Looks at its own seat after which a waiter looks whether the lock is broken.
const LOOKS: u32 = 64;

/// A lock for clients of its own host and of others (docs/use/structures.md). On its own host nothing costs a verb. From another
/// one, without contention: to lock costs one atomic, one WRITE and one READ, to unlock one atomic. To take it over from
/// somebody of the same cohort: one atomic and one WRITE; to hand it over: one atomic and one WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ALock {
    at: Ptr<[u64; 5]>,
}

/// Where a client waits for a lock. It has one for each lock that it holds or waits for at a time.
#[derive(Debug)]
pub struct ALockSeat {
    at: Ptr<[u64; 2]>,
    /// A predecessor may still write to it.
    is_left: bool,
}

/// A lock that is held. It must be given back by [`ALockGuard::unlock`]: dropping it leaves the lock held.
#[derive(Debug)]
#[must_use = "a lock that is not unlocked stays locked"]
pub struct ALockGuard<'a> {
    lock: ALock,
    seat: &'a mut ALockSeat,
    cohort: u64,
    budget: u64,
}

/// How long somebody has waited, and may.
struct Patience {
    begin: u64,
    patience_us: u64,
}

impl Patience {
    fn check<M: Memory>(&self, client: &Client<M>, what: &'static str) -> Result<(), Error> {
        let waited_us = client.memory().now_us().saturating_sub(self.begin);
        if waited_us > self.patience_us { Err(Error::TimedOut { what, waited_us }) } else { Ok(()) }
    }
}

impl ALockSeat {
    /// Makes one: on the client's host if the pool has a node there, otherwise on node 0.
    pub async fn new<M: Memory>(client: &mut Client<M>) -> Result<Self, Error> {
        let node = client.memory().home().unwrap_or(0);
        let at = client.allocate(Layout::words(SEAT_WORDS)?, On(node), 0).await?.cast();
        Ok(Self { at, is_left: false })
    }

    fn next(&self) -> Address {
        self.at.address().plus(1)
    }

    /// Gives its memory back, unless a dead lock has it.
    pub async fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        if self.is_left { Ok(()) } else { client.free(self.at, Layout::words(SEAT_WORDS)?).await }
    }
}

impl ALock {
    /// Makes one.
    pub async fn create<M: Memory>(client: &mut Client<M>, place: impl Placement) -> Result<Self, Error> {
        let at = client.allocate(Layout::words(LOCK_WORDS)?, place, 0).await?.cast();
        client.fill(at.address(), &[KIND, 0, 0, LOCAL, 0]).await?;
        Ok(Self { at })
    }

    /// The lock at a pointer. One READ.
    pub async fn open<M: Memory>(client: &Client<M>, at: Ptr<[u64; 5]>) -> Result<Self, Error> {
        let found = client.word(at.address()).await?;
        if found == KIND { Ok(Self { at }) } else { Err(Error::WrongKind { wanted: "ALock", found }) }
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<[u64; 5]> {
        self.at
    }

    fn word(&self, number: u64) -> Address {
        self.at.address().plus(number)
    }

    fn tail(&self, cohort: u64) -> Address {
        self.word(1 + cohort)
    }

    /// Takes the lock. After `patience_us` microseconds it is broken for all, and the error is [`Error::TimedOut`]; if it
    /// is broken already, [`Error::LockBroken`].
    pub async fn lock<'a, M: Memory>(
        &self,
        client: &mut Client<M>,
        seat: &'a mut ALockSeat,
        patience_us: u64,
    ) -> Result<ALockGuard<'a>, Error> {
        if seat.is_left {
            *seat = ALockSeat::new(client).await?;
        }
        let cohort = if client.is_local(self.at.address()) { LOCAL } else { REMOTE };
        let patience = Patience { begin: client.memory().now_us(), patience_us };
        client.memory().write(seat.at.address(), &[WAITS, 0]).await?;
        // From here on others may know the seat.
        seat.is_left = true;
        match self.queue(client, seat, cohort, &patience).await {
            Ok(budget) => {
                seat.is_left = false;
                Ok(ALockGuard { lock: *self, seat, cohort, budget })
            }
            Err(error) => {
                if !matches!(error, Error::LockBroken) {
                    client.memory().write(self.word(4), &[BROKEN]).await.ok();
                }
                Err(error)
            }
        }
    }

    /// Waits in the cohort's queue; the budget with which the lock came.
    async fn queue<M: Memory>(
        &self,
        client: &mut Client<M>,
        seat: &ALockSeat,
        cohort: u64,
        patience: &Patience,
    ) -> Result<u64, Error> {
        let before = client.memory().atomic(self.tail(cohort), Atomic::Swap(seat.at.bits())).await?;
        if before == 0 {
            self.settle(client, cohort, patience).await?;
            return Ok(BUDGET);
        }
        let before = Ptr::<[u64; 2]>::from_bits(before);
        client.memory().write(before.address().plus(1), &[seat.at.bits()]).await?;
        for looks in 1.. {
            let budget = client.word(seat.at.address()).await?;
            if budget != WAITS {
                if budget > 0 {
                    return Ok(budget);
                }
                self.settle(client, cohort, patience).await?;
                return Ok(BUDGET);
            }
            if looks % LOOKS == 0 && client.word(self.word(4)).await? == BROKEN {
                return Err(Error::LockBroken);
            }
            patience.check(client, "the holder of an ALock")?;
            client.idle().await;
            client.memory().pause(looks).await;
        }
        Err(Error::LockBroken)
    }

    /// Settles with the other cohort's head whose turn it is.
    async fn settle<M: Memory>(&self, client: &mut Client<M>, cohort: u64, patience: &Patience) -> Result<(), Error> {
        client.memory().write(self.word(3), &[cohort]).await?;
        for looks in 1.. {
            let [local, remote, victim, broken] = client.words(self.word(1)).await?;
            let other = if cohort == LOCAL { remote } else { local };
            if broken == BROKEN {
                break;
            }
            if other == 0 || victim != cohort {
                return Ok(());
            }
            patience.check(client, "the other cohort of an ALock")?;
            client.idle().await;
            client.memory().pause(looks).await;
        }
        Err(Error::LockBroken)
    }

    /// Gives its memory back. Nobody may use it any more.
    pub fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        client.retire(self.at, Layout::words(LOCK_WORDS)?);
        Ok(())
    }
}

impl ALockGuard<'_> {
    /// Whether the holder is of the lock's host.
    pub fn is_local(&self) -> bool {
        self.cohort == LOCAL
    }

    /// Gives the lock back, or to who waits behind. Waits at most `patience_us` for one that has just come and not yet
    /// said where it sits; then the lock is broken, as by [`ALock::lock`].
    pub async fn unlock<M: Memory>(self, client: &mut Client<M>, patience_us: u64) -> Result<(), Error> {
        let Self { lock, seat, cohort, budget } = self;
        let me = seat.at.bits();
        if client.swap_if(lock.tail(cohort), me, 0).await? == me {
            return Ok(());
        }
        let patience = Patience { begin: client.memory().now_us(), patience_us };
        for looks in 1.. {
            let next = client.word(seat.next()).await?;
            if next != 0 {
                let next = Ptr::<[u64; 2]>::from_bits(next);
                return client.memory().write(next.address(), &[budget - 1]).await;
            }
            if let Err(error) = patience.check(client, "the next one of an ALock") {
                seat.is_left = true;
                client.memory().write(lock.word(4), &[BROKEN]).await.ok();
                return Err(error);
            }
            client.idle().await;
            client.memory().pause(looks).await;
        }
        Err(Error::LockBroken)
    }
}
