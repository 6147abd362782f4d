//! A set of numbers: the list of the tutorial (IntSet).
//!
//! Owns what insert, remove and contains mean. All three are linearizable and lock-free; a client that dies in one of
//! them leaves the set right.

use crate::client::{Attempts, Client, Tried};
use crate::error::Error;
use crate::layout::Layout;
use crate::list::{Node, dead, find, first_link, is_dead, node_layout, put_in, take_out, target};
use crate::memory::Memory;
use crate::place::Placement;
use crate::ptr::{Address, Ptr};

const KIND: u64 = u64::from_le_bytes(*b"rmem set");
/// Every node's value: sets have none.
const PRESENT: u64 = 1;

/// A sorted linked list as a set of `u64`. With *n* nodes whose keys are less than the one asked for, on other hosts and
/// without contention (docs/use/structures.md):
///
/// | | READs | WRITEs | atomics |
/// |---|---|---|---|
/// | `contains` | n + 2, or n + 1 at the end of the list | | |
/// | `insert` of a new key | the same | 1 | 1, and 1 for fresh memory |
/// | `remove` of a key | n + 2 | | 2 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListSet<P> {
    at: Ptr<[u64; 2]>,
    place: P,
}

impl<P: Placement> ListSet<P> {
    /// Makes an empty set. Its nodes are placed by `place`, and so is its head.
    pub async fn create<M: Memory>(client: &mut Client<M>, place: P) -> Result<Self, Error> {
        let at = client.make(place, &[KIND, first_link(0, Ptr::NULL)]).await?;
        Ok(Self { at, place })
    }

    /// The set at a pointer, as [`ListSet::ptr`] and a root name have it. One READ.
    pub async fn open<M: Memory>(client: &Client<M>, at: Ptr<[u64; 2]>, place: P) -> Result<Self, Error> {
        let found = client.word(at.address()).await?;
        if found != KIND {
            return Err(Error::WrongKind { wanted: "set", found });
        }
        Ok(Self { at, place })
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<[u64; 2]> {
        self.at
    }

    fn head(&self) -> Address {
        self.at.address().plus(1)
    }

    /// Whether the key is in it.
    pub async fn contains<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<bool, Error> {
        let mut attempts = Attempts::new("looking into a set");
        loop {
            client.begin(&mut attempts).await?;
            match find(client, self.head(), key, false).await {
                Ok(Tried::Done(spot)) => return Ok(spot.with(key).is_some()),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    /// Adds the key; whether it was not there.
    pub async fn insert<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<bool, Error> {
        let (mut attempts, mut made) = (Attempts::new("adding to a set"), None);
        let inserted = loop {
            client.begin(&mut attempts).await?;
            match self.try_insert(client, key, &mut made).await {
                Ok(Tried::Done(inserted)) => break inserted,
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        };
        if let Some(unused) = made {
            client.unmake(unused, node_layout()?).await?;
        }
        Ok(inserted)
    }

    /// `made` is a node that nobody else has seen.
    async fn try_insert<M: Memory>(
        &self,
        client: &mut Client<M>,
        key: u64,
        made: &mut Option<Ptr<Node>>,
    ) -> Result<Tried<bool>, Error> {
        let Tried::Done(spot) = find(client, self.head(), key, false).await? else { return Ok(Tried::Again) };
        if spot.with(key).is_some() {
            return Ok(Tried::Done(false));
        }
        let new = match *made {
            Some(new) => new,
            None => *made.insert(client.allocate(node_layout()?, self.place, key).await?.cast()),
        };
        if put_in(client, &spot, new, [key, PRESENT]).await? {
            *made = None;
            return Ok(Tried::Done(true));
        }
        Ok(Tried::Again)
    }

    /// Takes the key out; whether it was there.
    pub async fn remove<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<bool, Error> {
        let mut attempts = Attempts::new("removing from a set");
        loop {
            client.begin(&mut attempts).await?;
            match self.try_remove(client, key).await {
                Ok(Tried::Done(removed)) => return Ok(removed),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    async fn try_remove<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<Tried<bool>, Error> {
        let Tried::Done(spot) = find(client, self.head(), key, false).await? else { return Ok(Tried::Again) };
        let Some(mut node) = spot.with(key) else { return Ok(Tried::Done(false)) };
        let link = node[0];
        if client.swap_if(spot.at().address(), link, dead(link)).await? != link {
            return Ok(Tried::Again);
        }
        // The key is out. Whoever comes by next takes out the node, if this does not succeed.
        node[0] = dead(link);
        take_out(client, (spot.cell, spot.link), (spot.at(), node)).await.ok();
        Ok(Tried::Done(true))
    }

    /// The keys in order, at most `max` of them. It is no snapshot: keys that come and go meanwhile may be in it or not.
    pub async fn keys<M: Memory>(&self, client: &mut Client<M>, max: usize) -> Result<Vec<u64>, Error> {
        let mut keys: Vec<u64> = Vec::new();
        let mut from = 0;
        while keys.len() < max {
            let mut attempts = Attempts::new("walking through a set");
            client.begin(&mut attempts).await?;
            let spot = match find(client, self.head(), from, false).await {
                Ok(Tried::Done(spot)) => spot,
                Ok(Tried::Again) => continue,
                Err(error) => {
                    client.forgive(&mut attempts, error).await?;
                    continue;
                }
            };
            let mut next = spot.node;
            while let Some(node) = next.filter(|_| keys.len() < max) {
                if !is_dead(node[0]) {
                    keys.push(node[1]);
                }
                let at = target(node[0]);
                if at.is_null() {
                    next = None;
                    continue;
                }
                client.touch().await?;
                next = Some(client.words(at.address()).await?);
            }
            let Some(last) = keys.last().and_then(|last| last.checked_add(1)) else { break };
            if next.is_none() {
                break;
            }
            from = last;
        }
        Ok(keys)
    }

    /// Gives back the set's memory. Nobody may use it any more.
    pub async fn destroy<M: Memory>(self, client: &mut Client<M>) -> Result<(), Error> {
        let mut at = target(client.word(self.head()).await?);
        while !at.is_null() {
            let link = client.word(at.address()).await?;
            client.retire(at, node_layout()?);
            at = target(link);
        }
        client.retire(self.at, Layout::words(2)?);
        Ok(())
    }
}
