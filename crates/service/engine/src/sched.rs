//! Deficit round robin over what has something to send on one lane: over applications, and over the connections of
//! each; and in the same way over the datagram sockets of a host.
//!
//! Owns the order of turns. It must never look at connections that are not ready, and holds keys, not indices: a
//! connection that went away while it waited is skipped by its stale key.
//!
//! In its turn an application may send one quantum of bytes; so may each of its connections among themselves. So an
//! application has the same share of the lane whether it has one connection or a thousand. One that has nothing left to
//! send leaves, and loses the rest of the quantum. One that spent its quantum goes to the back. A connection that was
//! stopped by the lane, or by the end of its application's turn, keeps its place and the rest of its own turn
//! (Shreedhar and Varghese, 1995). Pieces are cut to what is left, so no turn ends with bytes to spare, and 0 left
//! means that none has begun. Every step is O(1), and while one application sends alone nothing but a counter is added
//! to a plain list.

use std::collections::VecDeque;

use crate::ids::{AppId, RouteId};
use crate::limits::WORK_REQUEST_BYTES;
use crate::table::index_of;

/// The ready list.
#[derive(Debug)]
pub(crate) struct Drr<K = RouteId> {
    /// Connections of the application whose turn it is. Empty only if no application has any.
    ready: VecDeque<K>,
    /// Its index in the engine's table. An application that takes the index of one that left may find stale keys.
    current: usize,
    /// Bytes that are left of its turn; 0: the turn has not begun.
    left: u32,
    /// The other applications with something to send, each once, in order.
    waiting: VecDeque<usize>,
    /// Their connections, by index: at most `apps_max`.
    others: Vec<VecDeque<K>>,
    quantum: u32,
}

impl<K: Copy> Drr<K> {
    pub(crate) fn new(quantum: u32) -> Self {
        let (ready, waiting, others) = Default::default();
        Self { ready, current: 0, left: 0, waiting, others, quantum }
    }

    /// A connection became ready, with a deficit of 0. The caller knows that it is not in the list.
    #[inline]
    pub(crate) fn push(&mut self, app: AppId, route: K) {
        let index = index_of(app);
        if index == self.current { self.ready.push_back(route) } else { self.push_other(index, route) }
    }

    #[inline(never)]
    fn push_other(&mut self, index: usize, route: K) {
        let places = index.max(self.current) + 1;
        if self.others.len() < places {
            self.others.resize_with(places, VecDeque::new);
        }
        let nobody_has_turn = self.ready.is_empty();
        let Some(queue) = self.others.get_mut(index) else { return };
        if queue.is_empty() {
            self.waiting.push_back(index);
        }
        queue.push_back(route);
        if nobody_has_turn {
            self.next_application();
        }
    }

    /// Whose turn it is.
    #[inline]
    pub(crate) fn front(&self) -> Option<K> {
        self.ready.front().copied()
    }

    /// Begins the turn of the first application and its first connection, which has this deficit, or goes on with it.
    #[inline]
    pub(crate) fn begin_turn(&mut self, deficit: &mut u32) {
        if self.left == 0 {
            self.left = self.quantum;
        }
        if *deficit == 0 {
            *deficit = self.quantum;
        }
    }

    /// Bytes that the first connection, with this deficit, may send before its turn or its application's ends. While no
    /// other application waits its own turn alone counts, so that no piece is cut for nothing.
    #[inline]
    pub(crate) fn allowance(&self, deficit: u32) -> u32 {
        if self.waiting.is_empty() { deficit } else { self.left.min(deficit) }
    }

    /// The first connection, with this deficit, sent a piece. The last one of a turn may be longer than what was left. A
    /// short piece costs the application as much as [`WORK_REQUEST_BYTES`].
    #[inline]
    pub(crate) fn spend(&mut self, deficit: &mut u32, bytes: u32) {
        *deficit = deficit.saturating_sub(bytes);
        self.left = self.left.saturating_sub(bytes.max(WORK_REQUEST_BYTES));
    }

    /// The first connection, with this deficit left, may send no more in this turn: others come before it comes again.
    pub(crate) fn rotate(&mut self, deficit: u32) {
        if deficit == 0
            && let Some(route) = self.ready.pop_front()
        {
            self.ready.push_back(route);
        }
        self.end_turn_if_spent();
    }

