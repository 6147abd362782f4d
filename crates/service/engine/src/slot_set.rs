//! A set of slots of a session, as bits.
//!
//! Owns nothing but the form: a program may name every slot that there is, and a bit of each is 8 KiB.

use crate::numbers::count;

/// See the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotSet(Vec<u8>);

impl SlotSet {
    /// From a bitmap: bit `i % 8` of byte `i / 8` stands for slot `i`.
    pub fn from_bitmap(bitmap: &[u8]) -> Self {
        Self(bitmap.to_vec())
    }

    /// Adds a slot. False: it is in the set already.
    pub fn insert(&mut self, slot: u32) -> bool {
        let (byte, bit) = (slot as usize / 8, 1 << (slot % 8));
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        let before = self.0[byte];
        self.0[byte] |= bit;
        before & bit == 0
    }

    /// Whether a slot is in the set.
    pub fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 8).is_some_and(|byte| byte & 1 << (slot % 8) != 0)
    }

    /// The last slot below `end`.
    pub fn last_below(&self, end: u32) -> Option<u32> {
        let bytes = &self.0[..self.0.len().min(end.div_ceil(8) as usize)];
        let last = bytes.iter().rposition(|byte| *byte != 0).map(count)?;
        (last * 8..last * 8 + 8).rev().find(|slot| *slot < end && self.contains(*slot)).or_else(|| {
            // The highest byte may have slots from `end` on alone.
            (0..last * 8).rev().find(|slot| self.contains(*slot))
        })
    }
}

impl FromIterator<u32> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u32>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| _ = set.insert(slot));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set() {
        let mut set: SlotSet = [0, 2, 63, 64].into_iter().collect();
        assert_eq!(set, SlotSet::from_bitmap(&[0b101, 0, 0, 0, 0, 0, 0, 0x80, 1]));
        assert!((0..100).filter(|slot| set.contains(*slot)).eq([0, 2, 63, 64]));
        let last = [0, 1, 2, 3, 63, 64, 65, 1000].map(|end| set.last_below(end));
        assert_eq!(last, [None, Some(0), Some(0), Some(2), Some(2), Some(63), Some(64), Some(64)]);
        assert!(set.insert(900) && !set.insert(900) && set.contains(900));
        assert_eq!(SlotSet::default().last_below(9), None);
    }
}
