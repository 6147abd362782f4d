//! What is going to happen, in order of virtual time; what was put in first happens first among equals.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use verbs::Time;

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    seq: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The earliest is the greatest, as `BinaryHeap` gives out the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// Events in order of their times.
#[derive(Debug)]
pub struct Schedule<E> {
    heap: BinaryHeap<Entry<E>>,
    seq: u64,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0 }
    }
}

impl<E> Schedule<E> {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts an event in.
    pub fn push(&mut self, at: Time, event: E) {
        self.seq += 1;
        self.heap.push(Entry { at, seq: self.seq, event });
    }

    /// When the earliest happens.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|e| e.at)
    }

    /// Takes the earliest out.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_order_of_arrival() {
        let mut q = Schedule::new();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            q.push(Time(at), name);
        }
        let order: Vec<char> = std::iter::from_fn(|| q.pop().map(|(_, e)| e)).collect();
        assert_eq!(order, ['a', 'b', 'c', 'd']);
    }
}
