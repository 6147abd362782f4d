//! A slab whose keys carry a generation.
//!
//! Owns which keys are valid. A key is 18 index bits and 10 generation bits, the rest is 0; a freed index waits behind all other
//! freed ones before it is used again, so a stale key is told from a live one for at least 1,023 lives of its index. It
//! must never give out key 0, and a lookup never panics, whatever the bits are: keys come from peers.

use std::collections::VecDeque;
use std::fmt;

const INDEX_BITS: u32 = 18;
/// Bits of a key, the lowest of 32.
pub(crate) const KEY_BITS: u32 = 28;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_MAX: u32 = (1 << (KEY_BITS - INDEX_BITS)) - 1;
/// Freed indices that wait at least, while unused ones are left.
const REUSE_DELAY: usize = 1024;

/// Most entries of a table.
pub(crate) const INDEX_MAX: u32 = INDEX_MASK;

/// A number that names an entry of one table.
pub(crate) trait Key: Copy + Eq + fmt::Debug {
    /// From its bits, valid or not.
    fn from_bits(bits: u32) -> Self;
    /// Its bits; never 0 for a key that a table gave out.
    fn bits(self) -> u32;
}

/// The place of a key in its table: below the table's largest size, and taken again by another key when the entry is gone.
#[inline]
pub(crate) fn index_of(key: impl Key) -> usize {
    (key.bits() & INDEX_MASK) as usize
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(u32);
        impl $crate::table::Key for $name {
            fn from_bits(bits: u32) -> Self {
                Self(bits)
            }
            fn bits(self) -> u32 {
                self.0
            }
        }
    };
}
pub(crate) use key;

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// The slab.
#[derive(Debug)]
pub(crate) struct Table<K, T> {
    entries: Vec<Entry<T>>,
    free: VecDeque<u32>,
    max: u32,
    live: u32,
    _key: std::marker::PhantomData<K>,
}

impl<K: Key, T> Table<K, T> {
    /// An empty table that will hold up to `max` entries (at most [`INDEX_MAX`]).
    pub(crate) fn new(max: u32) -> Self {
        let max = max.min(INDEX_MAX);
        Self { entries: Vec::new(), free: VecDeque::new(), max, live: 0, _key: std::marker::PhantomData }
    }

    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.max
    }

    /// Puts the value that `make` gives for its key; `None` if the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(K) -> T) -> Option<K> {
        if self.is_full() {
            return None;
        }
        let fresh = self.entries.len() < self.max as usize;
        let index = match self.free.front() {
            Some(&i) if !fresh || self.free.len() >= REUSE_DELAY => {
                self.free.pop_front();
                i
            }
            _ if fresh => {
                self.entries.push(Entry { generation: 1, value: None });
                self.entries.len() as u32 - 1
            }
            _ => return None,
        };
        let entry = self.entries.get_mut(index as usize)?;
        let key = K::from_bits(entry.generation << INDEX_BITS | index);
        entry.value = Some(make(key));
        self.live += 1;
        Some(key)
    }

    pub(crate) fn insert(&mut self, value: T) -> Option<K> {
        self.insert_with(|_| value)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let entry = self.entries.get(index_of(key))?;
        if entry.generation == key.bits() >> INDEX_BITS { entry.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let entry = self.entries.get_mut(index_of(key))?;
        if entry.generation == key.bits() >> INDEX_BITS { entry.value.as_mut() } else { None }
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let index = key.bits() & INDEX_MASK;
        let entry = self.entries.get_mut(index as usize)?;
        if entry.generation != key.bits() >> INDEX_BITS {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = if entry.generation == GENERATION_MAX { 1 } else { entry.generation + 1 };
        self.free.push_back(index);
        self.live -= 1;
        Some(value)
    }

    /// Live entries by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(i, e)| e.value.as_ref().map(|v| (K::from_bits(e.generation << INDEX_BITS | i as u32), v)))
    }

    /// Live entries at the `looks` places from `from` on, each with its place; and the place after them, if there are more.
    pub(crate) fn page(&self, from: u32, looks: u32) -> (impl Iterator<Item = (u32, K, &T)>, Option<u32>) {
        let (from, len) = (from as usize, self.entries.len());
        let end = from.saturating_add(looks as usize).min(len);
        let places = self.entries.get(from..end).unwrap_or_default().iter().enumerate();
        let live = places.filter_map(move |(i, entry)| {
            let index = (from + i) as u32;
            Some((index, K::from_bits(entry.generation << INDEX_BITS | index), entry.value.as_ref()?))
        });
        (live, (from < end && end < len).then_some(end as u32))
    }

    /// The same, to change them.
    pub(crate) fn page_mut(&mut self, from: u32, looks: u32) -> (impl Iterator<Item = &mut T>, Option<u32>) {
        let (from, len) = (from as usize, self.entries.len());
        let end = from.saturating_add(looks as usize).min(len);
        let places = self.entries.get_mut(from..end).unwrap_or_default();
        (places.iter_mut().filter_map(|e| e.value.as_mut()), (from < end && end < len).then_some(end as u32))
    }

    /// Keys of live entries by index.
    pub(crate) fn keys(&self) -> Vec<K> {
        self.iter().map(|(k, _)| k).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    key!(TestKey);

    #[test]
    fn a_freed_key_is_stale_and_its_index_is_not_reused_soon() {
        let mut t: Table<TestKey, u32> = Table::new(4096);
        let a = t.insert(7).unwrap();
        assert_ne!(a.bits(), 0);
        assert_eq!(t.remove(a), Some(7));
        assert_eq!(t.remove(a), None);
        assert!(t.get(a).is_none());
        for _ in 0..REUSE_DELAY - 1 {
            let b = t.insert(1).unwrap();
            assert_ne!(b.bits() & INDEX_MASK, a.bits() & INDEX_MASK);
            t.remove(b);
        }
        let reused = t.insert(2).unwrap();
        assert_eq!(reused.bits() & INDEX_MASK, a.bits() & INDEX_MASK);
        assert_ne!(reused, a);
        assert!(t.get(a).is_none());
    }

    #[test]
    fn a_full_table_refuses_and_generations_skip_zero() {
        let mut t: Table<TestKey, ()> = Table::new(1);
        for _ in 0..2 * GENERATION_MAX {
            let k = t.insert(()).unwrap();
            assert_ne!(k.bits() >> INDEX_BITS, 0);
            assert!(t.insert(()).is_none());
            t.remove(k).unwrap();
        }
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn pages_show_every_entry_once_and_look_no_further_than_asked() {
        let mut t: Table<TestKey, u32> = Table::new(100);
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
        let mut t: Table<TestKey, u32> = Table::new(10);
        t.insert(1).unwrap();
        for bits in [0, 1, u32::MAX, INDEX_MASK, 1 << INDEX_BITS | 1] {
            assert!(t.get(TestKey::from_bits(bits)).is_none(), "{bits:#x}");
            assert!(t.remove(TestKey::from_bits(bits)).is_none());
        }
    }
}
