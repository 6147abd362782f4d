//! A queue: first in, first out (Michael and Scott 1996).
//!
//! Owns the order of its steps: the tail never falls behind the head, so that no pointer to a block that is given back
//! stays in the queue.

use crate::client::{Attempts, Client, Tried};
use crate::error::Error;
use crate::layout::Layout;
use crate::list::{Node, first_link, is_of, node_layout, relink, target};
use crate::memory::{Chain, Memory};
use crate::place::Placement;
use crate::ptr::{Address, Ptr};

const KIND: u64 = u64::from_le_bytes(*b"rmem que");

/// A queue of `u64`. On other hosts and without contention:
///
/// | | READs | WRITEs | atomics |
/// |---|---|---|---|
/// | `push` | 2 | 1 | 2, and 1 for fresh memory |
/// | `pop` of a value | 4 | | 1 |
/// | `pop` of an empty queue | 3 | | |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue<P> {
    at: Ptr<[u64; 3]>,
    place: P,
}

impl<P: Placement> Queue<P> {
    /// Makes an empty queue.
    pub async fn create<M: Memory>(client: &mut Client<M>, place: P) -> Result<Self, Error> {
        let first: Ptr<Node> = client.allocate(node_layout()?, place, 0).await?.cast();
        client.fill(first.address(), &[first_link(first.epoch(), Ptr::NULL), 0, 0]).await?;
        let at = client.make(place, &[KIND, first.bits(), first.bits()]).await?;
        Ok(Self { at, place })
    }

    /// The queue at a pointer, as [`Queue::ptr`] and a root name have it. One READ.
    pub async fn open<M: Memory>(client: &Client<M>, at: Ptr<[u64; 3]>, place: P) -> Result<Self, Error> {
        let found = client.word(at.address()).await?;
        if found == KIND { Ok(Self { at, place }) } else { Err(Error::WrongKind { wanted: "queue", found }) }
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<[u64; 3]> {
        self.at
    }

    fn head(&self) -> Address {
        self.at.address().plus(1)
    }

    fn tail(&self) -> Address {
        self.at.address().plus(2)
    }

    /// Adds a value at the end.
    pub async fn push<M: Memory>(&self, client: &mut Client<M>, value: u64) -> Result<(), Error> {
        let (mut attempts, mut made) = (Attempts::new("adding to a queue"), None);
        loop {
            client.begin(&mut attempts).await?;
            match self.try_push(client, value, &mut made).await {
                Ok(Tried::Done(())) => return Ok(()),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    async fn try_push<M: Memory>(
        &self,
        client: &mut Client<M>,
        value: u64,
        made: &mut Option<Ptr<Node>>,
    ) -> Result<Tried<()>, Error> {
        let new = match *made {
            Some(new) => new,
            None => {
                let new: Ptr<Node> = client.allocate(node_layout()?, self.place, value).await?.cast();
                client.fill(new.address(), &[first_link(new.epoch(), Ptr::NULL), value]).await?;
                *made.insert(new)
            }
        };
        let last = Ptr::<Node>::from_bits(client.word(self.tail()).await?);
        let link = client.word(last.address()).await?;
        client.sure().await?;
        if !is_of(link, last) {
            return Ok(Tried::Again);
        }
        if !target(link).is_null() {
            // Somebody has added, and not yet said so.
            client.swap_if(self.tail(), last.bits(), target(link).with_tag(0).bits()).await?;
            return Ok(Tried::Again);
        }
        if client.swap_if(last.address(), link, relink(link, new)).await? != link {
            return Ok(Tried::Again);
        }
        // The value is in. Whoever comes next moves the tail, if this does not succeed.
        client.swap_if(self.tail(), last.bits(), new.bits()).await.ok();
        Ok(Tried::Done(()))
    }

    /// Takes the first value; `None` if there is none.
    pub async fn pop<M: Memory>(&self, client: &mut Client<M>) -> Result<Option<u64>, Error> {
        let mut attempts = Attempts::new("taking from a queue");
        loop {
            client.begin(&mut attempts).await?;
            match self.try_pop(client).await {
                Ok(Tried::Done(value)) => return Ok(value),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    async fn try_pop<M: Memory>(&self, client: &mut Client<M>) -> Result<Tried<Option<u64>>, Error> {
        let first = Ptr::<Node>::from_bits(client.word(self.head()).await?);
        // The tail is looked at after the head: so it is the head's node, or one behind it, for good.
        let mut chain = Chain::new();
        let tail = chain.read(self.tail(), 1);
        let node = chain.read(first.address(), 1);
        let found = client.memory().chain(chain).await?;
        let (tail, link) = (found[tail][0], found[node][0]);
        client.sure().await?;
        if !is_of(link, first) {
            return Ok(Tried::Again);
        }
        let next = target(link).with_tag(0);
        if next.is_null() {
            return Ok(Tried::Done(None));
        }
        if tail == first.bits() {
            client.swap_if(self.tail(), tail, next.bits()).await?;
        }
        let value = client.word(next.address().plus(1)).await?;
        client.sure().await?;
        if client.swap_if(self.head(), first.bits(), next.bits()).await? != first.bits() {
            return Ok(Tried::Again);
        }
        client.retire(first, node_layout()?);
        Ok(Tried::Done(Some(value)))
    }

    /// Gives back the queue's memory. Nobody may use it any more.
    pub async fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        let mut at = target(client.word(self.head()).await?);
        while !at.is_null() {
            let link = client.word(at.address()).await?;
            client.retire(at, node_layout()?);
            at = target(link);
        }
        client.retire(self.at, Layout::words(3)?);
        Ok(())
    }
}
