//! The requester: turns send work requests into request packets, within window, fence and retry rules (IBTA 9.7.3).
//!
//! Sending alone is here; what responses do is in `completer`, when to send again in `retry`. It never looks at the
//! responder's state.
//!
//! Packets are counted from the first of the connection: `una <= next <= sent`. Before `una` everything is answered,
//! `next` goes out next, `sent` is the furthest ever sent; going back sets `next` to `una`.

use std::collections::VecDeque;

use rnic::{Domain, KeyFault, SendLimits};
use verbs::{Capabilities, CqId, Psn, Qpn, RtsAttr, SendFlags, SendOp, SendWr, Status, Time, VerbsError};

use super::credits::Credits;
use super::flow::Flow;
use super::retry::Retry;
use super::send_queue::{Cut, SendQueue, SendWqe};
use crate::batch::Batch;
use crate::device::Device;
use crate::limits::NicLimits;
use crate::peer::Peer;
use crate::wire::{AtomicEth, Bth, DEFAULT_PKEY, Header, Opcode, Reth, pad_field, wire_len};

/// Packets after which an ACK is asked for at the latest; a quarter of a smaller window, half of a smaller send queue.
const MAX_UNREQUESTED_PACKETS: u64 = 64;

/// The sending half of a QP.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
    pub(super) queue: SendQueue,
    psn_base: Psn,
    pub(super) mtu: usize,
    max_rd_atomic: usize,
    pub(super) una: u64,
    pub(super) next: u64,
    pub(super) sent: u64,
    /// Index in the queue of the request that `next` belongs to.
    pub(super) cursor: usize,
    /// The READ and atomic requests that were sent and not answered, oldest first. A READ sent again keeps to their
    /// ends, because a responder takes a duplicate only within the bounds of the original.
    pub(super) data_requests: VecDeque<DataRequest>,
    /// How many of them were sent since the last time of going back.
    pub(super) data_requests_sent: usize,
    unrequested: u64,
    /// The peer gave its receive budget, so it is a software NIC like this one. It acknowledges on its own even
    /// messages that do not ask for it. So a message asks only if somebody waits for its completion; a foreign
    /// responder may leave the others unanswered for ever. WRITEs to such a peer are cut evenly.
    peer: Capabilities,
    pub(super) credits: Credits,
    pub(super) flow: Flow,
    pub(super) retry: Retry,
    /// A local error of the request that starts with this packet; it ends the QP once it is the oldest.
    fault: Option<(u64, Status)>,
    draining: bool,
    /// Whether the end of draining is still to be told.
    drain_untold: bool,
    /// The packet at `una` is to be sent once more, alone, and `next` stays.
    probe_pending: bool,
    /// The packet that was sent so, until it is known whether it had been lost.
    pub(super) probed: Option<u64>,
}

/// The packets of the answer to one READ or atomic request.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataRequest {
    pub(super) first: u64,
    /// The packet after its last.
    pub(super) end: u64,
}

/// One request packet to send.
enum Step {
    /// A packet of a SEND or WRITE; whether it must ask for an ACK.
    Data { ack_request: bool },
    /// A request whose answer takes so many packets.
    WantsData { packets: u64 },
}

impl Requester {
    pub(crate) fn new(qpn: Qpn, cq: CqId, limits: SendLimits) -> Self {
        Self {
            qpn,
            cq,
            queue: SendQueue::new(limits),
            psn_base: Psn::new(0),
            mtu: 256,
            max_rd_atomic: 0,
            una: 0,
            next: 0,
            sent: 0,
            cursor: 0,
            data_requests: VecDeque::new(),
            data_requests_sent: 0,
            unrequested: 0,
            peer: Capabilities::empty(),
            credits: Credits::default(),
            flow: Flow::new(256),
            retry: Retry::default(),
            fault: None,
            draining: false,
            drain_untold: false,
            probe_pending: false,
            probed: None,
        }
    }

    /// Ready-to-receive to ready-to-send.
    pub(crate) fn start(&mut self, attr: &RtsAttr, mtu: usize, limits: &NicLimits) {
        self.psn_base = attr.sq_psn;
        self.mtu = mtu;
        self.flow = Flow::new(mtu);
        self.apply(attr, limits);
    }

    /// Takes the attributes that may change while the QP runs. What the window has learned of the path stays.
    pub(crate) fn apply(&mut self, attr: &RtsAttr, limits: &NicLimits) {
        self.max_rd_atomic = attr.max_rd_atomic.into();
        self.retry.configure(attr.timeout, attr.retry_cnt, attr.rnr_retry);
        self.flow.limit(limits, attr.peer_rx_budget_bytes);
        self.peer = attr.peer;
        (self.draining, self.drain_untold) = (false, false);
    }

