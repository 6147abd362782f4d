//! Names of what a pool has.
//!
//! Owns the table on node 0. Names are known by their hash of 64 bits: two names with one hash would be one root.

use crate::client::Client;
use crate::error::Error;
use crate::format::{ROOTS_MAX, root};
use crate::memory::Memory;
use crate::ptr::{Address, Ptr};

/// FNV-1a; never 0, which is an empty place.
fn hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    hash.max(1)
}

type Table = [u64; 2 * ROOTS_MAX];

/// The place of a name: where it is, or where it would be.
fn place(table: &Table, hash: u64) -> Option<(usize, bool)> {
    let turn = (0..ROOTS_MAX).map(|step| (hash as usize).wrapping_add(step) % ROOTS_MAX);
    let mut free = None;
    for number in turn {
        match table[number * 2] {
            found if found == hash => return Some((number, true)),
            0 => free = free.or(Some((number, false))),
            _ => {}
        }
    }
    free
}

fn value_of(number: usize) -> Address {
    root(number).plus(1)
}

impl<M: Memory> Client<M> {
    /// The pointer that has that name. One READ.
    pub async fn root<T>(&self, name: &str) -> Result<Option<Ptr<T>>, Error> {
        let table = self.words::<{ 2 * ROOTS_MAX }>(root(0)).await?;
        let found = place(&table, hash(name)).filter(|(_, is_there)| *is_there);
        Ok(found.map(|(number, _)| Ptr::from_bits(table[number * 2 + 1])).filter(|ptr| !ptr.is_null()))
    }

    /// Gives a pointer a name, if the name has none yet; otherwise returns the one that it has. A name keeps its place
    /// in the table for good. One READ and one or two atomics.
    pub async fn set_root<T>(&self, name: &str, ptr: Ptr<T>) -> Result<Result<(), Ptr<T>>, Error> {
        let hash = hash(name);
        loop {
            let table = self.words::<{ 2 * ROOTS_MAX }>(root(0)).await?;
            let (number, is_there) = place(&table, hash).ok_or(Error::RootsFull { max: ROOTS_MAX })?;
            // Each round that comes back here saw another place taken, so there are as many as places.
            if !is_there && ![0, hash].contains(&self.swap_if(root(number), 0, hash).await?) {
                continue;
            }
            let found = self.swap_if(value_of(number), 0, ptr.bits()).await?;
            return Ok(if found == 0 { Ok(()) } else { Err(Ptr::from_bits(found)) });
        }
    }

    /// Takes the name from a pointer, if it still has it. One READ and one atomic. Returns whether it had.
    pub async fn remove_root<T>(&self, name: &str, ptr: Ptr<T>) -> Result<bool, Error> {
        let table = self.words::<{ 2 * ROOTS_MAX }>(root(0)).await?;
        let Some((number, true)) = place(&table, hash(name)) else { return Ok(false) };
        Ok(self.swap_if(value_of(number), ptr.bits(), 0).await? == ptr.bits())
    }
}
