//! The responder: executes request packets in order, and decides what is answered (IBTA 9.7.4, 9.7.5, 9.9.3).
//!
//! A packet passes the steps of the specification: PSN, place in its message, rights of the QP, lengths, receive, key,
//! execution. Nothing is written before all checks of that packet have passed. What leaves is the affair of
//! `responses`.

use rnic::{AtomicOp, KeyFault, ReceiveQueue, RecvWqe, Unreported};
use verbs::{
    Access, Completion, CqId, Psn, QpInit, Qpn, RecvWr, Rkey, RtrAttr, SrqId, Status, Time, VerbsError, WcOpcode,
};

use super::held::Held;
use super::responses::{Acknowledged, Fatal, Responses};
use crate::batch::Batch;
use crate::device::Device;
use crate::limits::{AHEAD_PACKETS_MAX, OVERTAKEN_PACKETS_MAX, rnr_silence};
use crate::peer::Peer;
use crate::wire::{AtomicEth, Bth, CREDITS_UNLIMITED, NakCode, Request, Reth, credit_code, has_right_length, wire_len};

/// Why a packet in order is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// No receive is posted: RNR NAK.
    NotReady,
    /// NAK; the second is how a receive in progress ends.
    Fatal(NakCode, Status),
}

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, Status::RemInvReqErr);
const ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, Status::RemAccessErr);

/// A message of several packets in progress.
#[derive(Debug)]
enum Message {
    None,
    Send { wqe: RecvWqe, received: u64 },
    Write { addr: u64, rkey: Rkey, total: u32, remaining: u32 },
}

/// Packets missing before the ones that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    None,
    /// A NAK was queued when packet `first` arrived. The requester then begins a new round with the missing packet. So
    /// an arrival that is not after `first`, or that lies further before `last`, the furthest arrival of this round,
    /// than packets overtake each other, belongs to a new round, whose first packets were lost: the NAK is repeated.
    Nacked {
        first: Psn,
        last: Psn,
    },
    /// After an RNR NAK what follows the refused packet is expected, and ignored, until the requester's wait is over.
    NotReady(Time),
}

/// The receiving half of a QP.
#[derive(Debug)]
pub(crate) struct Responder {
    qpn: Qpn,
    cq: CqId,
    srq: Option<SrqId>,
    queue: ReceiveQueue,
    access: Access,
    mtu: usize,
    max_msg_bytes: u32,
    rnr_code: u8,
    epsn: Psn,
    /// Packets by which a request may be ahead of the expected one.
    ahead_max: u32,
    message: Message,
    unreported: Unreported,
    gap: Gap,
    /// Whether the peer repeats selectively, and takes selective acknowledgements.
    is_selective: bool,
    held: Held,
    established: bool,
    pub(super) responses: Responses,
}

impl Responder {
    pub(crate) fn new(qpn: Qpn, cq: CqId, srq: Option<SrqId>, queue: ReceiveQueue, max_msg_bytes: u32) -> Self {
        Self {
            qpn,
            cq,
            srq,
            queue,
            access: Access::empty(),
            mtu: 256,
            max_msg_bytes,
            rnr_code: 0,
            epsn: Psn::new(0),
            ahead_max: AHEAD_PACKETS_MAX,
            message: Message::None,
            unreported: Unreported::default(),
            gap: Gap::None,
            is_selective: false,
            held: Held::default(),
            established: false,
            responses: Responses::default(),
        }
    }

    /// Reset to Init.
    pub(crate) const fn allow(&mut self, access: Access) {
        self.access = access;
    }

    /// Init to ready-to-receive.
    pub(crate) fn start(&mut self, attr: &RtrAttr) {
        self.mtu = attr.mtu.bytes();
        self.rnr_code = attr.min_rnr_timer;
        self.epsn = attr.rq_psn;
        self.held = Held::new(attr.rq_psn);
        self.ahead_max = self.plausible_ahead(attr.max_dest_rd_atomic);
        self.responses = Responses::new(attr.max_dest_rd_atomic);
    }

    /// Whether the peer repeats selectively.
    pub(crate) const fn set_selective(&mut self, is_selective: bool) {
        self.is_selective = is_selective;
    }

    /// How far ahead of the expected request one of the peer's can be. A READ takes as many PSNs as its answer has
    /// packets (IBTA 9.7.3.1), so that a few of them span any distance.
    fn plausible_ahead(&self, reads: u8) -> u32 {
        if !self.access.contains(Access::REMOTE_READ) {
            return AHEAD_PACKETS_MAX;
        }
        let of_reads = u64::from(self.max_msg_bytes).div_ceil(self.mtu as u64) * u64::from(reads);
        u32::try_from(u64::from(AHEAD_PACKETS_MAX) + of_reads)
            .map_or(Psn::MODULUS / 2, |ahead| ahead.min(Psn::MODULUS / 2))
    }

