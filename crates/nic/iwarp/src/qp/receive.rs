//! The receiving half of a stream: receives, the SEND in progress, and completions.
//!
//! Owns the order of messages in each queue and the rights of the stream. What a segment may do is judged in `judge`;
//! frames as bytes are the affair of `input`.

use rnic::{Device, KeyFault, ReceiveQueue, RecvWqe, Unreported};
use verbs::{Access, Completion, CqId, PdId, Qpn, RecvWr, Rkey, SrqId, Status, VerbsError, WcOpcode};

use super::events::{Extensions, QpAttr};
use crate::ddp::Header;
use crate::rdmap::{Immediate, Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST, QUEUE_SEND};
use crate::terminate::Cause;

/// A rule is broken: the stream ends with this cause. `receive` is how a receive in progress completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) cause: Cause,
    pub(super) receive: Status,
}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        Self { cause, receive: Status::WrFlushErr }
    }
}

/// Where a segment's payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Memory that the peer may write.
    Memory { rkey: Rkey, addr: u64 },
    /// The receive in progress, from that byte.
    Receive { offset: u64 },
    /// The list of a READ, from that byte.
    Answer { number: u64, offset: u32 },
    /// A small buffer: the payload is RDMAP's own.
    Control,
}

/// A segment that passed its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) header: Header,
    pub(super) opcode: Opcode,
    pub(super) place: Target,
    pub(super) payload: u32,
}

#[derive(Debug)]
pub(super) struct Message {
    pub(super) wqe: RecvWqe,
    pub(super) received: u64,
    pub(super) opcode: Opcode,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(super) struct Receiver {
    qpn: Qpn,
    /// Whose memory the peer reaches.
    pub(super) pd: PdId,
    cq: CqId,
    srq: Option<SrqId>,
    queue: ReceiveQueue,
    pub(super) access: Access,
    pub(super) extensions: Extensions,
    pub(super) max_msg_bytes: u32,
    /// Number of the next message of each queue.
    pub(super) expected: [u32; 4],
    pub(super) message: Option<Message>,
    /// An immediate whose Send follows.
    pub(super) immediate: Option<u32>,
    /// Bytes of the Write in progress.
    writing: u32,
    /// Bytes of the Write right before.
    written: Option<u32>,
    pub(super) unreported: Unreported,
}

impl Receiver {
    pub(super) fn new(attr: &QpAttr, queue: ReceiveQueue) -> Self {
        Self {
            qpn: attr.qpn,
            pd: attr.init.pd,
            cq: attr.init.recv_cq,
            srq: attr.init.srq,
            queue,
            access: attr.access,
            extensions: attr.extensions,
            max_msg_bytes: attr.max_msg_bytes,
            expected: [1; 4],
            message: None,
            immediate: None,
            writing: 0,
            written: None,
            unreported: Unreported::default(),
        }
    }

    pub(super) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        match self.srq {
            Some(_) => Err(VerbsError::Busy("the receive queue is an SRQ, post there: it")),
            None => self.queue.post(wr),
        }
    }

