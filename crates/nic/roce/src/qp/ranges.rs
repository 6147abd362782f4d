//! Sets of packets as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Packets, counted from the first of the connection.
#[derive(Debug, Default, Clone)]
pub(crate) struct Ranges {
    /// Starts and ends.
    map: BTreeMap<u64, u64>,
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// How many ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.map.len()
    }

    /// The lowest packet.
    pub(crate) fn first(&self) -> Option<u64> {
        self.map.first_key_value().map(|(start, _)| *start)
    }

    /// The highest range.
    pub(crate) fn last(&self) -> Option<Range<u64>> {
        self.map.last_key_value().map(|(start, end)| *start..*end)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.iter().map(|(start, end)| *start..*end)
    }

    /// What is in the set from `start` on.
    pub(crate) fn iter_from(&self, start: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let within = self.map.range(..start).next_back().map(|(_, end)| start..*end).filter(|range| !range.is_empty());
        within.into_iter().chain(self.map.range(start..).map(|(start, end)| *start..*end))
    }

    pub(crate) fn contains(&self, packet: u64) -> bool {
        self.map.range(..=packet).next_back().is_some_and(|(_, end)| packet < *end)
    }

    /// Whether any packet of the range, or right before or after it, is in the set.
    pub(crate) fn touches(&self, range: &Range<u64>) -> bool {
        self.map.range(..=range.end).next_back().is_some_and(|(_, end)| *end >= range.start)
    }

    /// Adds packets; `added` gets those that were not there.
    pub(crate) fn insert(&mut self, range: Range<u64>, mut added: impl FnMut(Range<u64>)) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end, mut from) = (range.start, range.end, range.start);
        if let Some((&before, &before_end)) = self.map.range(..=range.start).next_back()
            && before_end >= range.start
        {
            if before_end >= range.end {
                return;
            }
            (start, from) = (before, before_end);
        }
        while let Some((&next, &next_end)) = self.map.range(from..).find(|(next, _)| **next != start) {
            if next > end {
                break;
            }
            if from < next {
                added(from..next.min(range.end));
            }
            from = next_end;
            end = end.max(next_end);
            self.map.remove(&next);
        }
        if from < range.end {
            added(from..range.end);
        }
        self.map.insert(start, end);
    }

    /// Takes packets out; `removed` gets those that were there.
    pub(crate) fn remove(&mut self, range: Range<u64>, mut removed: impl FnMut(Range<u64>)) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.map.range(..range.end).next_back() {
            if end <= range.start {
                return;
            }
            self.map.remove(&start);
            if end > range.end {
                self.map.insert(range.end, end);
            }
            if start < range.start {
                self.map.insert(start, range.start);
            }
            removed(start.max(range.start)..end.min(range.end));
        }
    }

    /// Calls `each` for the parts of `range` that are not in the set, in order.
    pub(crate) fn for_gaps(&self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        let mut from = range.start;
        if let Some((_, &end)) = self.map.range(..=range.start).next_back() {
            from = from.max(end);
        }
        for (&start, &end) in self.map.range(range.start..range.end.max(range.start)) {
            if from < start {
                each(from..start);
            }
            from = from.max(end);
        }
        if from < range.end {
            each(from..range.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn ranges_are_as_sets_of_numbers() {
        let mut rng = SmallRng::seed_from_u64(7);
        for _ in 0..300 {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for _ in 0..60 {
                let start = rng.random_range(0..80_u64);
                let range = start..start + rng.random_range(0..12);
                let mut told = Vec::new();
                if rng.random_range(0..3) > 0 {
                    ranges.insert(range.clone(), |part| told.extend(part));
                    let new: Vec<u64> = range.clone().filter(|n| set.insert(*n)).collect();
                    assert_eq!(told, new);
                } else {
                    ranges.remove(range.clone(), |part| told.extend(part));
                    told.sort_unstable();
                    let gone: Vec<u64> = range.clone().filter(|n| set.remove(n)).collect();
                    assert_eq!(told, gone);
                }
                let all: Vec<u64> = ranges.iter().flatten().collect();
                assert_eq!(all, set.iter().copied().collect::<Vec<_>>());
                let apart = ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.end < b.start);
                assert!(apart, "{ranges:?}");
                assert_eq!((0..100).filter(|n| ranges.contains(*n)).count(), set.len());
                let from: Vec<u64> = ranges.iter_from(40).flatten().collect();
                assert_eq!(from, set.range(40..).copied().collect::<Vec<_>>());
                let mut gaps = Vec::new();
                ranges.for_gaps(range.clone(), |part| gaps.extend(part));
                assert_eq!(gaps, range.filter(|n| !set.contains(n)).collect::<Vec<_>>());
            }
        }
    }
}
