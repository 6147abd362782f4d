//! What segments of a peer may do, and to what they lead: the checks of DDP and RDMAP, receives and their completions.
//!
//! Owns the order of messages in each queue, the SEND in progress, and the rights of the stream. Nothing is placed
//! before all checks of its segment have passed. Frames as bytes are the affair of `input`.

use rnic::{Device, KeyFault, ReceiveQueue, RecvWqe, Unreported};
use verbs::{Access, Completion, CqId, Qpn, RecvWr, Rkey, SrqId, Status, VerbsError, WcOpcode};

use super::events::{Extensions, QpAttr};
use super::requests::Requests;
use super::responses::Responses;
use crate::ddp::{Control, DDP_VERSION, Header, Tagged, Untagged};
use crate::rdmap::{
    AtomicRequest, AtomicResponse, Immediate, Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST, QUEUE_SEND,
    QUEUE_TERMINATE, RDMAP_VERSION, ReadRequest, opcode_number, version_of,
};
use crate::terminate::{Cause, Terminate};

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
pub(super) enum Place {
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
    pub(super) place: Place,
    pub(super) payload: u32,
}

#[derive(Debug)]
struct Message {
    wqe: RecvWqe,
    received: u64,
    opcode: Opcode,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(super) struct Receiver {
    qpn: Qpn,
    cq: CqId,
    srq: Option<SrqId>,
    queue: ReceiveQueue,
    access: Access,
    extensions: Extensions,
    max_msg_bytes: u32,
    /// Number of the next message of each queue.
    expected: [u32; 4],
    message: Option<Message>,
    /// An immediate whose Send follows.
    immediate: Option<u32>,
    /// Bytes of the Write in progress.
    writing: u32,
    /// Bytes of the Write right before.
    written: Option<u32>,
    unreported: Unreported,
}

impl Receiver {
    pub(super) fn new(attr: &QpAttr, queue: ReceiveQueue) -> Self {
        Self {
            qpn: attr.qpn,
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

    /// Judges a segment by its header and the length of its payload.
    pub(super) fn judge(
        &mut self,
        control: Control,
        header: &Header,
        payload: u32,
        requests: &Requests,
        responses: &Responses,
        dev: &mut Device,
    ) -> Result<Segment, Fault> {
        let opcode = self.opcode(control, header)?;
        let place = match header {
            Header::Tagged(tagged) if opcode == Opcode::Write => self.judge_write(tagged, payload, dev)?,
            Header::Tagged(tagged) => {
                let (number, offset) = requests.judge_data(tagged, payload)?;
                Place::Answer { number, offset }
            }
            Header::Untagged(untagged) => {
                if untagged.msn != self.expected_msn(untagged.queue) {
                    return Err(Cause::UntaggedMsn.into());
                }
                match opcode {
                    Opcode::Send | Opcode::SendSolicited | Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                        self.judge_send(untagged, opcode, payload, dev)?
                    }
                    _ => self.judge_control(untagged, opcode, payload, requests, responses)?,
                }
            }
        };
        Ok(Segment { header: *header, opcode, place, payload })
    }

    /// The opcode, if versions, queue and opcode fit each other and the stream.
    fn opcode(&self, control: Control, header: &Header) -> Result<Opcode, Cause> {
        let (bad_version, queue) = match header {
            Header::Tagged(_) => (Cause::TaggedVersion, None),
            Header::Untagged(untagged) => (Cause::UntaggedVersion, Some(untagged.queue)),
        };
        if control.version != DDP_VERSION {
            return Err(bad_version);
        }
        let has_atomics = self.extensions.contains(Extensions::ATOMICS);
        let last_queue = if has_atomics { QUEUE_ATOMIC_RESPONSE } else { QUEUE_TERMINATE };
        if queue.is_some_and(|queue| queue > last_queue) {
            return Err(Cause::UntaggedQueue);
        }
        if version_of(header.ulp()) != RDMAP_VERSION {
            return Err(Cause::RdmapVersion);
        }
        let opcode = Opcode::from_number(opcode_number(header.ulp())).ok_or(Cause::RdmapOpcode)?;
        let needs = match opcode {
            Opcode::Immediate | Opcode::ImmediateSolicited => Extensions::IMMEDIATE,
            Opcode::AtomicRequest | Opcode::AtomicResponse => Extensions::ATOMICS,
            _ => Extensions::empty(),
        };
        if opcode.queue() != queue || !self.extensions.contains(needs) {
            return Err(Cause::RdmapOpcode);
        }
        Ok(opcode)
    }

    fn expected_msn(&self, queue: u32) -> u32 {
        usize::try_from(queue).ok().and_then(|queue| self.expected.get(queue)).copied().unwrap_or(0)
    }

    fn judge_write(&mut self, tagged: &Tagged, payload: u32, dev: &Device) -> Result<Place, Cause> {
        let (rkey, addr) = (Rkey(tagged.stag), tagged.offset);
        // The key of a Write without bytes is not looked at (RFC 5040 section 5.2.1).
        if payload > 0 {
            if !self.access.contains(Access::REMOTE_WRITE) {
                return Err(Cause::RdmapRights);
            }
            if addr.checked_add(payload.into()).is_none() {
                return Err(Cause::TaggedWrap);
            }
            dev.mrs.check_remote(rkey, addr, payload.into(), Access::REMOTE_WRITE).map_err(|fault| {
                match fault {
                    KeyFault::Key => Cause::TaggedInvalidStag,
                    KeyFault::Bounds => Cause::TaggedBounds,
                    // DDP has no number for it, RDMAP has.
                    KeyFault::Rights => Cause::RdmapRights,
                }
            })?;
            // Before the first byte is placed: a range that is too large does no harm.
            self.unreported.add(rkey, addr, payload);
        }
        Ok(Place::Memory { rkey, addr })
    }

    fn judge_send(
        &mut self,
        untagged: &Untagged,
        opcode: Opcode,
        payload: u32,
        dev: &mut Device,
    ) -> Result<Place, Fault> {
        let received = match &self.message {
            Some(message) if message.opcode != opcode => return Err(Cause::RdmapOpcode.into()),
            Some(message) => message.received,
            None => 0,
        };
        if u64::from(untagged.offset) != received {
            return Err(Cause::UntaggedOffset.into());
        }
        // No key of this device may be invalidated by a peer: there are no memory windows and no fast registrations.
        if matches!(opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate) {
            return Err(Cause::RdmapNotInvalidatable.into());
        }
        if self.message.is_none() {
            let wqe = self.take_receive(dev).ok_or(Cause::UntaggedNoBuffer)?;
            self.message = Some(Message { wqe, received: 0, opcode });
        }
        let capacity = self.message.as_ref().map_or(0, |message| message.wqe.capacity_bytes);
        let end = received + u64::from(payload);
        if end > capacity || end > self.max_msg_bytes.into() {
            return Err(Fault { cause: Cause::UntaggedTooLong, receive: Status::LocLenErr });
        }
        Ok(Place::Receive { offset: received })
    }

    fn judge_control(
        &self,
        untagged: &Untagged,
        opcode: Opcode,
        payload: u32,
        requests: &Requests,
        responses: &Responses,
    ) -> Result<Place, Cause> {
        if untagged.offset != 0 {
            return Err(Cause::UntaggedOffset);
        }
        let payload = payload as usize;
        let (shortest, longest) = match opcode {
            Opcode::ReadRequest => (ReadRequest::BYTES, ReadRequest::BYTES),
            Opcode::AtomicRequest => (AtomicRequest::BYTES, AtomicRequest::BYTES),
            Opcode::AtomicResponse => (AtomicResponse::BYTES, AtomicResponse::BYTES),
            Opcode::Terminate => (4, Terminate::BYTES_MAX),
            _ => (Immediate::BYTES, Immediate::BYTES),
        };
        if payload > longest {
            return Err(Cause::UntaggedTooLong);
        }
        // RDMAP's own messages are one segment each.
        if payload < shortest || !untagged.is_last {
            return Err(Cause::RdmapStream);
        }
        match opcode {
            Opcode::Immediate | Opcode::ImmediateSolicited if self.message.is_some() || self.immediate.is_some() => {
                Err(Cause::RdmapOpcode)
            }
            Opcode::ReadRequest | Opcode::AtomicRequest if !responses.has_room() => Err(Cause::UntaggedNoBuffer),
            Opcode::AtomicResponse if !requests.awaits_original() => Err(Cause::RdmapOpcode),
            _ => Ok(Place::Control),
        }
    }

    /// Copies payload bytes to their place, `done` bytes into the segment. Those of [`Place::Answer`] and
    /// [`Place::Control`] are not the receiver's.
    pub(super) fn place(&self, place: Place, done: usize, bytes: &[u8], dev: &Device) -> Result<(), Fault> {
        let done = done as u64;
        match place {
            Place::Memory { rkey, addr } => {
                let gone = |_: KeyFault| Fault::from(Cause::TaggedInvalidStag);
                dev.mrs.write_remote(rkey, addr + done, bytes).map_err(gone)
            }
            Place::Receive { offset } => {
                let sges = self.message.as_ref().map_or(&[][..], |message| &message.wqe.sges);
                let unusable = |_: KeyFault| Fault { cause: Cause::DdpLocal, receive: Status::LocProtErr };
                dev.mrs.scatter(sges, offset + done, bytes).map_err(unusable)
            }
            Place::Answer { .. } | Place::Control => Ok(()),
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

    fn take_receive(&mut self, dev: &mut Device) -> Option<RecvWqe> {
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
