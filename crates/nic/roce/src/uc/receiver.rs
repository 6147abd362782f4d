//! The receiving half of an unreliable connection: a message arrives whole, or not at all (IBTA 9.8.2.2).
//!
//! The packets of a message follow each other without a gap in their PSNs. One that does not ends the message under way,
//! and the rest of it is dropped; the next first packet begins a new message, whatever its PSN. Nothing is answered:
//! what cannot be executed is dropped and counted. A receive that a message took before it was dropped serves the next
//! one. Bytes of a WRITE are placed as they arrive, so a dropped one may have left some.
//!
//! State never depends on how much strangers or the peer send: one message, one receive, one PSN.

use rnic::{KeyFault, ReceiveQueue, RecvWqe, Unreported};
use verbs::{Access, Completion, CqId, Psn, QpInit, Qpn, RecvWr, Rkey, RtrAttr, SrqId, Status, VerbsError, WcOpcode};

use super::Fatal;
use crate::counters::NicCounters;
use crate::device::Device;
use crate::wire::{Bth, Request, Reth, has_right_length, wire_len};

/// A message of several packets in progress. A SEND's receive is [`Receiver::taken`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    None,
    Send { received: u64 },
    Write { addr: u64, rkey: Rkey, total: u32, remaining: u32 },
}

/// Why a packet is not executed. All but the last drop the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// It breaks a rule: length, rights, key.
    Invalid,
    /// No receive is posted.
    NoReceive,
    /// Longer than its receive.
    TooLong,
    /// The receive names memory that it may not fill.
    BadReceive,
}

/// What a completion reports of a message.
#[derive(Debug, Clone, Copy)]
struct Received {
    opcode: WcOpcode,
    byte_len: u32,
    imm: Option<u32>,
    solicited: bool,
}

#[derive(Debug)]
pub(super) struct Receiver {
    qpn: Qpn,
    cq: CqId,
    srq: Option<SrqId>,
    queue: ReceiveQueue,
    access: Access,
    mtu: usize,
    max_msg_bytes: u32,
    epsn: Psn,
    message: Message,
    /// The receive of the SEND in progress, or of one that was dropped.
    taken: Option<RecvWqe>,
    unreported: Unreported,
    established: bool,
}

impl Receiver {
    pub(super) fn new(qpn: Qpn, init: &QpInit, max_msg_bytes: u32) -> Self {
        let max_wr = if init.srq.is_some() { 0 } else { init.max_recv_wr };
        Self {
            qpn,
            cq: init.recv_cq,
            srq: init.srq,
            queue: ReceiveQueue::new(max_wr, init.max_recv_sge),
            access: Access::empty(),
            mtu: 256,
            max_msg_bytes,
            epsn: Psn::new(0),
            message: Message::None,
            taken: None,
            unreported: Unreported::default(),
            established: false,
        }
    }

    /// Reset to Init.
    pub(super) const fn allow(&mut self, access: Access) {
        self.access = access;
    }

    /// Init to ready-to-receive.
    pub(super) const fn start(&mut self, attr: &RtrAttr) {
        self.mtu = attr.mtu.bytes();
        self.epsn = attr.rq_psn;
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// Whether this is the first request since the QP became ready to receive.
    pub(super) const fn note_first_packet(&mut self) -> bool {
        !std::mem::replace(&mut self.established, true)
    }

    /// Whether the range may hold bytes that were placed and that no completion has reported.
    pub(super) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.unreported.touches(rkey, addr, len)
    }

