//! Receive work requests that wait for messages: a QP's own queue, or one shared by many (SRQ, IBTA 10.2.9).

use std::collections::VecDeque;

use verbs::{RecvWr, Sge, SrqInit, VerbsError};

/// A receive that a message may take.
#[derive(Debug, Default)]
pub struct RecvWqe {
    /// Of its work request.
    pub wr_id: u64,
    /// Where the message lands.
    pub sges: Vec<Sge>,
    /// Bytes that fit.
    pub capacity_bytes: u64,
}

/// A bounded queue of receives. Scatter lists are used again, so that a queue in use allocates nothing.
#[derive(Debug)]
pub struct ReceiveQueue {
    wqes: VecDeque<RecvWqe>,
    spare: Vec<Vec<Sge>>,
    max_wr: u32,
    max_sge: u32,
}

impl ReceiveQueue {
    /// An empty queue of so many receives with so many entries each.
    pub fn new(max_wr: u32, max_sge: u32) -> Self {
        Self { wqes: VecDeque::new(), spare: Vec::new(), max_wr, max_sge }
    }

    /// Adds a receive behind the others.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if self.wqes.len() >= self.max_wr as usize {
            return Err(VerbsError::Full { what: "the receive queue", limit: self.max_wr.into() });
        }
        if wr.sges.len() > self.max_sge as usize {
            let (value, max) = (wr.sges.len() as u64, self.max_sge.into());
            return Err(VerbsError::OutOfRange { what: "scatter entries of a receive", value, min: 0, max });
        }
        let mut sges = self.spare.pop().unwrap_or_default();
        // A vector that grows by itself has room for four, of which nearly always one is used.
        sges.reserve_exact(wr.sges.len());
        sges.extend_from_slice(wr.sges);
        let capacity_bytes = wr.sges.iter().map(|s| u64::from(s.len)).sum();
        self.wqes.push_back(RecvWqe { wr_id: wr.wr_id, sges, capacity_bytes });
        Ok(())
    }

    /// Takes the oldest receive.
    pub fn take(&mut self) -> Option<RecvWqe> {
        self.wqes.pop_front()
    }

    /// Takes back at most `max` receives, the last that was posted first, and what was kept for so many.
    pub fn withdraw(&mut self, max: usize, out: &mut Vec<u64>) -> usize {
        let count = max.min(self.wqes.len());
        let left = self.wqes.len() - count;
        out.extend(self.wqes.drain(left..).rev().map(|wqe| wqe.wr_id));
        self.wqes.shrink_to(2 * left);
        self.spare.truncate(left);
        self.spare.shrink_to(left);
        count
    }

    /// Bytes that fit the receive that [`Self::take`] would give.
    pub fn next_capacity_bytes(&self) -> Option<u64> {
        self.wqes.front().map(|wqe| wqe.capacity_bytes)
    }

    /// Takes the list of a completed receive back for later use.
    pub fn recycle(&mut self, mut wqe: RecvWqe) {
        if self.spare.len() < self.max_wr as usize {
            wqe.sges.clear();
            self.spare.push(wqe.sges);
        }
    }

    /// Receives that wait.
    pub fn len(&self) -> usize {
        self.wqes.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }

    /// Forgets all receives.
    pub fn clear(&mut self) {
        while let Some(wqe) = self.take() {
            self.recycle(wqe);
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    queue: ReceiveQueue,
    /// Raise the limit event when fewer receives are left; 0 once it was raised.
    limit: u32,
    /// QPs that use it.
    users: u32,
}

impl Srq {
    /// An empty one.
    pub fn new(init: &SrqInit) -> Self {
        Self { queue: ReceiveQueue::new(init.max_wr, init.max_sge), limit: init.limit, users: 0 }
    }

    /// Adds a receive behind the others.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.queue.post(wr)
    }

    /// Arms the limit event, which comes once; 0 disarms it.
    pub fn arm(&mut self, limit: u32) -> Result<(), VerbsError> {
        let max = self.queue.max_wr;
        if limit > max {
            let (value, max) = (limit.into(), max.into());
            return Err(VerbsError::OutOfRange { what: "limit of an SRQ", value, min: 0, max });
        }
        self.limit = limit;
        Ok(())
    }

    /// Takes back at most `max` receives, the last that was posted first. They raise no limit event.
    pub fn withdraw(&mut self, max: usize, out: &mut Vec<u64>) -> usize {
        self.queue.withdraw(max, out)
    }

    /// Takes the oldest receive; also says whether the limit event is due.
    pub fn take(&mut self) -> (Option<RecvWqe>, bool) {
        let wqe = self.queue.take();
        let limit_reached = wqe.is_some() && self.queue.len() < self.limit as usize;
        if limit_reached {
            self.limit = 0;
        }
        (wqe, limit_reached)
    }

    /// Bytes that fit the receive that [`Self::take`] would give.
    pub fn next_capacity_bytes(&self) -> Option<u64> {
        self.queue.next_capacity_bytes()
    }

    /// Whether a QP uses it.
    pub const fn is_used(&self) -> bool {
        self.users > 0
    }

    /// Counts a QP in, or out.
    pub(crate) fn adjust_users(&mut self, up: bool) {
        self.users = if up { self.users + 1 } else { self.users.saturating_sub(1) };
    }

    /// Takes the list of a completed receive back for later use.
    pub fn recycle(&mut self, wqe: RecvWqe) {
        self.queue.recycle(wqe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Lkey;

    #[test]
    fn the_last_that_were_posted_are_taken_back_and_their_room_with_them() {
        let mut queue = ReceiveQueue::new(1000, 1);
        let sges = [Sge { addr: 0, len: 64, lkey: Lkey(1) }];
        (0..1000).for_each(|wr_id| queue.post(&RecvWr { wr_id, sges: &sges }).unwrap());
        let used = queue.take().unwrap();
        queue.recycle(used);
        let mut back = Vec::new();
        assert_eq!(queue.withdraw(989, &mut back), 989);
        assert_eq!((back.first(), back.last(), back.len()), (Some(&999), Some(&11), 989));
        assert!(queue.wqes.capacity() <= 20, "{}", queue.wqes.capacity());
        assert_eq!(queue.take().unwrap().wr_id, 1);
        assert_eq!((queue.withdraw(100, &mut back), queue.len()), (9, 0));
        assert_eq!(queue.withdraw(1, &mut back), 0);
        assert_eq!(queue.spare.iter().map(Vec::capacity).max().unwrap_or(1), 1, "a list is as long as it is used");
        queue.post(&RecvWr { wr_id: 7, sges: &sges }).unwrap();
        assert_eq!(queue.take().unwrap().wr_id, 7);
    }
}
