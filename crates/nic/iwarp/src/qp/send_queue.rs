//! The send queue: work requests in order. They complete in order, whatever the order in which they are done.

use std::collections::VecDeque;

use rnic::{KeyFault, MrTable};
use verbs::{Access, Payload, SendFlags, SendOp, SendWr, Sge, VerbsError, WcOpcode};

use crate::transfer::Gather;

/// Bytes of a send work request, owned.
#[derive(Debug)]
enum Data {
    Sges(Vec<Sge>),
    Inline(Vec<u8>),
}

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
    data: Data,
}

/// Whether the peer answers an operation with data.
pub(super) const fn wants_data(op: &SendOp) -> bool {
    matches!(op, SendOp::Read(_) | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. })
}

impl SendWqe {
    pub(super) const fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::Write,
            SendOp::Read(_) => WcOpcode::Read,
            SendOp::CmpSwap { .. } => WcOpcode::CmpSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            _ => WcOpcode::Send,
        }
    }

    /// The list of an answer's places.
    pub(super) fn sges(&self) -> &[Sge] {
        match &self.data {
            Data::Sges(sges) => sges,
            Data::Inline(_) => &[],
        }
    }

    /// Appends the places of payload bytes.
    pub(super) fn gather(&self, mrs: &MrTable, offset: u32, len: usize, out: &mut Gather) -> Result<(), KeyFault> {
        match &self.data {
            Data::Sges(sges) => {
                mrs.local_ranges(sges, offset.into(), len, Access::empty(), |range| out.push_memory(range))
            }
            Data::Inline(bytes) => {
                out.push_own(bytes.get(offset as usize..).and_then(|b| b.get(..len)).ok_or(KeyFault::Bounds)?);
                Ok(())
            }
        }
    }

    /// Copies payload bytes out.
    pub(super) fn read(&self, mrs: &MrTable, offset: u32, dst: &mut [u8]) -> Result<(), KeyFault> {
        match &self.data {
            Data::Sges(sges) => mrs.gather(sges, offset.into(), dst),
            Data::Inline(bytes) => {
                let source = bytes.get(offset as usize..).and_then(|b| b.get(..dst.len())).ok_or(KeyFault::Bounds)?;
                dst.copy_from_slice(source);
                Ok(())
            }
        }
    }

    /// Checks the places of an answer.
    pub(super) fn check_writable(&self, mrs: &MrTable) -> Result<(), KeyFault> {
        mrs.check_scatter(self.sges())
    }
}

/// What a QP's sends may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendLimits {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline_bytes: u32,
    pub(super) max_msg_bytes: u32,
    pub(super) sig_all: bool,
}

/// Posted and not completed sends, oldest first, each with a number that counts from the first of the QP.
#[derive(Debug)]
pub(super) struct SendQueue {
    wqes: VecDeque<SendWqe>,
    /// Number of the oldest.
    first: u64,
    limits: SendLimits,
    spare_sges: Vec<Vec<Sge>>,
    spare_inline: Vec<Vec<u8>>,
}

impl SendQueue {
    pub(super) const fn new(limits: SendLimits) -> Self {
        Self { wqes: VecDeque::new(), first: 0, limits, spare_sges: Vec::new(), spare_inline: Vec::new() }
    }

    /// Checks a work request without posting it, and gives its length.
    fn check(&self, wr: &SendWr<'_>) -> Result<u32, VerbsError> {
        let too_many = |what, value: usize, max: u32| VerbsError::OutOfRange {
            what,
            value: value as u64,
            min: 0,
            max: max.into(),
        };
        if self.wqes.len() >= self.limits.max_wr as usize {
            return Err(VerbsError::Full { what: "the send queue", limit: self.limits.max_wr.into() });
        }
        let len: u64 = match wr.payload {
            Payload::Sges(sges) if sges.len() > self.limits.max_sge as usize => {
                return Err(too_many("gather entries of a send", sges.len(), self.limits.max_sge));
            }
            Payload::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Payload::Inline(bytes) if wants_data(&wr.op) => {
                return Err(too_many("inline bytes of a request for data", bytes.len(), 0));
            }
            Payload::Inline(bytes) if bytes.len() > self.limits.max_inline_bytes as usize => {
                return Err(too_many("inline bytes of a send", bytes.len(), self.limits.max_inline_bytes));
            }
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let (min, max) = match wr.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => (8, 8),
            _ => (0, u64::from(self.limits.max_msg_bytes)),
        };
        let allowed = u32::try_from(len).ok().filter(|_| (min..=max).contains(&len));
        allowed.ok_or(VerbsError::OutOfRange { what: "bytes of a message", value: len, min, max })
    }

    /// Appends a work request.
    pub(super) fn post(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let len = self.check(wr)?;
        let data = match wr.payload {
            Payload::Sges(sges) => {
                let mut list = self.spare_sges.pop().unwrap_or_default();
                list.extend_from_slice(sges);
                Data::Sges(list)
            }
            Payload::Inline(bytes) => {
                let mut copy = self.spare_inline.pop().unwrap_or_default();
                copy.extend_from_slice(bytes);
                Data::Inline(copy)
            }
        };
        let mut flags = wr.flags;
        flags.set(SendFlags::SIGNALED, self.limits.sig_all || flags.contains(SendFlags::SIGNALED));
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
        match wqe.data {
            Data::Sges(mut sges) => {
                sges.clear();
                self.spare_sges.push(sges);
            }
            Data::Inline(mut bytes) => {
                bytes.clear();
                self.spare_inline.push(bytes);
            }
        }
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
    use verbs::{Lkey, RemoteAddr, Rkey};

    fn queue() -> SendQueue {
        SendQueue::new(SendLimits { max_wr: 2, max_sge: 2, max_inline_bytes: 4, max_msg_bytes: 100, sig_all: false })
    }

    fn wr<'a>(op: SendOp, payload: Payload<'a>) -> SendWr<'a> {
        SendWr { wr_id: 1, op, payload, flags: SendFlags::empty(), dest: None }
    }

    #[test]
    fn each_limit_is_the_last_that_is_allowed() {
        let gather = |op, lens: &[u32]| {
            let sges: Vec<Sge> = lens.iter().map(|len| Sge { addr: 0, len: *len, lkey: Lkey(1) }).collect();
            queue().check(&wr(op, Payload::Sges(&sges)))
        };
        let inline = |op, bytes: &[u8]| queue().check(&wr(op, Payload::Inline(bytes)));
        let refused = |what, value, min, max| Err(VerbsError::OutOfRange { what, value, min, max });
        assert_eq!(gather(SendOp::Send, &[60, 40]), Ok(100));
        assert_eq!(gather(SendOp::Send, &[1; 3]), refused("gather entries of a send", 3, 0, 2));
        assert_eq!(gather(SendOp::Send, &[60, 41]), refused("bytes of a message", 101, 0, 100));
        assert_eq!(inline(SendOp::Send, &[1; 4]), Ok(4));
        assert_eq!(inline(SendOp::Send, &[1; 5]), refused("inline bytes of a send", 5, 0, 4));
        let remote = RemoteAddr { addr: 0, rkey: Rkey(0) };
        assert_eq!(inline(SendOp::Read(remote), &[1]), refused("inline bytes of a request for data", 1, 0, 0));
        let add = SendOp::FetchAdd { remote, add: 1 };
        assert_eq!(gather(add, &[8]), Ok(8));
        assert_eq!(gather(add, &[9]), refused("bytes of a message", 9, 8, 8));
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
