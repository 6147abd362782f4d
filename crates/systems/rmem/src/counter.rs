//! A counter.
//!
//! Owns nothing but its word: each operation is one step of the memory, and so wait-free and linearizable.

use crate::client::Client;
use crate::error::Error;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::place::Placement;
use crate::ptr::Ptr;

/// A number that clients add to. `add`: one atomic; `get`: one READ; on its own host neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter(Ptr<u64>);

impl Counter {
    /// Makes one that is 0.
    pub async fn create<M: Memory>(client: &mut Client<M>, place: impl Placement) -> Result<Self, Error> {
        Ok(Self(client.make(place, &0).await?))
    }

    /// The counter at a pointer.
    #[must_use]
    pub const fn at(ptr: Ptr<u64>) -> Self {
        Self(ptr)
    }

    /// Where it is.
    #[must_use]
    pub const fn ptr(self) -> Ptr<u64> {
        self.0
    }

    /// Adds, modulo 2^64; returns what it was.
    pub async fn add<M: Memory>(self, client: &Client<M>, value: u64) -> Result<u64, Error> {
        client.fetch_add(self.0, value).await
    }

    /// What it is.
    pub async fn get<M: Memory>(self, client: &Client<M>) -> Result<u64, Error> {
        client.word(self.0.address()).await
    }

    /// Gives its memory back. Nobody may use it any more.
    pub fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        client.retire(self.0, Layout::words(1)?);
        Ok(())
    }
}
