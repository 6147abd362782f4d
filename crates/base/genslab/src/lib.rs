//! A bounded slab whose keys carry a generation, so that a stale key finds nothing.
//!
//! The published slabs with generations have keys of 64 bits, and reuse first what was freed last. Here a key goes over
//! the wire in the 27 bits that are free in a frame, or to an application as a device's object number. So it is as
//! small as its [`Key`] says. A freed index waits until all indices that were freed before it have been used again. So
//! a stale key differs from live ones for as many uses of its index as the generation counts. No key is 0. A lookup
//! never panics, whatever the bits are: keys come from peers.
//!
//! Owns the keys and the order in which indices are used again. It must never give a key that is 0, or one that a
//! live entry has. May use nothing of the house. Order of calls: none: what was freed is not found.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// A length or an index that does not fit is a bug that bytes from elsewhere look for.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;

/// A number that names an entry of one slab.
pub trait Key: Copy + Eq + fmt::Debug {
    /// Bits of the index, the lowest ones.
    const INDEX_BITS: u32;
    /// Bits of index and generation, at most 32; the rest is 0.
    const KEY_BITS: u32;
    /// Freed indices that wait at least, while unused ones are left.
    const REUSE_DELAY: usize;

    /// From its bits, valid or not.
    fn from_bits(bits: u32) -> Self;
    /// Its bits; never 0 for a key that a slab gave out.
    fn bits(self) -> u32;
}

/// The largest index of `K`, and the most entries of its slabs.
pub const fn index_max<K: Key>() -> u32 {
    (1 << K::INDEX_BITS) - 1
}

