//! Blocks that never change within a life, kept by the client that read them.
//!
//! Owns what is kept, and the count of hits. An entry is found by the whole pointer, with the life in it: a block that
//! was used again has another pointer, so an entry needs no verb to be valid. Lives repeat after 4096; each takes two
//! epochs of the pool at least, so entries that are [`AGE_MAX`] epochs old are dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Epochs of the pool that an entry lives.
const AGE_MAX: u64 = 4096;

#[derive(Debug)]
struct Entry {
    words: Arc<[u64]>,
    epoch: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: HashMap<u64, Entry>,
    /// In the order in which they came.
    order: VecDeque<u64>,
    words: usize,
    words_max: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Cache {
    pub(crate) fn new(words_max: usize) -> Self {
        Self { words_max, ..Self::default() }
    }

    /// What the block of that pointer has, if it is kept.
    pub(crate) fn get(&mut self, bits: u64, epoch: u64) -> Option<Arc<[u64]>> {
        let entry = self.entries.get(&bits).filter(|entry| epoch.saturating_sub(entry.epoch) < AGE_MAX);
        let words = entry.map(|entry| Arc::clone(&entry.words));
        if self.words_max > 0 {
            *if words.is_some() { &mut self.hits } else { &mut self.misses } += 1;
        }
        words
    }

    /// Keeps a block, and drops the oldest ones instead.
    pub(crate) fn put(&mut self, bits: u64, epoch: u64, words: &[u64]) {
        if words.len() > self.words_max {
            return;
        }
        while self.words + words.len() > self.words_max {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(oldest);
        }
        self.words += words.len();
        if let Some(old) = self.entries.insert(bits, Entry { words: words.into(), epoch }) {
            self.words -= old.words.len();
        } else {
            self.order.push_back(bits);
        }
    }

    fn remove(&mut self, bits: u64) {
        if let Some(entry) = self.entries.remove(&bits) {
            self.words -= entry.words.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_fits_and_forgets_what_is_old() {
        let mut cache = Cache::new(4);
        cache.put(1, 10, &[1, 1]);
        cache.put(2, 10, &[2, 2]);
        assert_eq!(cache.get(1, 10).as_deref(), Some([1, 1].as_slice()));
        cache.put(3, 11, &[3, 3]);
        assert!(cache.get(1, 11).is_none(), "the oldest went");
        cache.put(3, 12, &[4]);
        assert_eq!(cache.get(3, 12).as_deref(), Some([4].as_slice()));
        assert!(cache.get(3, 12 + AGE_MAX).is_none(), "its pointer may be of another life by now");
        cache.put(4, 12, &[0; 5]);
        assert!(cache.get(4, 12).is_none(), "too long");
        assert_eq!((cache.hits, cache.misses, cache.words), (2, 3, 1));
    }

    #[test]
    fn without_room_it_counts_nothing() {
        let mut cache = Cache::new(0);
        cache.put(1, 1, &[1]);
        assert!(cache.get(1, 1).is_none());
        assert_eq!((cache.hits, cache.misses), (0, 0));
    }
}