    /// The first connection leaves the list; the caller clears its deficit.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.ready.pop_front();
        if self.ready.is_empty() { self.next_application() } else { self.end_turn_if_spent() }
    }

    #[inline]
    fn end_turn_if_spent(&mut self) {
        if self.left == 0 && !self.waiting.is_empty() {
            self.waiting.push_back(self.current);
            self.next_application();
        }
    }

    /// The turn of the first application is over.
    #[inline]
    fn next_application(&mut self) {
        self.left = 0;
        if let Some(index) = self.waiting.pop_front() {
            self.switch_to(index);
        }
    }

    #[inline(never)]
    fn switch_to(&mut self, index: usize) {
        // Both have their places, because one of them was pushed while the other was there.
        if let Some(place) = self.others.get_mut(self.current) {
            std::mem::swap(place, &mut self.ready);
        }
        if let Some(place) = self.others.get_mut(index) {
            std::mem::swap(place, &mut self.ready);
        }
        self.current = index;
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.quantum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    /// Connections of one application.
    fn of_one(backlog: &[u64]) -> Vec<(u32, u64)> {
        backlog.iter().map(|&bytes| (1, bytes)).collect()
    }

    /// Serves flows with an application and `backlog` bytes each in pieces of at most `piece`, `stop_every` bytes the
    /// lane stops; returns bytes served per flow when `total` have been served.
    fn serve(quantum: u32, flows: &[(u32, u64)], piece: u32, total: u64, stop_every: u64) -> Vec<u64> {
        let mut drr = Drr::new(quantum);
        let mut left: Vec<u64> = flows.iter().map(|f| f.1).collect();
        let mut deficit = vec![0u32; flows.len()];
        let mut served = vec![0u64; flows.len()];
        (0..flows.len()).for_each(|i| drr.push(AppId(flows[i].0), RouteId::from_bits(i as u32)));
        let (mut sum, mut until_stop) = (0, stop_every);
        while let Some(route) = drr.front() {
            let i = route.bits() as usize;
            drr.begin_turn(&mut deficit[i]);
            loop {
                if sum >= total {
                    return served;
                }
                let n = left[i].min(piece.into()).min(drr.allowance(deficit[i]).into());
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
                drr.spend(&mut deficit[i], n as u32);
                served[i] += n;
                sum += n;
            }
            if left[i] == 0 {
                deficit[i] = 0;
                drr.leave();
            } else {
                drr.rotate(deficit[i]);
            }
        }
        assert!(drr.waiting.is_empty() && drr.others.iter().all(VecDeque::is_empty));
        served
    }

    #[test]
    fn equal_backlogs_are_served_equally_within_one_quantum() {
        for (quantum, piece) in [(4096, 4096), (65536, 10_000), (10_000, 65536)] {
            let served = serve(quantum, &of_one(&[10_000_000; 7]), piece, 20_000_000, 1 << 17);
            let (min, max) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(max - min <= u64::from(quantum), "{served:?}");
        }
    }

    #[test]
    fn applications_are_served_equally_whatever_they_have_of_connections() {
        for (quantum, piece) in [(4096, 4096), (65536, 10_000), (10_000, 65536)] {
            let flows: Vec<_> = (0..111).map(|i| (if i < 100 { 3 } else { 1 + i % 2 }, 10_000_000)).collect();
            let served = serve(quantum, &flows, piece, 50_000_000, 1 << 17);
            let of = |app| flows.iter().zip(&served).filter(|(f, _)| f.0 == app).map(|(_, s)| s).sum::<u64>();
            let shares = [of(1), of(2), of(3)];
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= u64::from(quantum), "{shares:?}");
            // Those of one application are equal among themselves.
            let (min, max) = (served[..100].iter().min().unwrap(), served[..100].iter().max().unwrap());
            assert!(max - min <= 2 * u64::from(quantum), "{served:?}");
        }
    }

    #[test]
    fn a_thousand_short_messages_do_not_come_before_another_application() {
        let mut flows = vec![(1, 8); 10_000];
        flows.push((2, 1 << 20));
        let served = serve(65536, &flows, 65536, 65536 / u64::from(WORK_REQUEST_BYTES) * 8 + 1, u64::MAX);
        assert!(served[10_000] > 0, "after as many as a quantum pays for");
    }

    #[test]
    fn a_greedy_flow_does_not_delay_small_ones() {
        let mut backlog = [100u64; 50];
        backlog[0] = 1 << 40;
        let served = serve(65536, &of_one(&backlog), 65536, 65536 + 49 * 100, u64::MAX);
        assert!(served[1..].iter().all(|&s| s == 100), "{served:?}");
    }

    #[test]
    fn everything_is_served_once() {
        let flows = [(1, 1), (2, 5000), (7, 0), (2, 100_000), (1, 3)];
        assert_eq!(serve(4096, &flows, 1500, u64::MAX, 6000), [1, 5000, 0, 100_000, 3]);
    }
}
