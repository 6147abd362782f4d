//! A hash map from numbers to bytes.
//!
//! Owns what get, put and remove mean. Each bucket is a sorted list. A value lies in a block of its own, which never
//! changes within a life, so a value may have any length and is never torn, and clients may keep what they read. A key is in the map while
//! its node's value is a pointer; who swaps that for 0 has removed it.

use crate::client::{Attempts, Client, Tried};
use crate::error::Error;
use crate::layout::Layout;
use crate::list::{Node, find, first_link, node_layout, put_in, take_out};
use crate::memory::Memory;
use crate::object::{bytes_of, words_of};
use crate::place::{Placement, mix};
use crate::ptr::{Address, Ptr, TAG_BITS};
use crate::seek::{Under, seek};

const KIND: u64 = u64::from_le_bytes(*b"rmem map");
const HEAD_WORDS: u64 = 2;
/// Buckets of a map, at most.
pub const BUCKETS_MAX: u64 = 1 << 24;
/// Bytes of a value, at most: its words are counted in a pointer's tag, so that one READ has exactly its length.
pub const VALUE_BYTES_MAX: u64 = ((1 << TAG_BITS) - 2) * 8;

/// A hash map from `u64` to bytes. With *n* nodes before the key's in its bucket, on other hosts and without contention
/// (docs/use/structures.md):
///
/// | | READs | WRITEs | atomics |
/// |---|---|---|---|
/// | `get` of a key that is there | n + 3; n + 2 if the value is in the cache | | |
/// | `get_by_kernel` | none, and 1 run of a kernel | | |
/// | `put` of a new key | n + 1 or n + 2 | 2 | 1, and 2 for fresh memory |
/// | `put` of a key that is there | n + 2 | 1 | 1, and 1 for fresh memory |
/// | `remove` of a key | n + 2 (n + 3 to return the value) | | 3 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map<P> {
    at: Ptr<[u64; 2]>,
    buckets: u64,
    place: P,
}

/// What a put made and has not shown to anybody.
#[derive(Debug, Default)]
struct Made {
    value: Option<Ptr<()>>,
    node: Option<Ptr<Node>>,
}

impl<P: Placement> Map<P> {
    /// Makes an empty map. Its buckets do not grow: as many as keys are expected keep lists short.
    pub async fn create<M: Memory>(client: &mut Client<M>, buckets: u64, place: P) -> Result<Self, Error> {
        if buckets == 0 || buckets > BUCKETS_MAX {
            return Err(Error::OutOfRange { what: "the number of buckets", value: buckets, max: BUCKETS_MAX });
        }
        let at = client.allocate(Layout::words(HEAD_WORDS + buckets)?, place, 0).await?.cast();
        let mut words = vec![first_link(0, Ptr::NULL); (HEAD_WORDS + buckets) as usize];
        (words[0], words[1]) = (KIND, buckets);
        client.fill(at.address(), &words).await?;
        Ok(Self { at, buckets, place })
    }

