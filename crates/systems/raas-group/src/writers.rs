//! The handles by which this program writes members' memories.
//!
//! Owns which fence each is of. It must never give one for another fence, nor take one away for what an older one met.

use std::collections::BTreeMap;

/// See the head of this file. `R` is a handle.
#[derive(Debug)]
pub(crate) struct Writers<R>(BTreeMap<u8, (u64, R)>);

impl<R> Default for Writers<R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<R> Writers<R> {
    pub(crate) fn get(&self, member: u8, fence: u64) -> Option<&R> {
        self.0.get(&member).filter(|(held, _)| *held == fence).map(|(_, handle)| handle)
    }

    /// A memory was taken over, unless that is older news.
    pub(crate) fn add(&mut self, member: u8, fence: u64, handle: R) {
        if self.0.get(&member).is_none_or(|(held, _)| *held < fence) {
            self.0.insert(member, (fence, handle));
        }
    }

    /// The handle of this fence is of no use any more.
    pub(crate) fn remove(&mut self, member: u8, fence: u64) {
        if self.get(member, fence).is_some() {
            self.0.remove(&member);
        }
    }

    /// Members and fences.
    pub(crate) fn fences(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.0.iter().map(|(member, (fence, _))| (*member, *fence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_older_handle_takes_no_newer_one_away() {
        let mut writers = Writers::default();
        writers.add(1, 10, "first");
        writers.add(1, 12, "second");
        writers.add(1, 11, "late");
        assert_eq!((writers.get(1, 10), writers.get(1, 11), writers.get(1, 12)), (None, None, Some(&"second")));
        // A WRITE by the first one failed, as was to be expected.
        writers.remove(1, 10);
        assert_eq!(writers.get(1, 12), Some(&"second"));
        writers.remove(1, 12);
        assert_eq!((writers.get(1, 12), writers.fences().count()), (None, 0));
    }
}