    /// Whether this is the first request since the QP became ready to receive.
    pub(crate) const fn note_first_packet(&mut self) -> bool {
        !std::mem::replace(&mut self.established, true)
    }

    /// Fills a batch with answers and the acknowledgement.
    pub(crate) fn fill(&mut self, peer: &Peer, batch: &mut Batch<'_>, dev: &mut Device) -> Result<(), Fatal> {
        let state = self.acknowledged();
        self.responses.fill(peer, state, &mut self.held, batch, dev)
    }

    /// Whether the range may hold bytes that were placed and that no completion has reported.
    pub(crate) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.unreported.touches(rkey, addr, len)
    }

    pub(crate) const fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// What an acknowledgement says. Receives of an SRQ are no credits of one QP (IBTA 9.7.7.2).
    fn acknowledged(&self) -> Acknowledged {
        let credits = if self.srq.is_some() { CREDITS_UNLIMITED } else { credit_code(self.queue.len()) };
        Acknowledged { expected: self.epsn, credits }
    }

    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        match self.srq {
            Some(_) => Err(VerbsError::Busy("the receive queue is an SRQ, post there: it")),
            None => self.queue.post(wr),
        }
    }

    /// What peers may do, and the receives that wait; an empty queue of the same size takes their place.
    pub(crate) fn lend(&mut self, init: &QpInit) -> (Access, ReceiveQueue) {
        let max_wr = if self.srq.is_some() { 0 } else { init.max_recv_wr };
        (self.access, std::mem::replace(&mut self.queue, ReceiveQueue::new(max_wr, init.max_recv_sge)))
    }

    /// Takes one request packet.
    pub(crate) fn handle_request(
        &mut self,
        bth: &Bth,
        request: &Request<'_>,
        dev: &mut Device,
        now: Time,
    ) -> Result<(), Fatal> {
        let ahead = bth.psn.since(self.epsn);
        if ahead >= Psn::MODULUS / 2 {
            dev.counters.duplicates += 1;
            self.responses.on_duplicate(bth.psn, request, self.mtu, dev);
            if !self.held.is_empty() {
                self.responses.report();
            }
            return Ok(());
        }
        if ahead > self.ahead_max {
            // A NAK would tell a guesser that the QP exists, and would make the peer send again what arrives anyhow.
            dev.counters.drop_beyond_window += 1;
            return Ok(());
        }
        if ahead > 0 {
            dev.counters.out_of_order += 1;
            if self.is_selective {
                self.on_early(bth, request, dev, now);
            } else {
                dev.counters.drop_out_of_order += 1;
                self.on_gap(bth.psn, now);
            }
            return Ok(());
        }
        self.on_expected(bth, request, dev, now)?;
        if !self.held.is_empty() {
            self.execute_held(dev, now)?;
        }
        Ok(())
    }

    /// Takes the packet that is expected.
    fn on_expected(&mut self, bth: &Bth, request: &Request<'_>, dev: &mut Device, now: Time) -> Result<(), Fatal> {
        let was_gap = std::mem::replace(&mut self.gap, Gap::None);
        self.responses.forget_rnr_nak();
        match self.execute(bth, request, dev, now) {
            Ok(()) => {
                if let Gap::Nacked { last, .. } = was_gap
                    && self.responses.keep_sequence_nak(self.epsn, last)
                {
                    self.gap = was_gap;
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                dev.counters.drop_not_ready += 1;
                self.gap = Gap::NotReady(now + rnr_silence(self.rnr_code));
                self.responses.refuse_not_ready(self.epsn, self.rnr_code);
                Ok(())
            }
            Err(Refusal::Fatal(code, status)) => {
                self.abandon_message(status, dev);
                self.responses.refuse(self.epsn, code);
                Err(Fatal(code))
            }
        }
    }

    /// Executes kept requests whose turn it is. The peer is told at once: it waits for what was missing.
    fn execute_held(&mut self, dev: &mut Device, now: Time) -> Result<(), Fatal> {
        while self.gap == Gap::None
            && let Some(held) = self.held.take(self.epsn, &mut dev.held_bytes)
        {
            self.on_expected(&held.bth, &held.request(), dev, now)?;
        }
        if self.held.is_empty() {
            self.responses.acknowledge_latest();
        } else {
            self.responses.report();
        }
        Ok(())
    }

    /// A packet is missing before this one, from a peer that repeats selectively.
    fn on_early(&mut self, bth: &Bth, request: &Request<'_>, dev: &mut Device, now: Time) {
        if self.held.keep(self.epsn, bth, request, &mut dev.held_bytes) {
            dev.counters.held += 1;
        } else {
            dev.counters.drop_out_of_order += 1;
        }
        // After an RNR NAK the requester sends all again without being told.
        let is_waited_for = !matches!(self.gap, Gap::NotReady(until) if now < until);
        if is_waited_for && (self.held.is_to_be_told() || bth.ack_request) {
            self.responses.report();
        }
    }

    /// A packet is missing before this one.
    fn on_gap(&mut self, psn: Psn, now: Time) {
        if let Gap::Nacked { first, last } = &mut self.gap {
            let overtaken = last.is_after(psn) && last.since(psn) <= OVERTAKEN_PACKETS_MAX;
            if psn.is_after(*first) && (psn.is_after(*last) || psn == *last || overtaken) {
                if psn.is_after(*last) {
                    *last = psn;
                }
                return;
            }
        }
        if matches!(self.gap, Gap::NotReady(until) if now < until) {
            return;
        }
        self.gap = Gap::Nacked { first: psn, last: psn };
        self.responses.refuse_sequence();
    }

    fn execute(&mut self, bth: &Bth, request: &Request<'_>, dev: &mut Device, now: Time) -> Result<(), Refusal> {
        let psn = self.epsn;
        match *request {
            Request::Send { start, end, imm, invalidate, payload } => {
                self.check_length(start, end, payload)?;
                // No key of this device may be invalidated by a peer: there are no memory windows and no fast
                // registrations.
                if invalidate.is_some() {
                    return Err(INVALID);
                }
                self.receive(start, payload, dev)?;
                self.epsn = psn.plus(1);
                if end {
                    self.finish_send(imm, bth.solicited, dev);
                }
            }
            Request::Write { reth, end, imm, payload } => {
                self.check_length(reth.is_some(), end, payload)?;
                self.write(reth, end, imm, payload, bth.solicited, dev)?;
                self.epsn = psn.plus(1);
            }
            Request::Read(reth) => {
                let packets = self.admit_read(&reth, dev)?;
                self.epsn = psn.plus(packets);
                self.responses.on_read(psn, &reth, packets);
                dev.base.counters.served_read += 1;
                return Ok(());
            }
            Request::CompareSwap(eth) => {
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add };
                return self.atomic(psn, &eth, op, dev);
            }
            Request::FetchAdd(eth) => {
                return self.atomic(psn, &eth, AtomicOp::FetchAdd { add: eth.swap_or_add }, dev);
            }
            Request::Unsupported(_) => return Err(INVALID),
        }
        if bth.ack_request {
            self.responses.acknowledge_latest();
        } else {
            self.responses.owe(now);
        }
        Ok(())
    }

    fn check_length(&self, start: bool, end: bool, payload: &[u8]) -> Result<(), Refusal> {
        if has_right_length(start, end, payload.len(), self.mtu) { Ok(()) } else { Err(INVALID) }
    }

    fn receive(&mut self, start: bool, payload: &[u8], dev: &mut Device) -> Result<(), Refusal> {
        match (&self.message, start) {
            (Message::None, true) => {
                let wqe = self.take_receive(dev).ok_or(Refusal::NotReady)?;
                self.message = Message::Send { wqe, received: 0 };
            }
            (Message::Send { .. }, false) => {}
            _ => return Err(INVALID),
        }
        let Message::Send { wqe, received } = &mut self.message else { return Err(INVALID) };
        let end = *received + payload.len() as u64;
        if end > wqe.capacity_bytes || end > self.max_msg_bytes.into() {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, Status::LocLenErr));
        }
        dev.mrs
            .scatter(&wqe.sges, *received, payload)
            .map_err(|_: KeyFault| Refusal::Fatal(NakCode::RemoteOperational, Status::LocProtErr))?;
        *received = end;
        Ok(())
    }

    fn finish_send(&mut self, imm: Option<u32>, solicited: bool, dev: &mut Device) {
        self.responses.count_message();
        if let Message::Send { wqe, received } = std::mem::replace(&mut self.message, Message::None) {
            dev.base.counters.served_send += 1;
            let received = u32::try_from(received).unwrap_or(u32::MAX);
            self.complete(wqe, Status::Success, WcOpcode::Recv, received, imm, solicited, dev);
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
            return Err(INVALID);
        }
        let (addr, rkey, total, remaining) = match (reth, &self.message) {
            (Some(reth), Message::None) if reth.dma_len <= self.max_msg_bytes => {
                (reth.addr, reth.rkey, reth.dma_len, reth.dma_len)
            }
            (None, Message::Write { addr, rkey, total, remaining }) => (*addr, *rkey, *total, *remaining),
            _ => return Err(INVALID),
        };
        let len = wire_len(payload.len());
        if len > remaining || (end && len != remaining) {
            return Err(INVALID);
        }
        // A zero-length WRITE touches no memory, so its key is not checked (IBTA C9-88). The key is checked again with
        // each packet, for all bytes that are still to come.
        if remaining > 0 {
            dev.mrs.check_remote(rkey, addr, remaining.into(), Access::REMOTE_WRITE).map_err(|_: KeyFault| ACCESS)?;
        }
        let receive = match imm {
            Some(_) => Some(self.take_receive(dev).ok_or(Refusal::NotReady)?),
            None => None,
        };
        if len > 0 && dev.mrs.write_remote(rkey, addr, payload).is_err() {
            if let Some(wqe) = receive {
                self.complete(wqe, Status::WrFlushErr, WcOpcode::RecvWriteImm, 0, None, false, dev);
            }
            return Err(ACCESS);
        }
        self.unreported.add(rkey, addr, len);
        self.message = if end {
            Message::None
        } else {
            Message::Write { addr: addr.wrapping_add(len.into()), rkey, total, remaining: remaining - len }
        };
        if end {
            self.responses.count_message();
        }
        if let Some(wqe) = receive {
            dev.base.counters.served_write_imm += 1;
            self.complete(wqe, Status::Success, WcOpcode::RecvWriteImm, total, imm, solicited, dev);
        } else if end {
            dev.base.counters.served_write += 1;
        }
        Ok(())
    }

    /// Checks a READ and says how many packets its answer has.
    fn admit_read(&self, reth: &Reth, dev: &Device) -> Result<u32, Refusal> {
        let allowed = matches!(self.message, Message::None)
            && self.access.contains(Access::REMOTE_READ)
            && reth.dma_len <= self.max_msg_bytes
            && self.responses.has_room();
        if !allowed {
            return Err(INVALID);
        }
        if reth.dma_len > 0 {
            let len = reth.dma_len.into();
            dev.mrs.check_remote(reth.rkey, reth.addr, len, Access::REMOTE_READ).map_err(|_: KeyFault| ACCESS)?;
        }
        Ok(reth.dma_len.div_ceil(wire_len(self.mtu)).max(1))
    }

    fn atomic(&mut self, psn: Psn, eth: &AtomicEth, op: AtomicOp, dev: &mut Device) -> Result<(), Refusal> {
        let allowed = matches!(self.message, Message::None)
            && self.access.contains(Access::REMOTE_ATOMIC)
            && eth.addr.is_multiple_of(8)
            && self.responses.has_room();
        if !allowed {
            return Err(INVALID);
        }
        let original = dev.mrs.atomic_remote(eth.rkey, eth.addr, op).map_err(|_: KeyFault| ACCESS)?;
        self.epsn = psn.plus(1);
        self.responses.on_atomic(psn, original);
        dev.base.counters.served_atomic += 1;
        Ok(())
    }

    fn take_receive(&mut self, dev: &mut Device) -> Option<RecvWqe> {
        match self.srq {
            Some(srq) => dev.take_shared(srq),
            None => self.queue.take(),
        }
    }

    #[allow(clippy::too_many_arguments)] // The fields of one completion.
    fn complete(
        &mut self,
        wqe: RecvWqe,
        status: Status,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<u32>,
        solicited: bool,
        dev: &mut Device,
    ) {
        let (wr_id, qpn) = (wqe.wr_id, self.qpn);
        // All WRITEs before it were placed before it.
        let placed = self.unreported.take();
        let completion = Completion { wr_id, status, opcode, byte_len, qpn, imm, src_qpn: None, placed };
        dev.complete(self.cq, completion, solicited);
        match self.srq.and_then(|srq| dev.srqs.get_mut(srq.0)) {
            Some(srq) => srq.recycle(wqe),
            None => self.queue.recycle(wqe),
        }
    }

    fn abandon_message(&mut self, status: Status, dev: &mut Device) {
        if let Message::Send { wqe, .. } = std::mem::replace(&mut self.message, Message::None) {
            self.complete(wqe, status, WcOpcode::Recv, 0, None, false, dev);
        }
    }

    /// Into error: the receive in progress and all posted ones complete as flushed. Receives of an SRQ stay there.
    pub(crate) fn flush(&mut self, dev: &mut Device) {
        self.abandon_message(Status::WrFlushErr, dev);
        self.held.clear(&mut dev.held_bytes);
        while let Some(wqe) = self.queue.take() {
            self.complete(wqe, Status::WrFlushErr, WcOpcode::Recv, 0, None, false, dev);
        }
    }

    /// Forgets all work without completions.
    pub(crate) fn reset(&mut self, dev: &mut Device) {
        if let Message::Send { wqe, .. } = std::mem::replace(&mut self.message, Message::None) {
            match self.srq.and_then(|srq| dev.srqs.get_mut(srq.0)) {
                Some(srq) => srq.recycle(wqe),
                None => self.queue.recycle(wqe),
            }
        }
        self.queue.clear();
        self.unreported.take();
        self.held.clear(&mut dev.held_bytes);
        self.is_selective = false;
        self.gap = Gap::None;
        self.established = false;
        self.responses = Responses::default();
    }
}
