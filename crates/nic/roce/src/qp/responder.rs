//! The responder: executes request packets in order, and decides what is answered (IBTA 9.7.4, 9.7.5, 9.9.3).
//!
//! Owns the order of packets, READs and atomics. SENDs and WRITEs in order are executed by `crate::incoming`, by the rules
//! of all connected QPs. Nothing is written before all checks of a packet have passed. What leaves is the affair of
//! `responses`.

use rnic::{AtomicOp, KeyFault, ReceiveQueue};
use verbs::{Access, Psn, QpInit, Qpn, RtrAttr, Status, Time};

use super::responses::{Acknowledged, Fatal, Responses};
use crate::batch::Batch;
use crate::device::Device;
use crate::incoming::{Fault, Incoming};
use crate::limits::{AHEAD_PACKETS_MAX, OVERTAKEN_PACKETS_MAX, rnr_silence};
use crate::peer::Peer;
use crate::wire::{AtomicEth, Bth, CREDITS_UNLIMITED, NakCode, Request, Reth, credit_code, wire_len};

/// Why a packet in order is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// No receive is posted: RNR NAK.
    NotReady,
    /// NAK; the second is how a receive that was taken ends.
    Fatal(NakCode, Status),
}

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, Status::RemInvReqErr);
/// No SEND is in progress then. A receive can only be a WRITE's, which reports nothing before its bytes are placed.
const ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, Status::WrFlushErr);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Invalid => INVALID,
            Fault::Key => ACCESS,
            Fault::NoReceive => Self::NotReady,
            Fault::TooLong => Self::Fatal(NakCode::InvalidRequest, Status::LocLenErr),
            Fault::BadReceive => Self::Fatal(NakCode::RemoteOperational, Status::LocProtErr),
        }
    }
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
    pub(super) incoming: Incoming,
    rnr_code: u8,
    epsn: Psn,
    /// Packets by which a request may be ahead of the expected one.
    ahead_max: u32,
    gap: Gap,
    pub(super) responses: Responses,
}

impl Responder {
    pub(crate) fn new(qpn: Qpn, init: &QpInit, max_msg_bytes: u32) -> Self {
        Self {
            incoming: Incoming::new(qpn, init, max_msg_bytes),
            rnr_code: 0,
            epsn: Psn::new(0),
            ahead_max: AHEAD_PACKETS_MAX,
            gap: Gap::None,
            responses: Responses::default(),
        }
    }

    /// Init to ready-to-receive.
    pub(crate) fn start(&mut self, attr: &RtrAttr) {
        self.incoming.start(attr);
        self.rnr_code = attr.min_rnr_timer;
        self.epsn = attr.rq_psn;
        self.ahead_max = self.plausible_ahead(attr.max_dest_rd_atomic);
        self.responses = Responses::new(attr.max_dest_rd_atomic);
    }

    /// How far ahead of the expected request one of the peer's can be. A READ takes as many PSNs as its answer has
    /// packets (IBTA 9.7.3.1), so that a few of them span any distance.
    fn plausible_ahead(&self, reads: u8) -> u32 {
        if !self.incoming.access.contains(Access::REMOTE_READ) {
            return AHEAD_PACKETS_MAX;
        }
        let of_reads = u64::from(self.incoming.max_msg_bytes).div_ceil(self.incoming.mtu as u64) * u64::from(reads);
        u32::try_from(u64::from(AHEAD_PACKETS_MAX) + of_reads)
            .map_or(Psn::MODULUS / 2, |ahead| ahead.min(Psn::MODULUS / 2))
    }

    /// Fills a batch with answers and the acknowledgement.
    pub(crate) fn fill(&mut self, peer: &Peer, batch: &mut Batch<'_>, dev: &mut Device) -> Result<(), Fatal> {
        let state = self.acknowledged();
        self.responses.fill(peer, (state, self.incoming.receives.pd), batch, dev)
    }

    pub(crate) const fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// What an acknowledgement says. Receives of an SRQ are no credits of one QP (IBTA 9.7.7.2).
    fn acknowledged(&self) -> Acknowledged {
        let credits = self.incoming.receives.waiting().map_or(CREDITS_UNLIMITED, credit_code);
        Acknowledged { expected: self.epsn, credits }
    }

    /// What peers may do, and the receives that wait; an empty queue of the same size takes their place.
    pub(crate) fn lend(&mut self, init: &QpInit) -> (Access, ReceiveQueue) {
        (self.incoming.access, self.incoming.receives.lend(init))
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
            self.responses.on_duplicate(bth.psn, request, self.incoming.mtu, dev);
            return Ok(());
        }
        if ahead > self.ahead_max {
            // A NAK would tell a guesser that the QP exists, and would make the peer send again what arrives anyhow.
            dev.counters.drop_beyond_window += 1;
            return Ok(());
        }
        if ahead > 0 {
            dev.counters.drop_out_of_order += 1;
            self.on_gap(bth.psn, now);
            return Ok(());
        }
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
                self.incoming.fail_message(status, dev);
                self.responses.refuse(self.epsn, code);
                Err(Fatal(code))
            }
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
            Request::Send { end, .. } | Request::Write { end, .. } => {
                self.incoming.execute(request, bth.solicited, dev)?;
                self.epsn = psn.plus(1);
                if end {
                    self.responses.count_message();
                }
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

    /// Checks a READ and says how many packets its answer has.
    fn admit_read(&self, reth: &Reth, dev: &Device) -> Result<u32, Refusal> {
        let allowed = !self.incoming.is_within_message()
            && self.incoming.access.contains(Access::REMOTE_READ)
            && reth.dma_len <= self.incoming.max_msg_bytes
            && self.responses.has_room();
        if !allowed {
            return Err(INVALID);
        }
        if reth.dma_len > 0 {
            let len = reth.dma_len.into();
            dev.mrs
                .of(self.incoming.receives.pd)
                .check_remote(reth.rkey, reth.addr, len, Access::REMOTE_READ)
                .map_err(|_: KeyFault| ACCESS)?;
        }
        Ok(reth.dma_len.div_ceil(wire_len(self.incoming.mtu)).max(1))
    }

    fn atomic(&mut self, psn: Psn, eth: &AtomicEth, op: AtomicOp, dev: &mut Device) -> Result<(), Refusal> {
        let allowed = !self.incoming.is_within_message()
            && self.incoming.access.contains(Access::REMOTE_ATOMIC)
            && eth.addr.is_multiple_of(8)
            && self.responses.has_room();
        if !allowed {
            return Err(INVALID);
        }
        let original = dev
            .mrs
            .of(self.incoming.receives.pd)
            .atomic_remote(eth.rkey, eth.addr, op)
            .map_err(|_: KeyFault| ACCESS)?;
        self.epsn = psn.plus(1);
        self.responses.on_atomic(psn, original);
        dev.base.counters.served_atomic += 1;
        Ok(())
    }

    /// Into error: the receive in progress and all posted ones complete as flushed. Receives of an SRQ stay there.
    pub(crate) fn flush(&mut self, dev: &mut Device) {
        self.incoming.flush(dev);
    }

    /// Forgets all work without completions.
    pub(crate) fn reset(&mut self, dev: &mut Device) {
        self.incoming.reset(dev);
        self.gap = Gap::None;
        self.responses = Responses::default();
    }
}
