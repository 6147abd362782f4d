//! The receives of a QP, whatever its service: its own queue, or a shared one.
//!
//! Owns where a receive comes from, and how it is reported and given back. Which message takes one is decided elsewhere.

use rnic::{ReceiveQueue, RecvWqe};
use verbs::{Completion, CqId, PdId, Placed, QpInit, QpState, Qpn, RecvWr, SrqId, Status, VerbsError, WcOpcode};

use crate::device::Device;

/// The QP of an unreliable service must go into error; its receive is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fatal;

/// What a completion reports of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) src_qpn: Option<Qpn>,
    pub(crate) placed: Placed,
    pub(crate) solicited: bool,
}

impl Received {
    /// No message: the receive failed, or was flushed.
    pub(crate) const fn nothing(placed: Placed) -> Self {
        Self { opcode: WcOpcode::Recv, byte_len: 0, imm: None, src_qpn: None, placed, solicited: false }
    }
}

/// The receives of one QP.
#[derive(Debug)]
pub(crate) struct Receives {
    qpn: Qpn,
    /// Whose memory messages land in, also those that take receives of the SRQ.
    pub(crate) pd: PdId,
    cq: CqId,
    srq: Option<SrqId>,
    /// Of the QP alone; of no length if there is an SRQ.
    own: ReceiveQueue,
}

impl Receives {
    pub(crate) fn new(qpn: Qpn, init: &QpInit) -> Self {
        Self { qpn, pd: init.pd, cq: init.recv_cq, srq: init.srq, own: Self::own_queue(init) }
    }

    fn own_queue(init: &QpInit) -> ReceiveQueue {
        ReceiveQueue::new(if init.srq.is_some() { 0 } else { init.max_recv_wr }, init.max_recv_sge)
    }

    /// Gives the QP's own receives away; an empty queue of the same size takes their place.
    pub(crate) fn lend(&mut self, init: &QpInit) -> ReceiveQueue {
        std::mem::replace(&mut self.own, Self::own_queue(init))
    }

    /// Posts one receive to the QP's own queue. In the error state the caller flushes it at once.
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>, state: QpState, dev: &mut Device) -> Result<(), VerbsError> {
        if state == QpState::Reset {
            return Err(VerbsError::WrongState { state, what: "posting receives: move it to Init first" });
        }
        if self.srq.is_some() {
            return Err(VerbsError::Busy("the receive queue is an SRQ, post there: it"));
        }
        self.own.post(wr)?;
        dev.base.counters.verbs_recv += 1;
        Ok(())
    }

    /// How many wait in the QP's own queue; `None` if they come from an SRQ.
    #[inline]
    pub(crate) fn waiting(&self) -> Option<usize> {
        match self.srq {
            Some(_) => None,
            None => Some(self.own.len()),
        }
    }

    /// Bytes that the next receive has room for, if there is one.
    pub(crate) fn next_capacity_bytes(&self, dev: &Device) -> Option<u64> {
        match self.srq {
            Some(srq) => dev.srqs.get(srq.0)?.next_capacity_bytes(),
            None => self.own.next_capacity_bytes(),
        }
    }

    /// Takes the oldest.
    #[inline]
    pub(crate) fn take(&mut self, dev: &mut Device) -> Option<RecvWqe> {
        match self.srq {
            Some(srq) => dev.take_shared(srq),
            None => self.own.take(),
        }
    }

    /// Takes the oldest of the QP's own: those of an SRQ outlive the QP.
    pub(crate) fn take_own(&mut self) -> Option<RecvWqe> {
        self.own.take()
    }

    /// Reports how a receive ended.
    #[inline]
    pub(crate) fn complete(&mut self, wqe: RecvWqe, status: Status, received: Received, dev: &mut Device) {
        let Received { opcode, byte_len, imm, src_qpn, placed, solicited } = received;
        let (wr_id, qpn) = (wqe.wr_id, self.qpn);
        dev.complete(self.cq, Completion { wr_id, status, opcode, byte_len, qpn, imm, src_qpn, placed }, solicited);
        self.recycle(wqe, dev);
    }

    /// Gives back what a receive was kept in.
    #[inline]
    pub(crate) fn recycle(&mut self, wqe: RecvWqe, dev: &mut Device) {
        match self.srq.and_then(|srq| dev.srqs.get_mut(srq.0)) {
            Some(srq) => srq.recycle(wqe),
            None => self.own.recycle(wqe),
        }
    }

    /// Forgets the QP's own without completions.
    pub(crate) fn clear(&mut self) {
        self.own.clear();
    }
}
