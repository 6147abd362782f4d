//! Deficit round robin over the connections of one lane, or the datagram sockets, that have something to send.
//!
//! Owns the order of turns. It must never look at connections that are not ready, and holds keys, not indices: a
//! connection that went away while it waited is skipped by its stale key.
//!
//! Each turn adds one quantum to the connection's deficit, and what it sends is taken off. A connection that has nothing
//! left leaves with its deficit cleared; one that spent its deficit goes to the back; one that the lane stopped keeps its place
//! and the rest of its turn (Shreedhar and Varghese, 1995).

use std::collections::VecDeque;

use crate::vqp::RouteId;

/// The ready list.
#[derive(Debug)]
pub(crate) struct Drr<K = RouteId> {
    ready: VecDeque<K>,
    quantum: u32,
    /// The first connection has been given the quantum of this turn.
    in_turn: bool,
}

impl<K: Copy> Drr<K> {
    pub(crate) fn new(quantum: u32) -> Self {
        Self { ready: VecDeque::new(), quantum, in_turn: false }
    }

    /// A connection became ready. The caller knows that it is not in the list.
    pub(crate) fn push(&mut self, route: K) {
        self.ready.push_back(route);
    }

    /// Whose turn it is.
    pub(crate) fn front(&self) -> Option<K> {
        self.ready.front().copied()
    }

    /// Begins the turn of the first connection, or goes on with it.
    pub(crate) fn begin_turn(&mut self, deficit: &mut u32) {
        if !self.in_turn {
            *deficit = deficit.saturating_add(self.quantum);
            self.in_turn = true;
        }
    }

    /// The first connection spent its turn: others come before it comes again.
    pub(crate) fn rotate(&mut self) {
        self.in_turn = false;
        if let Some(route) = self.ready.pop_front() {
            self.ready.push_back(route);
        }
    }

    /// The first connection leaves the list.
    pub(crate) fn leave(&mut self) {
        self.in_turn = false;
        self.ready.pop_front();
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.in_turn = false;
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    /// Serves flows with `backlog` bytes each in pieces of at most `piece`, `stop_every` bytes the lane stops; returns bytes
    /// served per flow when `total` have been served.
    fn serve(quantum: u32, backlog: &[u64], piece: u32, total: u64, stop_every: u64) -> Vec<u64> {
        let mut drr = Drr::new(quantum);
        let mut left = backlog.to_vec();
        let mut deficit = vec![0u32; backlog.len()];
        let mut served = vec![0u64; backlog.len()];
        (0..backlog.len()).for_each(|i| drr.push(RouteId::from_bits(i as u32)));
        let (mut sum, mut until_stop) = (0, stop_every);
        while let Some(route) = drr.front() {
            let i = route.bits() as usize;
            drr.begin_turn(&mut deficit[i]);
            loop {
                if sum >= total {
                    return served;
                }
                let n = left[i].min(piece.into()).min(deficit[i].into());
                if n == 0 {
                    break;
                }
                if until_stop < n {
                    until_stop = stop_every;
                    drr.begin_turn(&mut deficit[i]);
                    continue;
                }
                until_stop -= n;
                left[i] -= n;
                deficit[i] -= n as u32;
                served[i] += n;
                sum += n;
            }
            if left[i] == 0 {
                deficit[i] = 0;
                drr.leave();
            } else {
                drr.rotate();
            }
        }
        served
    }

    #[test]
    fn equal_backlogs_are_served_equally_within_one_quantum() {
        for (quantum, piece) in [(4096, 4096), (65536, 10_000), (10_000, 65536)] {
            let served = serve(quantum, &[10_000_000; 7], piece, 20_000_000, 1 << 17);
            let (min, max) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(max - min <= u64::from(quantum), "{served:?}");
        }
    }

    #[test]
    fn a_greedy_flow_does_not_delay_small_ones() {
        let mut backlog = [100u64; 50];
        backlog[0] = 1 << 40;
        let served = serve(65536, &backlog, 65536, 65536 + 49 * 100, u64::MAX);
        assert!(served[1..].iter().all(|&s| s == 100), "{served:?}");
    }

    #[test]
    fn everything_is_served_once() {
        assert_eq!(serve(4096, &[1, 5000, 0, 100_000], 1500, u64::MAX, 6000), [1, 5000, 0, 100_000]);
    }
}