    pub(super) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        match self.srq {
            Some(_) => Err(VerbsError::Busy("the receive queue is an SRQ, post there: it")),
            None => self.queue.post(wr),
        }
    }

    /// Takes one request packet.
    pub(super) fn handle_request(&mut self, bth: &Bth, request: &Request<'_>, dev: &mut Device) -> Result<(), Fatal> {
        if starts_message(request) {
            // Whatever was under way has lost its end. Messages between may be missing as a whole.
            self.abandon_message(dev);
            self.epsn = bth.psn;
        } else if self.message == Message::None {
            dev.counters.drop_rest_of_message += 1;
            return Ok(());
        } else if bth.psn != self.epsn {
            self.abandon_message(dev);
            dev.counters.drop_out_of_order += 1;
            return Ok(());
        }
        match self.execute(bth, request, dev) {
            Ok(()) => {
                self.epsn = self.epsn.plus(1);
                Ok(())
            }
            Err(refusal) => self.refuse(refusal, dev),
        }
    }

    fn refuse(&mut self, refusal: Refusal, dev: &mut Device) -> Result<(), Fatal> {
        self.abandon_message(dev);
        *counter_of(refusal, &mut dev.counters) += 1;
        if refusal != Refusal::BadReceive {
            return Ok(());
        }
        if let Some(wqe) = self.taken.take() {
            let (opcode, byte_len, imm, solicited) = (WcOpcode::Recv, 0, None, false);
            self.complete(wqe, Status::LocProtErr, Received { opcode, byte_len, imm, solicited }, dev);
        }
        Err(Fatal)
    }

    fn execute(&mut self, bth: &Bth, request: &Request<'_>, dev: &mut Device) -> Result<(), Refusal> {
        match *request {
            Request::Send { start, end, imm, invalidate: None, payload } => {
                self.check_length(start, end, payload)?;
                self.receive(start, payload, dev)?;
                if end {
                    self.finish_send(imm, bth.solicited, dev);
                }
                Ok(())
            }
            Request::Write { reth, end, imm, payload } => {
                self.check_length(reth.is_some(), end, payload)?;
                self.write(reth, end, imm, payload, bth.solicited, dev)
            }
            // No opcode of the service leads here.
            _ => Err(Refusal::Invalid),
        }
    }

    fn check_length(&self, start: bool, end: bool, payload: &[u8]) -> Result<(), Refusal> {
        if has_right_length(start, end, payload.len(), self.mtu) { Ok(()) } else { Err(Refusal::Invalid) }
    }

    fn receive(&mut self, start: bool, payload: &[u8], dev: &mut Device) -> Result<(), Refusal> {
        let received = match self.message {
            Message::None if start => 0,
            Message::Send { received } if !start => received,
            _ => return Err(Refusal::Invalid),
        };
        if start {
            self.hold_receive(dev)?;
        }
        let wqe = self.taken.as_ref().ok_or(Refusal::NoReceive)?;
        let end = received + payload.len() as u64;
        if end > wqe.capacity_bytes || end > self.max_msg_bytes.into() {
            return Err(Refusal::TooLong);
        }
        dev.mrs.scatter(&wqe.sges, received, payload).map_err(|_: KeyFault| Refusal::BadReceive)?;
        self.message = Message::Send { received: end };
        Ok(())
    }

    fn finish_send(&mut self, imm: Option<u32>, solicited: bool, dev: &mut Device) {
        let message = std::mem::replace(&mut self.message, Message::None);
        if let (Message::Send { received }, Some(wqe)) = (message, self.taken.take()) {
            dev.base.counters.served_send += 1;
            let byte_len = u32::try_from(received).unwrap_or(u32::MAX);
            let received = Received { opcode: WcOpcode::Recv, byte_len, imm, solicited };
            self.complete(wqe, Status::Success, received, dev);
        }
    }

    fn write(
        &mut self,
        reth: Option<Reth>,
        end: bool,
        imm: Option<u32>,
        payload: &[u8],
        solicited: bool,
        dev: &mut Device,
    ) -> Result<(), Refusal> {
        if !self.access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::Invalid);
        }
        let (addr, rkey, total, remaining) = match (reth, self.message) {
            (Some(reth), Message::None) if reth.dma_len <= self.max_msg_bytes => {
                (reth.addr, reth.rkey, reth.dma_len, reth.dma_len)
            }
            (None, Message::Write { addr, rkey, total, remaining }) => (addr, rkey, total, remaining),
            _ => return Err(Refusal::Invalid),
        };
        let len = wire_len(payload.len());
        if len > remaining || (end && len != remaining) {
            return Err(Refusal::Invalid);
        }
        // A zero-length WRITE touches no memory, so its key is not checked (IBTA C9-88). The key is checked again with
        // each packet, for all bytes that are still to come.
        if remaining > 0 {
            let checked = dev.mrs.check_remote(rkey, addr, remaining.into(), Access::REMOTE_WRITE);
            checked.map_err(|_: KeyFault| Refusal::Invalid)?;
        }
        if imm.is_some() {
            self.hold_receive(dev)?;
        }
        if len > 0 {
            dev.mrs.write_remote(rkey, addr, payload).map_err(|_: KeyFault| Refusal::Invalid)?;
        }
        self.unreported.add(rkey, addr, len);
        self.message = if end {
            Message::None
        } else {
            Message::Write { addr: addr.wrapping_add(len.into()), rkey, total, remaining: remaining - len }
        };
        match self.taken.take_if(|_| imm.is_some()) {
            Some(wqe) => {
                dev.base.counters.served_write_imm += 1;
                let received = Received { opcode: WcOpcode::RecvWriteImm, byte_len: total, imm, solicited };
                self.complete(wqe, Status::Success, received, dev);
            }
            None if end => dev.base.counters.served_write += 1,
            None => {}
        }
        Ok(())
    }

    /// Takes a receive for the message, unless one is there that a dropped message took.
    fn hold_receive(&mut self, dev: &mut Device) -> Result<(), Refusal> {
        if self.taken.is_none() {
            self.taken = match self.srq {
                Some(srq) => dev.take_shared(srq),
                None => self.queue.take(),
            };
        }
        if self.taken.is_some() { Ok(()) } else { Err(Refusal::NoReceive) }
    }

    /// The message under way will not be finished. Its receive serves the next one.
    fn abandon_message(&mut self, dev: &mut Device) {
        if std::mem::replace(&mut self.message, Message::None) != Message::None {
            dev.counters.messages_abandoned += 1;
        }
    }

    fn complete(&mut self, wqe: RecvWqe, status: Status, received: Received, dev: &mut Device) {
        let Received { opcode, byte_len, imm, solicited } = received;
        let (wr_id, qpn) = (wqe.wr_id, self.qpn);
        // All WRITEs before it were placed before it.
        let placed = self.unreported.take();
        let completion = Completion { wr_id, status, opcode, byte_len, qpn, imm, src_qpn: None, placed };
        dev.complete(self.cq, completion, solicited);
        self.recycle(wqe, dev);
    }

    fn recycle(&mut self, wqe: RecvWqe, dev: &mut Device) {
        match self.srq.and_then(|srq| dev.srqs.get_mut(srq.0)) {
            Some(srq) => srq.recycle(wqe),
            None => self.queue.recycle(wqe),
        }
    }

    /// Into error: the receive that was taken and all posted ones complete as flushed. Receives of an SRQ stay there.
    pub(super) fn flush(&mut self, dev: &mut Device) {
        self.abandon_message(dev);
        while let Some(wqe) = self.taken.take().or_else(|| self.queue.take()) {
            let received = Received { opcode: WcOpcode::Recv, byte_len: 0, imm: None, solicited: false };
            self.complete(wqe, Status::WrFlushErr, received, dev);
        }
    }

    /// Forgets all work without completions.
    pub(super) fn reset(&mut self, dev: &mut Device) {
        self.message = Message::None;
        if let Some(wqe) = self.taken.take() {
            self.recycle(wqe, dev);
        }
        self.queue.clear();
        self.unreported.take();
        self.established = false;
    }
}

const fn starts_message(request: &Request<'_>) -> bool {
    match request {
        Request::Send { start, .. } => *start,
        Request::Write { reth, .. } => reth.is_some(),
        _ => true,
    }
}

const fn counter_of(refusal: Refusal, counters: &mut NicCounters) -> &mut u64 {
    match refusal {
        Refusal::Invalid => &mut counters.drop_invalid_request,
        Refusal::NoReceive => &mut counters.drop_no_receive,
        Refusal::TooLong => &mut counters.drop_receive_too_short,
        Refusal::BadReceive => &mut counters.drop_bad_receive,
    }
}
