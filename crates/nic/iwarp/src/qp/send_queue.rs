//! The send queue: work requests in order. They complete in order, whatever the order in which they are done.

use std::collections::VecDeque;

use rnic::{Domain, KeyFault, PostedData, SendLimits, SpareData, send_opcode};
use verbs::{Access, SendFlags, SendOp, SendWr, Sge, VerbsError, WcOpcode};

use crate::transfer::Gather;

/// A posted send work request.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) len: u32,
    /// Nothing more happens to it; it completes when those before it have.
    pub(super) is_done: bool,
    /// Number of its message in its queue, once it is sent; 0 before, and for tagged messages.
    pub(super) msn: u32,
    data: PostedData,
}

impl SendWqe {
    pub(super) const fn opcode(&self) -> WcOpcode {
        send_opcode(&self.op)
    }

    /// The list of an answer's places.
    pub(super) fn sges(&self) -> &[Sge] {
        self.data.sges()
    }

    /// Appends the places of payload bytes.
    pub(super) fn gather(&self, mrs: Domain<'_>, offset: u32, len: usize, out: &mut Gather) -> Result<(), KeyFault> {
        match &self.data {
            PostedData::Sges(sges) => {
                mrs.local_ranges(sges, offset.into(), len, Access::empty(), |range| out.push_memory(range))
            }
            PostedData::Inline(bytes) => {
                out.push_own(bytes.get(offset as usize..).and_then(|b| b.get(..len)).ok_or(KeyFault::Bounds)?);
                Ok(())
            }
        }
    }

    /// Copies payload bytes out.
    pub(super) fn read(&self, mrs: Domain<'_>, offset: u32, dst: &mut [u8]) -> Result<(), KeyFault> {
        self.data.read(mrs, offset, dst)
    }

    /// Checks the places of an answer.
    pub(super) fn check_writable(&self, mrs: Domain<'_>) -> Result<(), KeyFault> {
        self.data.check_writable(mrs)
    }
}

/// Posted and not completed sends, oldest first, each with a number that counts from the first of the QP.
#[derive(Debug)]
pub(super) struct SendQueue {
    wqes: VecDeque<SendWqe>,
    /// Number of the oldest.
    first: u64,
    limits: SendLimits,
    spare: SpareData,
}

impl SendQueue {
    pub(super) fn new(limits: SendLimits) -> Self {
        Self { wqes: VecDeque::new(), first: 0, limits, spare: SpareData::default() }
    }

    /// Appends a work request.
    pub(super) fn post(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let len = self.limits.check(wr, self.wqes.len())?;
        let (flags, data) = (self.limits.flags(wr), self.spare.own(&wr.payload));
        self.wqes.push_back(SendWqe { wr_id: wr.wr_id, op: wr.op, flags, len, is_done: false, msn: 0, data });
        Ok(())
    }

    pub(super) fn get(&self, number: u64) -> Option<&SendWqe> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.wqes.get(index)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut SendWqe> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.wqes.get_mut(index)
    }

    /// All with their numbers, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SendWqe)> {
        (self.first..).zip(&self.wqes)
    }

    /// Takes the oldest if it is done.
    pub(super) fn pop_done(&mut self) -> Option<SendWqe> {
        if self.wqes.front()?.is_done { self.pop() } else { None }
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self) -> Option<SendWqe> {
        let wqe = self.wqes.pop_front()?;
        self.first += 1;
        Some(wqe)
    }

    /// Takes the list of a completed request back for later use.
    pub(super) fn recycle(&mut self, wqe: SendWqe) {
        self.spare.put_back(wqe.data, self.limits.max_wr);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }

    /// How many; the depth of a queue fits.
    pub(super) fn outstanding(&self) -> u32 {
        u32::try_from(self.wqes.len()).unwrap_or(u32::MAX)
    }

    /// Number of the oldest, or of the next one to be posted.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Payload;

    fn queue() -> SendQueue {
        SendQueue::new(SendLimits {
            pd: verbs::PdId(0),
            max_wr: 2,
            max_sge: 2,
            max_inline_bytes: 4,
            max_msg_bytes: 100,
            sig_all: false,
        })
    }

    fn wr<'a>(op: SendOp, payload: Payload<'a>) -> SendWr<'a> {
        SendWr { wr_id: 1, op, payload, flags: SendFlags::empty(), dest: None }
    }

    #[test]
    fn numbers_go_on_and_only_the_oldest_leaves() {
        let mut queue = queue();
        for _ in 0..2 {
            queue.post(&wr(SendOp::Send, Payload::Inline(b"x"))).expect("room");
        }
        let full = VerbsError::Full { what: "the send queue", limit: 2 };
        assert_eq!(queue.post(&wr(SendOp::Send, Payload::Inline(b"x"))), Err(full));
        queue.get_mut(1).unwrap().is_done = true;
        assert!(queue.pop_done().is_none(), "the first is not done");
        queue.get_mut(0).unwrap().is_done = true;
        let done = queue.pop_done().unwrap();
        queue.recycle(done);
        assert!(queue.pop_done().is_some() && queue.is_empty() && queue.first() == 2);
        queue.post(&wr(SendOp::Send, Payload::Inline(b"y"))).expect("room");
        assert!(queue.get(1).is_none() && queue.get(2).is_some());
    }
}
