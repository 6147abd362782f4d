//! A lock that goes on when its holder dies.
//!
//! Owns the lock's word: a count of its owners (the *token*), the client that has it, and a count of renewals. A waiter
//! that has seen the same word for a lease, by its own clock, takes the lock over. Nobody's clock is compared with
//! another's.
//!
//! A holder that is slow and not dead may still have a write on its way when the next one has the lock. No lock by lease
//! can exclude that: so what must not be overwritten carries the token, and is changed by compare-and-swap.

use std::time::Duration;

use crate::client::Client;
use crate::error::Error;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::place::Placement;
use crate::ptr::{Address, Ptr};

const KIND: u64 = u64::from_le_bytes(*b"rmem llk");
const HOLDER_AT: u32 = 16;
const TOKEN_AT: u32 = 24;

/// The lock's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    fn new(token: u64, holder: u64, beat: u64) -> Self {
        Self(token << TOKEN_AT | holder << HOLDER_AT | beat & u64::from(u16::MAX))
    }

    fn token(self) -> u64 {
        self.0 >> TOKEN_AT
    }

    /// 0: nobody.
    fn holder(self) -> u64 {
        self.0 >> HOLDER_AT & 0xff
    }

    fn renewed(self) -> Self {
        Self::new(self.token(), self.holder(), self.0 + 1)
    }
}

/// A lock with a lease. To lock: one READ and one atomic; to unlock: one atomic; to renew: one atomic. While another has
/// it, a READ for each look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLock {
    at: Ptr<[u64; 3]>,
    lease_us: u64,
}

/// A lock that is held until its lease is over.
#[derive(Debug)]
#[must_use = "a lock that is not unlocked stays locked until its lease is over"]
pub struct LeaseGuard {
    lock: LeaseLock,
    state: State,
    /// Before the last renewal began.
    renewed_us: u64,
    was_taken_over: bool,
}

impl LeaseLock {
    /// Makes one. Its holder must renew within `lease`; after its death others wait for one lease.
    pub async fn create<M: Memory>(
        client: &mut Client<M>,
        lease: Duration,
        place: impl Placement,
    ) -> Result<Self, Error> {
        let lease_us = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX).max(8);
        let at = client.make(place, &[KIND, 0, lease_us]).await?;
        Ok(Self { at, lease_us })
    }

    /// The lock at a pointer. One READ.
    pub async fn open<M: Memory>(client: &Client<M>, at: Ptr<[u64; 3]>) -> Result<Self, Error> {
        let [found, _, lease_us] = client.words(at.address()).await?;
        let is_it = found == KIND && lease_us >= 8;
        if is_it { Ok(Self { at, lease_us }) } else { Err(Error::WrongKind { wanted: "lock with a lease", found }) }
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<[u64; 3]> {
        self.at
    }

    fn state(&self) -> Address {
        self.at.address().plus(1)
    }

    /// Takes the lock; waits at most `patience_us` microseconds, and then fails with [`Error::TimedOut`]. With a patience
    /// of more than a lease, a dead holder is no reason for that.
    pub async fn lock<M: Memory>(&self, client: &mut Client<M>, patience_us: u64) -> Result<LeaseGuard, Error> {
        let begin = client.memory().now_us();
        let mut seen: Option<(State, u64)> = None;
        for attempt in 0.. {
            let state = State(client.word(self.state()).await?);
            let now = client.memory().now_us();
            let (_, since) = *seen.insert(seen.filter(|(before, _)| *before == state).unwrap_or((state, now)));
            if state.holder() == 0 || now.saturating_sub(since) >= self.lease_us {
                let new = State::new(state.token() + 1, client.slot() as u64 + 1, 0);
                if client.swap_if(self.state(), state.0, new.0).await? == state.0 {
                    let was_taken_over = state.holder() != 0;
                    return Ok(LeaseGuard { lock: *self, state: new, renewed_us: now, was_taken_over });
                }
            }
            let waited_us = now.saturating_sub(begin);
            if waited_us > patience_us {
                return Err(Error::TimedOut { what: "the holder of a lock with a lease", waited_us });
            }
            client.idle().await;
            client.memory().pause(attempt).await;
        }
        Err(Error::LockBroken)
    }

    /// Gives its memory back. Nobody may use it any more.
    pub fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        client.retire(self.at, Layout::words(3)?);
        Ok(())
    }
}

impl LeaseGuard {
    /// Its number among those who had the lock: greater than of all before.
    pub fn token(&self) -> u64 {
        self.state.token()
    }

    /// Whether the holder before did not give the lock back: what it protects may be half done.
    pub fn was_taken_over(&self) -> bool {
        self.was_taken_over
    }

    /// Before this moment of the client's own clock ([`Memory::now_us`]) nobody can have taken the lock over. An eighth
    /// of the lease is for clocks that run at other speeds.
    pub fn sure_until_us(&self) -> u64 {
        let LeaseLock { lease_us, .. } = self.lock;
        self.renewed_us + lease_us - lease_us / 8
    }

    /// Whether that moment is still to come.
    pub fn is_sure<M: Memory>(&self, client: &Client<M>) -> bool {
        client.memory().now_us() < self.sure_until_us()
    }

    /// Begins another lease. [`Error::LockLost`] if somebody took the lock over.
    pub async fn renew<M: Memory>(&mut self, client: &Client<M>) -> Result<(), Error> {
        let (asked, new) = (client.memory().now_us(), self.state.renewed());
        self.change(client, new).await?;
        (self.state, self.renewed_us) = (new, asked);
        Ok(())
    }

    /// Gives the lock back. [`Error::LockLost`] if somebody took it over before.
    pub async fn unlock<M: Memory>(self, client: &Client<M>) -> Result<(), Error> {
        self.change(client, State::new(self.token(), 0, 0)).await
    }

    async fn change<M: Memory>(&self, client: &Client<M>, new: State) -> Result<(), Error> {
        let found = client.swap_if(self.lock.state(), self.state.0, new.0).await?;
        if found == self.state.0 { Ok(()) } else { Err(Error::LockLost { token: self.token() }) }
    }
}