/// A place in a slab as keys have it. No slab has more places than an index has bits for.
#[inline]
fn index(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The place of a key in its slab: below the slab's largest size, and taken again by another key when the entry is
/// gone.
#[inline]
pub fn index_of<K: Key>(key: K) -> usize {
    (key.bits() & index_max::<K>()) as usize
}

fn generation_of<K: Key>(key: K) -> u32 {
    key.bits() >> K::INDEX_BITS
}

/// A bare number: 20 bits of index, 12 of generation; every unused index goes before a freed one.
impl Key for u32 {
    const INDEX_BITS: u32 = 20;
    const KEY_BITS: u32 = 32;
    const REUSE_DELAY: usize = usize::MAX;

    fn from_bits(bits: u32) -> Self {
        bits
    }

    fn bits(self) -> u32 {
        self
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// The slab.
#[derive(Debug)]
pub struct GenSlab<K, T> {
    entries: Vec<Entry<T>>,
    free: VecDeque<u32>,
    max: u32,
    live: u32,
    _key: PhantomData<K>,
}

impl<K: Key, T> GenSlab<K, T> {
    const GENERATION_MAX: u32 = (1 << (K::KEY_BITS - K::INDEX_BITS)) - 1;

    /// An empty slab that will hold up to `max` entries (at most [`index_max`]).
    pub fn new(max: u32) -> Self {
        let max = max.min(index_max::<K>());
        Self { entries: Vec::new(), free: VecDeque::new(), max, live: 0, _key: PhantomData }
    }

    /// Entries that it may hold.
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// Entries that it holds.
    pub const fn len(&self) -> u32 {
        self.live
    }

    /// Whether it holds none.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Whether it holds as many as it may.
    pub const fn is_full(&self) -> bool {
        self.live >= self.max
    }

    /// Puts the value that `make` gives for its key; `None` if the slab is full.
    pub fn insert_with(&mut self, make: impl FnOnce(K) -> T) -> Option<K> {
        if self.is_full() {
            return None;
        }
        let fresh = self.entries.len() < self.max as usize;
        let index = match self.free.front() {
            Some(&i) if !fresh || self.free.len() >= K::REUSE_DELAY => {
                self.free.pop_front();
                i
            }
            _ if fresh => {
                self.entries.push(Entry { generation: 1, value: None });
                index(self.entries.len() - 1)
            }
            _ => return None,
        };
        let entry = self.entries.get_mut(index as usize)?;
        let key = K::from_bits(entry.generation << K::INDEX_BITS | index);
        entry.value = Some(make(key));
        self.live += 1;
        Some(key)
    }

    /// Puts a value; `None` if the slab is full.
    pub fn insert(&mut self, value: T) -> Option<K> {
        self.insert_with(|_| value)
    }

    /// The entry of a key.
    #[inline]
    pub fn get(&self, key: K) -> Option<&T> {
        let entry = self.entries.get(index_of(key))?;
        if entry.generation == generation_of(key) { entry.value.as_ref() } else { None }
    }

    /// The entry of a key, to change.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let entry = self.entries.get_mut(index_of(key))?;
        if entry.generation == generation_of(key) { entry.value.as_mut() } else { None }
    }

    /// Whether a key has an entry.
    pub fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Takes the entry of a key out; the key is stale from then on.
    pub fn remove(&mut self, key: K) -> Option<T> {
        let index = index_of(key);
        let entry = self.entries.get_mut(index)?;
        if entry.generation != generation_of(key) {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = if entry.generation == Self::GENERATION_MAX { 1 } else { entry.generation + 1 };
        self.free.push_back(key.bits() & index_max::<K>());
        self.live -= 1;
        Some(value)
    }

    /// Live entries by index.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        let key = |i: usize, e: &Entry<T>| K::from_bits(e.generation << K::INDEX_BITS | index(i));
        self.entries.iter().enumerate().filter_map(move |(i, e)| e.value.as_ref().map(|v| (key(i, e), v)))
    }

    /// Live entries at the `looks` places from `from` on, each with its place; and the place after them, if there are
    /// more.
    pub fn page(&self, from: u32, looks: u32) -> (impl Iterator<Item = (u32, K, &T)>, Option<u32>) {
        let (from, len) = (from as usize, self.entries.len());
        let end = from.saturating_add(looks as usize).min(len);
        let places = self.entries.get(from..end).unwrap_or_default().iter().enumerate();
        let live = places.filter_map(move |(i, entry)| {
            let place = index(from + i);
            Some((place, K::from_bits(entry.generation << K::INDEX_BITS | place), entry.value.as_ref()?))
        });
        (live, (from < end && end < len).then_some(index(end)))
    }

    /// The same, to change them.
    pub fn page_mut(&mut self, from: u32, looks: u32) -> (impl Iterator<Item = &mut T>, Option<u32>) {
        let (from, len) = (from as usize, self.entries.len());
        let end = from.saturating_add(looks as usize).min(len);
        let places = self.entries.get_mut(from..end).unwrap_or_default();
        (places.iter_mut().filter_map(|e| e.value.as_mut()), (from < end && end < len).then_some(index(end)))
    }

    /// Keys of live entries by index.
    pub fn keys(&self) -> Vec<K> {
        self.iter().map(|(k, _)| k).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Small(u32);

    impl Key for Small {
        const INDEX_BITS: u32 = 12;
        const KEY_BITS: u32 = 16;
        const REUSE_DELAY: usize = 1024;

        fn from_bits(bits: u32) -> Self {
            Self(bits)
        }

        fn bits(self) -> u32 {
            self.0
        }
    }

    #[test]
    fn a_freed_key_is_stale_and_its_index_is_not_reused_soon() {
        let mut slab: GenSlab<Small, u32> = GenSlab::new(4000);
        let a = slab.insert(7).unwrap();
        assert_ne!(a.bits(), 0);
        assert_eq!(slab.remove(a), Some(7));
        assert_eq!(slab.remove(a), None);
        assert!(slab.get(a).is_none());
        for _ in 0..Small::REUSE_DELAY - 1 {
            let b = slab.insert(1).unwrap();
            assert_ne!(index_of(b), index_of(a));
            slab.remove(b);
        }
        let reused = slab.insert(2).unwrap();
        assert_eq!(index_of(reused), index_of(a));
        assert_ne!(reused, a);
        assert!(slab.get(a).is_none());
    }

    #[test]
    fn a_full_slab_refuses_and_generations_skip_zero() {
        let mut slab: GenSlab<Small, ()> = GenSlab::new(1);
        for _ in 0..100 {
            let key = slab.insert(()).unwrap();
            assert!(generation_of(key) != 0 && key.bits() < 1 << Small::KEY_BITS, "{key:?}");
            assert!(slab.insert(()).is_none());
            slab.remove(key).unwrap();
        }
        assert!(slab.is_empty());
    }

    #[test]
    fn bare_numbers_use_every_index_before_a_freed_one() {
        let mut slab: GenSlab<u32, char> = GenSlab::new(2);
        let a = slab.insert('a').unwrap();
        slab.remove(a).unwrap();
        let b = slab.insert('b').unwrap();
        let c = slab.insert('c').unwrap();
        assert_eq!((index_of(b), index_of(c)), (1, 0));
        assert_eq!((slab.get(a), slab.get(b), slab.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(slab.insert('d'), None);
    }

    #[test]
    fn pages_show_every_entry_once_and_look_no_further_than_asked() {
        let mut t: GenSlab<Small, u32> = GenSlab::new(100);
        let keys: Vec<_> = (0..10).map(|n| t.insert(n).unwrap()).collect();
        for n in [0, 3, 4, 5, 9] {
            t.remove(keys[n]).unwrap();
        }
        let (mut seen, mut at, mut pages) = (Vec::new(), Some(0), 0);
        while let Some(from) = at {
            let (live, next) = t.page(from, 3);
            let live: Vec<_> = live.collect();
            assert!(live.iter().all(|(place, key, _)| (from..from + 3).contains(place) && t.contains(*key)));
            seen.extend(live.iter().map(|(_, _, n)| **n));
            (at, pages) = (next, pages + 1);
        }
        assert_eq!((seen, pages), (vec![1, 2, 6, 7, 8], 4));
        for from in [10, 11, u32::MAX] {
            let (live, next) = t.page(from, 3);
            assert_eq!((live.count(), next), (0, None));
            assert_eq!(t.page_mut(from, u32::MAX).0.count(), 0);
        }
    }

    #[test]
    fn any_bits_are_safe_to_look_up() {
        let mut slab: GenSlab<Small, u32> = GenSlab::new(10);
        slab.insert(1).unwrap();
        for bits in [0, 1, u32::MAX, index_max::<Small>(), 1 << Small::INDEX_BITS | 1] {
            assert!(slab.get(Small(bits)).is_none(), "{bits:#x}");
            assert!(slab.remove(Small(bits)).is_none());
        }
    }
}
