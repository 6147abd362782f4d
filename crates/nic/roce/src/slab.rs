//! A bounded table whose keys name a slot and its generation, so that a stale key finds nothing.

use std::collections::VecDeque;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Values by small keys. Freed slots are used again as late as possible.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    limit: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), limit: limit.min(INDEX_MASK) }
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Stores a value; gives it back if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        if (self.slots.len() as u32) < self.limit {
            self.slots.push(Slot { generation: 0, value: Some(value) });
            return Ok(self.slots.len() as u32 - 1);
        }
        match self.free.pop_front() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
                slot.value = Some(value);
                Ok(slot.generation << INDEX_BITS | index)
            }
            None => Err(value),
        }
    }

    pub(crate) fn at(&self, key: u32) -> Option<&T> {
        let slot = self.slots.get((key & INDEX_MASK) as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == key >> INDEX_BITS)
    }

    pub(crate) fn at_mut(&mut self, key: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((key & INDEX_MASK) as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == key >> INDEX_BITS)
    }

    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let slot = self.slots.get_mut((key & INDEX_MASK) as usize)?;
        if slot.generation != key >> INDEX_BITS {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push_back(key & INDEX_MASK);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_find_nothing() {
        let mut slab = Slab::new(2);
        let (a, b) = (slab.insert('a').expect("room"), slab.insert('b').expect("room"));
        assert_eq!(slab.insert('c'), Err('c'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert('c').expect("room again");
        assert_ne!(c, a);
        assert_eq!((slab.at(a), slab.at(b), slab.at(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(slab.at_mut(c).copied(), Some('c'));
        assert_eq!(slab.at(u32::MAX), None);
    }
}