    /// Finishes what was begun and begins nothing.
    pub(crate) const fn drain(&mut self) {
        self.draining = true;
        self.drain_untold = true;
    }

    /// Whether all that was begun is answered; true once.
    pub(crate) fn take_drained(&mut self) -> bool {
        let is_idle = self.una == self.sent && self.queue.head().is_none_or(|head| head.first == self.una);
        is_idle && std::mem::take(&mut self.drain_untold)
    }

    /// Forgets all work without completions.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
        (self.una, self.next, self.sent, self.cursor, self.unrequested) = (0, 0, 0, 0, 0);
        self.data_requests.clear();
        self.data_requests_sent = 0;
        self.retry = Retry::default();
        self.credits = Credits::default();
        self.flow = Flow::new(self.mtu);
        self.fault = None;
        (self.draining, self.drain_untold, self.probe_pending, self.probed) = (false, false, false, None);
    }

    pub(crate) fn post(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let wants_data = matches!(wr.op, SendOp::Read(_) | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. });
        if wants_data && self.max_rd_atomic == 0 {
            return Err(VerbsError::OutOfRange {
                what: "READs and atomics of a QP with max_rd_atomic 0",
                value: 1,
                min: 0,
                max: 0,
            });
        }
        let cut = if self.peer.contains(Capabilities::COUNTS_WRITES) { Cut::Even } else { Cut::Mtu };
        self.queue.post(wr, self.mtu, cut)
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    pub(crate) const fn psn_of(&self, packet: u64) -> Psn {
        self.psn_base.plus((packet & 0xff_ffff) as u32)
    }

    /// The first PSN that was never sent.
    pub(crate) const fn next_psn(&self) -> Psn {
        self.psn_of(self.sent)
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.retry.deadline(), self.flow.paced_until()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Packets and window bytes between `una` and `next`.
    fn in_flight(&self) -> (u64, u64) {
        let charge = |wqe: Option<&SendWqe>, packet| wqe.map(|w| w.charge_before(packet));
        let Some(from) = charge(self.queue.head(), self.una) else { return (0, 0) };
        // At the end of the queue there is no request to ask; its last one knows what is before the end.
        let to = charge(self.queue.at(self.cursor), self.next)
            .or_else(|| charge(self.queue.at(self.cursor.saturating_sub(1)), self.next))
            .unwrap_or(from);
        (self.next - self.una, to - from)
    }

    /// Whether [`Self::fill`] would send something.
    pub(crate) fn has_work(&self) -> bool {
        self.probe_pending || self.next_step().is_some()
    }

    /// Asks whether the peer is there by sending its oldest unanswered packet again.
    pub(super) const fn probe(&mut self) {
        self.probe_pending = self.next > self.una;
    }

    /// The status of the oldest request, if it failed locally.
    pub(crate) fn due_fault(&self) -> Option<Status> {
        let head = self.queue.head()?;
        self.fault.filter(|(first, _)| *first == head.first).map(|(_, status)| status)
    }

    fn next_step(&self) -> Option<Step> {
        if self.flow.is_paced() {
            return None;
        }
        let wqe = self.queue.at(self.cursor)?;
        let begins = self.next == wqe.first && self.next >= self.sent;
        let fenced = wqe.flags.contains(SendFlags::FENCE) && !self.data_requests.is_empty();
        let is_short = wqe.takes_receive() && self.credits.is_short(begins);
        let blocked = self.retry.is_waiting()
            || (begins && is_short && self.next > self.una)
            || self.fault.is_some_and(|(first, _)| self.next >= first)
            || (begins && (self.draining || fenced));
        if blocked {
            return None;
        }
        let (packets, bytes) = self.in_flight();
        if wqe.wants_data() {
            return self.data_request_packets(wqe, packets, bytes).map(|packets| Step::WantsData { packets });
        }
        let charge = wqe.charge_before(self.next + 1) - wqe.charge_before(self.next);
        if !self.flow.admits(packets, bytes, charge) {
            return None;
        }
        let is_awaited = !self.peer.contains(Capabilities::OWES_ACKS)
            || self.draining
            || self.next < self.sent
            || wqe.flags.contains(SendFlags::SIGNALED);
        let ack_request = ((is_awaited || is_short) && self.next + 1 == wqe.end())
            || self.unrequested + 1 >= self.unrequested_max()
            || (self.flow.is_full(packets + 1, bytes + charge) && !self.is_answer_on_its_way(packets + 1));
        Some(Step::Data { ack_request })
    }

    /// Whether a full window of so many packets opens without another request: a packet of it asked, with less than a
    /// quarter of the window behind it. If each ACK brought a request, as many ACKs as ever came in a round trip would
    /// come in each later one. A peer that owes what was not asked for makes good what a lost ACK would cost.
    fn is_answer_on_its_way(&self, packets: u64) -> bool {
        self.peer.contains(Capabilities::OWES_ACKS) && (self.unrequested + 1) * 4 <= packets
    }

    /// Packets after which an ACK is asked for at the latest.
    fn unrequested_max(&self) -> u64 {
        let queue = u64::from(self.queue.max_wr() / 2);
        (self.flow.packets() / 4).min(queue).clamp(1, MAX_UNREQUESTED_PACKETS)
    }

    /// How many answer packets the next READ or atomic request may ask for. A READ longer than the window is asked for
    /// in pieces, because its answer comes as fast as the peer can send and nothing else holds it back.
    fn data_request_packets(&self, wqe: &SendWqe, packets: u64, bytes: u64) -> Option<u64> {
        let room = self.flow.room_packets(packets, bytes);
        if let Some(request) = self.data_requests.get(self.data_requests_sent) {
            let again = request.end.saturating_sub(self.next);
            return (again > 0 && (packets == 0 || again <= room)).then_some(again);
        }
        let remaining = wqe.end() - self.next;
        let worthwhile = remaining.min((self.flow.packets() / 4).max(1));
        (self.data_requests.len() < self.max_rd_atomic && room >= worthwhile).then_some(remaining.min(room))
    }

    /// Sends as much as rules and batch allow.
    pub(crate) fn fill(&mut self, peer: &Peer, batch: &mut Batch<'_>, dev: &mut Device, now: Time) {
        self.flow.on_time(now);
        if self.probe_pending {
            self.send_probe(peer, batch, dev, now);
        }
        while let Some(step) = self.next_step() {
            let is_sent = match step {
                Step::Data { ack_request } => self.send(1, ack_request, peer, batch, dev, now),
                Step::WantsData { packets } => self.send(packets, true, peer, batch, dev, now),
            };
            if !is_sent {
                return;
            }
        }
    }

    fn send_probe(&mut self, peer: &Peer, batch: &mut Batch<'_>, dev: &mut Device, now: Time) {
        if self.next == self.una {
            // Going back has overtaken the probe.
            self.probe_pending = false;
            return;
        }
        let place = (self.next, self.cursor, self.data_requests_sent);
        (self.next, self.cursor, self.data_requests_sent) = (self.una, 0, 0);
        let (is_data, is_sent) = match self.next_step() {
            Some(Step::Data { .. }) => (true, self.send(1, true, peer, batch, dev, now)),
            Some(Step::WantsData { packets }) => (false, self.send(packets, true, peer, batch, dev, now)),
            None => (false, true),
        };
        if is_sent {
            self.probe_pending = false;
            // The answer to a READ shows by itself what was lost.
            self.probed = is_data.then_some(self.una);
        }
        (self.next, self.cursor, self.data_requests_sent) = place;
    }

    /// Sends the packet at `next`, or asks for `packets` of an answer; false if the batch has no place for it, or its
    /// memory is not what it should be.
    fn send(
        &mut self,
        packets: u64,
        ack_request: bool,
        peer: &Peer,
        batch: &mut Batch<'_>,
        dev: &mut Device,
        now: Time,
    ) -> bool {
        let at = self.next;
        let Some(wqe) = self.queue.at(self.cursor) else { return false };
        let (first, end, wants_data, is_cut) = (wqe.first, wqe.end(), wqe.wants_data(), wqe.is_cut);
        let packet = self.encode(peer, wqe, at, packets, ack_request);
        let is_new = at >= self.sent;
        match packet.write(peer, wqe, batch, dev.mrs.of(self.queue.pd())) {
            Some(Ok(())) => {}
            Some(Err(_)) => {
                self.fault = Some((first, Status::LocProtErr));
                return false;
            }
            None => return false,
        }
        if is_new && (wants_data || is_cut || at == first) {
            self.credits.on_message();
        }
        let bytes = wqe.charge_before(at + packets) - wqe.charge_before(at);
        if wants_data {
            self.on_data_requested(at + packets);
        }
        self.flow.on_sent(bytes, now);
        self.on_sent(packets, end, ack_request, dev, now);
        true
    }

    /// Builds the packet at `at`. `packets`: how many its answer has, for a READ.
    fn encode(&self, peer: &Peer, wqe: &SendWqe, at: u64, packets: u64, ack_request: bool) -> RequestPacket {
        let (start, end) = (at == wqe.first, at + 1 == wqe.end());
        let (offset, len) = wqe.slice_of(at);
        let imm = wqe.imm();
        let (opcode, payload_bytes, solicits) = match wqe.op {
            SendOp::Write(_) if wqe.is_cut => (Opcode::WriteOnly, len, false),
            SendOp::Write(_) | SendOp::WriteImm(..) => (Opcode::write(start, end, imm.is_some()), len, imm.is_some()),
            SendOp::Read(_) => (Opcode::ReadRequest, 0, false),
            SendOp::CmpSwap { .. } => (Opcode::CompareSwap, 0, false),
            SendOp::FetchAdd { .. } => (Opcode::FetchAdd, 0, false),
            _ => (Opcode::send(start, end, imm.is_some()), len, true),
        };
        let mut header = Header::new(&Bth {
            opcode: opcode.byte(),
            solicited: solicits && end && wqe.flags.contains(SendFlags::SOLICITED),
            pad: pad_field(payload_bytes),
            version: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn: peer.qpn,
            ack_request,
            psn: self.psn_of(at),
        });
        match wqe.op {
            SendOp::Write(remote) if wqe.is_cut => {
                let addr = remote.addr.wrapping_add(offset.into());
                header = header.with_reth(Reth { addr, rkey: remote.rkey, dma_len: wire_len(payload_bytes) });
            }
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) if start => {
                header = header.with_reth(Reth { addr: remote.addr, rkey: remote.rkey, dma_len: wqe.len });
            }
            SendOp::Read(remote) => {
                let left = wqe.len - offset;
                let wanted = u32::try_from(packets * self.mtu as u64).map_or(left, |bytes| bytes.min(left));
                let addr = remote.addr.wrapping_add(offset.into());
                header = header.with_reth(Reth { addr, rkey: remote.rkey, dma_len: wanted });
            }
            SendOp::CmpSwap { remote, compare, swap } => {
                header =
                    header.with_atomic(AtomicEth { addr: remote.addr, rkey: remote.rkey, swap_or_add: swap, compare });
            }
            SendOp::FetchAdd { remote, add } => {
                let (addr, rkey) = (remote.addr, remote.rkey);
                header = header.with_atomic(AtomicEth { addr, rkey, swap_or_add: add, compare: 0 });
            }
            _ => {}
        }
        if let (true, Some(imm)) = (end, imm) {
            header = header.with_imm(imm);
        }
        RequestPacket { header, offset, payload_bytes }
    }

    fn on_data_requested(&mut self, end: u64) {
        if self.data_requests_sent == self.data_requests.len() {
            self.data_requests.push_back(DataRequest { first: self.next, end });
        }
        self.data_requests_sent += 1;
    }

    fn on_sent(&mut self, packets: u64, wqe_end: u64, ack_requested: bool, dev: &mut Device, now: Time) {
        let is_new = self.next >= self.sent;
        self.next += packets;
        if self.next == wqe_end {
            self.cursor += 1;
        }
        self.unrequested = if ack_requested { 0 } else { self.unrequested + 1 };
        self.sent = self.sent.max(self.next);
        if is_new {
            if ack_requested {
                self.flow.begin_measuring(self.next - 1, now);
            }
        } else {
            dev.counters.retransmits += 1;
        }
        self.retry.on_sent(now);
    }
}

/// A request packet whose payload is not yet copied.
struct RequestPacket {
    header: Header,
    offset: u32,
    payload_bytes: usize,
}

impl RequestPacket {
    /// Copies it into the batch; `None` if that has no place for it. A READ's or atomic's landing place is checked before
    /// the peer is asked.
    fn write(
        &self,
        peer: &Peer,
        wqe: &SendWqe,
        batch: &mut Batch<'_>,
        mrs: Domain<'_>,
    ) -> Option<Result<(), KeyFault>> {
        if !batch.fits(self.header.as_bytes().len(), self.payload_bytes) {
            return None;
        }
        if wqe.wants_data()
            && let Err(fault) = wqe.check_writable(mrs)
        {
            return Some(Err(fault));
        }
        Some(batch.push(&peer.route, &self.header, self.payload_bytes, |dst| wqe.read(mrs, self.offset, dst)))
    }
}