    /// The map at a pointer, as [`Map::ptr`] and a root name have it. One READ.
    pub async fn open<M: Memory>(client: &Client<M>, at: Ptr<[u64; 2]>, place: P) -> Result<Self, Error> {
        let [found, buckets] = client.words(at.address()).await?;
        if found != KIND || buckets == 0 || buckets > BUCKETS_MAX {
            return Err(Error::WrongKind { wanted: "map", found });
        }
        Ok(Self { at, buckets, place })
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<[u64; 2]> {
        self.at
    }

    fn head(&self, key: u64) -> Address {
        self.at.address().plus(HEAD_WORDS + mix(key) % self.buckets)
    }

    /// The value of a key.
    pub async fn get<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut attempts = Attempts::new("looking into a map");
        loop {
            client.begin(&mut attempts).await?;
            match self.try_get(client, key).await {
                Ok(Tried::Done(value)) => return Ok(value),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    async fn try_get<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<Tried<Option<Vec<u8>>>, Error> {
        let Tried::Done(spot) = find(client, self.head(key), key, true).await? else { return Ok(Tried::Again) };
        let Some([.., value]) = spot.with(key) else { return Ok(Tried::Done(None)) };
        Ok(Tried::Done(Some(read(client, value).await?)))
    }

    /// The value of a key, as [`Map::get`] finds it, by a kernel at the memory: one round trip, whatever the length of
    /// the bucket's list, if the list lies on one node of the pool. Each time that the list goes over to another node
    /// costs one more; so does a value of more than 856 bytes. The regions need `raas::RegionAccess::EXECUTE`. The cache
    /// is not asked.
    ///
    /// It costs the memory's host what the search costs: READs, which leave its processor alone, stay the better ones
    /// for short lists. One run passes about 500,000 nodes, and then ends with an error.
    pub async fn get_by_kernel<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut attempts = Attempts::new("looking into a map by a kernel");
        loop {
            client.begin(&mut attempts).await?;
            match self.try_by_kernel(client, key).await {
                Ok(Tried::Done(value)) => return Ok(value),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    async fn try_by_kernel<M: Memory>(
        &self,
        client: &mut Client<M>,
        key: u64,
    ) -> Result<Tried<Option<Vec<u8>>>, Error> {
        let Tried::Done(under) = seek(client, self.head(key), key).await? else { return Ok(Tried::Again) };
        Ok(Tried::Done(match under {
            Under::Nothing => None,
            Under::Value(words) => Some(bytes_of(&words)),
            Under::At(value) => Some(read(client, value.bits()).await?),
        }))
    }

    /// Stores a value under a key; whether the key was not there.
    pub async fn put<M: Memory>(&self, client: &mut Client<M>, key: u64, value: &[u8]) -> Result<bool, Error> {
        if value.len() as u64 > VALUE_BYTES_MAX {
            let value = value.len() as u64;
            return Err(Error::OutOfRange { what: "the length of a value", value, max: VALUE_BYTES_MAX });
        }
        let (words, mut made) = (words_of(value), Made::default());
        let mut attempts = Attempts::new("storing into a map");
        let is_new = loop {
            client.begin(&mut attempts).await?;
            match self.try_put(client, (key, &words), &mut made).await {
                Ok(Tried::Done(is_new)) => break is_new,
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        };
        if let Some(unused) = made.node {
            client.unmake(unused, node_layout()?).await?;
        }
        Ok(is_new)
    }

    async fn try_put<M: Memory>(
        &self,
        client: &mut Client<M>,
        (key, words): (u64, &[u64]),
        made: &mut Made,
    ) -> Result<Tried<bool>, Error> {
        let value = match made.value {
            Some(value) => value,
            None => {
                let layout = Layout::words(words.len() as u64)?;
                let value = client.allocate(layout, self.place, key).await?.with_tag(words.len() as u64);
                client.fill(value.address(), words).await?;
                *made.value.insert(value)
            }
        };
        let Tried::Done(spot) = find(client, self.head(key), key, true).await? else { return Ok(Tried::Again) };
        if let Some([.., old]) = spot.with(key) {
            if client.swap_if(spot.at().address().plus(2), old, value.bits()).await? != old {
                return Ok(Tried::Again);
            }
            retire(client, old)?;
            return Ok(Tried::Done(false));
        }
        let new = match made.node {
            Some(new) => new,
            None => *made.node.insert(client.allocate(node_layout()?, self.place, key).await?.cast()),
        };
        if put_in(client, &spot, new, [key, value.bits()]).await? {
            made.node = None;
            return Ok(Tried::Done(true));
        }
        Ok(Tried::Again)
    }

    /// Takes a key out; its value, if it was there.
    pub async fn remove<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut attempts = Attempts::new("removing from a map");
        loop {
            client.begin(&mut attempts).await?;
            match self.try_remove(client, key).await {
                Ok(Tried::Done(value)) => return Ok(value),
                Ok(Tried::Again) => {}
                Err(error) => client.forgive(&mut attempts, error).await?,
            }
        }
    }

    async fn try_remove<M: Memory>(&self, client: &mut Client<M>, key: u64) -> Result<Tried<Option<Vec<u8>>>, Error> {
        let Tried::Done(spot) = find(client, self.head(key), key, true).await? else { return Ok(Tried::Again) };
        let Some(mut node) = spot.with(key) else { return Ok(Tried::Done(None)) };
        let [.., value] = node;
        // Before the key is out: an error then means that nothing was done.
        let bytes = read(client, value).await?;
        if client.swap_if(spot.at().address().plus(2), value, 0).await? != value {
            return Ok(Tried::Again);
        }
        retire(client, value)?;
        node[2] = 0;
        // Whoever comes by next takes out the node, if this does not succeed.
        take_out(client, (spot.cell, spot.link), (spot.at(), node)).await.ok();
        Ok(Tried::Done(Some(bytes)))
    }
}

/// The bytes of a value.
async fn read<M: Memory>(client: &mut Client<M>, value: u64) -> Result<Vec<u8>, Error> {
    let value = Ptr::<()>::from_bits(value);
    let words = client.constant(value, value.tag() as usize).await?;
    Ok(bytes_of(&words))
}

fn retire<M: Memory>(client: &mut Client<M>, value: u64) -> Result<(), Error> {
    let value = Ptr::<()>::from_bits(value);
    client.retire(value, Layout::words(value.tag())?);
    Ok(())
}
