//! A barrier: nobody goes on before all have come.
//!
//! Owns the count of arrivals, which goes up for good, so that the barrier is used again and again.

use crate::client::Client;
use crate::error::Error;
use crate::layout::Layout;
use crate::memory::{Atomic, Memory};
use crate::place::Placement;
use crate::ptr::Ptr;

/// Parties of a barrier, at most.
pub const PARTIES_MAX: u64 = 1 << 20;

/// A barrier of a number of parties. To arrive is one atomic, and a READ for each look whether the others have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Barrier {
    at: Ptr<u64>,
    parties: u64,
}

impl Barrier {
    /// Makes one.
    pub async fn create<M: Memory>(client: &mut Client<M>, parties: u64, place: impl Placement) -> Result<Self, Error> {
        Ok(Self::at(client.make(place, &0).await?, check(parties)?))
    }

    /// The barrier at a pointer, of as many parties as it was made for.
    pub fn open(at: Ptr<u64>, parties: u64) -> Result<Self, Error> {
        Ok(Self::at(at, check(parties)?))
    }

    fn at(at: Ptr<u64>, parties: u64) -> Self {
        Self { at, parties }
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<u64> {
        self.at
    }

    /// Waits until all parties have arrived, each once; for at most `patience_us` microseconds, and then
    /// [`Error::TimedOut`]: this party counts as arrived all the same. The client's lease is renewed meanwhile.
    pub async fn arrive<M: Memory>(&self, client: &mut Client<M>, patience_us: u64) -> Result<(), Error> {
        let found = client.memory().atomic(self.at.address(), Atomic::Add(1)).await?;
        let all = (found / self.parties + 1) * self.parties;
        let (begin, mut now) = (client.memory().now_us(), found + 1);
        for attempt in 0.. {
            if now >= all {
                break;
            }
            let waited_us = client.memory().now_us().saturating_sub(begin);
            if waited_us > patience_us {
                return Err(Error::TimedOut { what: "the other parties of a barrier", waited_us });
            }
            client.idle().await;
            client.memory().pause(attempt).await;
            now = client.word(self.at.address()).await?;
        }
        Ok(())
    }

    /// Gives its memory back. Nobody may use it any more.
    pub fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        client.retire(self.at, Layout::words(1)?);
        Ok(())
    }
}

fn check(parties: u64) -> Result<u64, Error> {
    if (1..=PARTIES_MAX).contains(&parties) {
        Ok(parties)
    } else {
        Err(Error::OutOfRange { what: "the parties of a barrier", value: parties, max: PARTIES_MAX })
    }
}
