//! Words of the stamp page, and what is stored to them.
//!
//! Owns that no two epochs of any regions have the same stamp, so that a handle cannot take another region's word for
//! its own.

use std::collections::VecDeque;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Stamps {
    /// Those that were given back last are taken last: what they say of the old region stays readable for long.
    free: VecDeque<u32>,
    words: u32,
    last: u64,
}

impl Stamps {
    pub(super) fn new(words: u32) -> Self {
        Self { free: (0..words).collect(), words, last: 0 }
    }

    pub(super) fn take_word(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    pub(super) fn give_back(&mut self, word: u32) {
        self.free.push_back(word);
    }

    pub(super) fn next_stamp(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn in_use(&self) -> usize {
        self.words as usize - self.free.len()
    }
}