    pub(super) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.unreported.touches(rkey, addr, len)
    }

    /// Whether a message of the peer has come in part.
    pub(super) const fn is_amid_message(&self) -> bool {
        self.message.is_some() || self.immediate.is_some() || self.writing > 0
    }

    /// Copies payload bytes to their place, `done` bytes into the segment. Those of [`Target::Answer`] and
    /// [`Target::Control`] are not the receiver's.
    pub(super) fn place(&self, place: Target, done: usize, bytes: &[u8], dev: &Device) -> Result<(), Fault> {
        let done = done as u64;
        match place {
            Target::Memory { rkey, addr } => {
                let gone = |_: KeyFault| Fault::from(Cause::TaggedInvalidStag);
                dev.mrs.of(self.pd).write_remote(rkey, addr + done, bytes).map_err(gone)
            }
            Target::Receive { offset } => {
                let sges = self.message.as_ref().map_or(&[][..], |message| &message.wqe.sges);
                let unusable = |_: KeyFault| Fault { cause: Cause::DdpLocal, receive: Status::LocProtErr };
                dev.mrs.of(self.pd).scatter(sges, offset + done, bytes).map_err(unusable)
            }
            Target::Answer { .. } | Target::Control => Ok(()),
        }
    }

    /// The scatter list of the receive in progress.
    pub(super) fn receive_sges(&self) -> &[verbs::Sge] {
        self.message.as_ref().map_or(&[], |message| &message.wqe.sges)
    }

    /// A Write segment is in its place.
    pub(super) fn on_write(&mut self, segment: &Segment, dev: &mut Device) {
        self.writing = self.writing.saturating_add(segment.payload);
        if segment.header.is_last() {
            self.written = Some(std::mem::take(&mut self.writing));
            dev.counters.served_write += 1;
        }
    }

    /// A Send segment is in its place.
    pub(super) fn on_send(&mut self, segment: &Segment, dev: &mut Device) {
        self.written = None;
        let Some(message) = &mut self.message else { return };
        message.received += u64::from(segment.payload);
        if !segment.header.is_last() {
            return;
        }
        self.count_message(QUEUE_SEND);
        if let Some(Message { wqe, received, .. }) = self.message.take() {
            dev.counters.served_send += 1;
            let bytes = u32::try_from(received).unwrap_or(u32::MAX);
            let (imm, is_solicited) = (self.immediate.take(), segment.opcode.is_solicited());
            self.complete(wqe, Status::Success, (WcOpcode::Recv, bytes, imm), is_solicited, dev);
        }
    }

    /// Immediate Data came.
    pub(super) fn on_immediate(
        &mut self,
        immediate: Immediate,
        is_solicited: bool,
        dev: &mut Device,
    ) -> Result<(), Fault> {
        if immediate.kind == 1 && self.extensions.contains(Extensions::SEND_IMMEDIATE) {
            self.count_message(QUEUE_SEND);
            self.immediate = Some(immediate.value);
            return Ok(());
        }
        let wqe = self.take_receive(dev).ok_or(Cause::UntaggedNoBuffer)?;
        self.count_message(QUEUE_SEND);
        let written = self.written.take();
        dev.counters.served_write_imm += 1;
        if written.is_some() {
            // The Write was counted as one without immediate.
            dev.counters.served_write = dev.counters.served_write.saturating_sub(1);
        }
        let outcome = (WcOpcode::RecvWriteImm, written.unwrap_or(0), Some(immediate.value));
        self.complete(wqe, Status::Success, outcome, is_solicited, dev);
        Ok(())
    }

    /// A message of RDMAP's own came whole.
    pub(super) fn count_request(&mut self) {
        self.count_message(QUEUE_REQUEST);
    }

    /// As [`Self::count_request`].
    pub(super) fn count_atomic_response(&mut self) {
        self.count_message(QUEUE_ATOMIC_RESPONSE);
    }

    fn count_message(&mut self, queue: u32) {
        if let Some(msn) = usize::try_from(queue).ok().and_then(|queue| self.expected.get_mut(queue)) {
            *msn = msn.wrapping_add(1);
        }
    }

    /// Whether peers may do that through the stream.
    pub(super) const fn allows(&self, access: Access) -> bool {
        self.access.contains(access)
    }

    /// Longest message in either direction.
    pub(super) const fn max_msg_bytes(&self) -> u32 {
        self.max_msg_bytes
    }

    pub(super) fn take_receive(&mut self, dev: &mut Device) -> Option<RecvWqe> {
        match self.srq {
            Some(srq) => dev.take_shared(srq),
            None => self.queue.take(),
        }
    }

    fn complete(
        &mut self,
        wqe: RecvWqe,
        status: Status,
        (opcode, byte_len, imm): (WcOpcode, u32, Option<u32>),
        is_solicited: bool,
        dev: &mut Device,
    ) {
        let (wr_id, qpn) = (wqe.wr_id, self.qpn);
        let placed = self.unreported.take();
        let completion = Completion { wr_id, status, opcode, byte_len, qpn, imm, src_qpn: None, placed };
        dev.complete(self.cq, completion, is_solicited);
        self.recycle(wqe, dev);
    }

    fn recycle(&mut self, wqe: RecvWqe, dev: &mut Device) {
        match self.srq.and_then(|srq| dev.srqs.get_mut(srq.0)) {
            Some(srq) => srq.recycle(wqe),
            None => self.queue.recycle(wqe),
        }
    }

    /// The receive in progress completes with `status`, all posted ones as flushed. Receives of an SRQ stay there.
    pub(super) fn flush(&mut self, status: Status, dev: &mut Device) {
        if let Some(message) = self.message.take() {
            self.complete(message.wqe, status, (WcOpcode::Recv, 0, None), false, dev);
        }
        while let Some(wqe) = self.queue.take() {
            self.complete(wqe, Status::WrFlushErr, (WcOpcode::Recv, 0, None), false, dev);
        }
    }

    /// Forgets all work without completions.
    pub(super) fn release(&mut self, dev: &mut Device) {
        if let Some(message) = self.message.take() {
            self.recycle(message.wqe, dev);
        }
        self.queue.clear();
        self.unreported.take();
    }
}
