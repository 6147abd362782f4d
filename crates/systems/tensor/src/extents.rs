//! Free memory of a pool.
//!
//! Owns which bytes belong to nobody. It must never give out a byte twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::HEADER_BYTES;

/// The bytes of a block for that payload: header and payload, in one of four classes for each doubling. So at most a
/// fifth of a block is wasted, and blocks that are freed fit again.
pub(crate) fn block_bytes(payload: u64) -> u64 {
    let units = 1 + payload.div_ceil(HEADER_BYTES);
    let step = 1 << units.ilog2().saturating_sub(2);
    units.next_multiple_of(step) * HEADER_BYTES
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    by_place: BTreeMap<u64, u64>,
    by_bytes: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Extents {
    pub(crate) fn new(begin: u64, bytes: u64) -> Self {
        let mut new = Self::default();
        new.insert(begin, bytes);
        new
    }

    fn insert(&mut self, at: u64, bytes: u64) {
        if bytes > 0 {
            self.by_place.insert(at, bytes);
            self.by_bytes.insert((bytes, at));
            self.free += bytes;
        }
    }

    fn remove(&mut self, at: u64) -> Option<u64> {
        let bytes = self.by_place.remove(&at)?;
        self.by_bytes.remove(&(bytes, at));
        self.free -= bytes;
        Some(bytes)
    }

    /// All free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// The longest free piece.
    pub(crate) fn largest(&self) -> u64 {
        self.by_bytes.last().map_or(0, |(bytes, _)| *bytes)
    }

    /// From the shortest piece that has so many.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (found, at) = *self.by_bytes.range((bytes, 0)..).next()?;
        self.remove(at);
        self.insert(at + bytes, found - bytes);
        Some(at)
    }

    /// Back, as one with its free neighbours.
    pub(crate) fn give_back(&mut self, at: u64, bytes: u64) {
        let (mut begin, mut end) = (at, at + bytes);
        if let Some(next) = self.remove(end) {
            end += next;
        }
        let before = self.by_place.range(..at).next_back().map(|(place, bytes)| (*place, *bytes));
        if let Some((place, bytes)) = before
            && place + bytes == at
        {
            self.remove(place);
            begin = place;
        }
        self.insert(begin, end - begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_a_fifth_at_most() {
        for payload in (0..200_000).step_by(77) {
            let (block, needed) = (block_bytes(payload), HEADER_BYTES + payload);
            assert!(block >= needed && block % HEADER_BYTES == 0);
            assert!(block - needed.next_multiple_of(HEADER_BYTES) <= block / 5, "{payload}: {block}");
        }
        assert_eq!(block_bytes(0), HEADER_BYTES);
    }

    #[test]
    fn no_byte_is_given_twice_and_all_come_back_as_one() {
        let mut extents = Extents::new(256, 1 << 20);
        let mut out: Vec<(u64, u64)> = Vec::new();
        let mut seed = 1u64;
        for _ in 0..5_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 63 == 0 || out.is_empty() {
                let bytes = block_bytes((seed >> 33) % 40_000);
                if let Some(at) = extents.take(bytes) {
                    assert!(out.iter().all(|(a, b)| at + bytes <= *a || a + b <= at), "given twice");
                    out.push((at, bytes));
                }
            } else {
                let (at, bytes) = out.swap_remove((seed >> 33) as usize % out.len());
                extents.give_back(at, bytes);
            }
            let used: u64 = out.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(extents.free() + used, 1 << 20);
        }
        out.drain(..).for_each(|(at, bytes)| extents.give_back(at, bytes));
        assert_eq!(extents.largest(), 1 << 20);
    }
}
