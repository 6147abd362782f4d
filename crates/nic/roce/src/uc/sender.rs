//! The sending half of an unreliable connection: cuts messages into packets, and completes each when its last packet
//! was built.
//!
//! Nothing holds it back: there is no window, and no answer to wait for.

use rnic::SendLimits;
use verbs::{Completion, CqId, Placed, Psn, QpInit, QpType, Qpn, SendFlags, SendOp, SendWr, Status, VerbsError};

use crate::batch::Batch;
use crate::device::Device;
use crate::peer::Peer;
use crate::qp::{Cut, SendQueue, SendWqe};
use crate::wire::{Bth, DEFAULT_PKEY, Header, Opcode, Reth, pad_field};

#[derive(Debug)]
pub(super) struct Sender {
    qpn: Qpn,
    cq: CqId,
    queue: SendQueue,
    mtu: usize,
    /// The PSN of the first packet that the queue counts.
    psn_base: Psn,
    /// The packet to send next, counted as the queue does.
    next: u64,
    draining: bool,
    /// Whether the end of draining is still to be told.
    drain_untold: bool,
}

impl Sender {
    pub(super) fn new(qpn: Qpn, init: &QpInit, max_msg_bytes: u32) -> Self {
        Self {
            qpn,
            cq: init.send_cq,
            queue: SendQueue::new(SendLimits::new(init, max_msg_bytes)),
            mtu: 256,
            psn_base: Psn::new(0),
            next: 0,
            draining: false,
            drain_untold: false,
        }
    }

    pub(super) const fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Ready-to-receive to ready-to-send.
    pub(super) const fn start(&mut self, psn: Psn) {
        self.psn_base = psn;
        self.resume();
    }

    /// Begins messages again, after draining or after a fault.
    pub(super) const fn resume(&mut self) {
        (self.draining, self.drain_untold) = (false, false);
    }

    /// Finishes the message that was begun and begins none.
    pub(super) const fn drain(&mut self) {
        (self.draining, self.drain_untold) = (true, true);
    }

    /// Whether what was begun has left; true once.
    pub(super) fn take_drained(&mut self) -> bool {
        !self.is_within_message() && std::mem::take(&mut self.drain_untold)
    }

    fn is_within_message(&self) -> bool {
        self.queue.head().is_some_and(|head| self.next > head.first)
    }

    pub(super) const fn next_psn(&self) -> Psn {
        self.psn_base.plus((self.next & 0xff_ffff) as u32)
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    pub(super) fn post(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        QpType::Uc.check(&wr.op)?;
        self.queue.post(wr, self.mtu, Cut::Mtu)
    }

    pub(super) fn has_work(&self) -> bool {
        self.queue.len() > 0 && (!self.draining || self.is_within_message())
    }

    /// Sends as many packets as the batch has room for. An error is how the oldest message has to end, and with it the
    /// send queue; what of it has left is lost on the peer, which gets no end of it.
    pub(super) fn fill(&mut self, peer: &Peer, batch: &mut Batch<'_>, dev: &mut Device) -> Result<(), Status> {
        while self.has_work()
            && let Some(wqe) = self.queue.head()
        {
            let (offset, len) = wqe.slice_of(self.next);
            let header = header(wqe, self.next, self.next_psn(), len, peer.qpn);
            if !batch.fits(header.as_bytes().len(), len) {
                break;
            }
            let read = |dst: &mut [u8]| wqe.read(dev.mrs.of(self.queue.pd()), offset, dst);
            batch.push(&peer.route, &header, len, read).map_err(|_| Status::LocProtErr)?;
            self.next += 1;
            if self.next == wqe.end() {
                self.finish_oldest(Status::Success, dev);
            }
        }
        Ok(())
    }

    /// Completes everything: the oldest with `status`, those behind it as flushed. The next message takes the PSN after
    /// the last packet that has left.
    pub(super) fn flush(&mut self, status: Status, dev: &mut Device) {
        let mut status = status;
        while self.queue.len() > 0 {
            self.finish_oldest(status, dev);
            status = Status::WrFlushErr;
        }
        self.count_anew();
    }

    /// Forgets all work without completions.
    pub(super) fn reset(&mut self) {
        self.count_anew();
        self.resume();
    }

    fn count_anew(&mut self) {
        self.psn_base = self.next_psn();
        self.queue.reset();
        self.next = 0;
    }

    fn finish_oldest(&mut self, status: Status, dev: &mut Device) {
        let Some(wqe) = self.queue.pop() else { return };
        if status != Status::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            let completion = Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.opcode(),
                byte_len: 0,
                qpn: self.qpn,
                imm: None,
                src_qpn: None,
                placed: Placed::Untold,
            };
            dev.complete(self.cq, completion, false);
        }
        self.queue.recycle(wqe);
    }
}

/// Headers of the packet at `at`, which has so many bytes of payload.
fn header(wqe: &SendWqe, at: u64, psn: Psn, payload_bytes: usize, dest_qpn: Qpn) -> Header {
    let (start, end, imm) = (at == wqe.first, at + 1 == wqe.end(), wqe.imm());
    let (opcode, remote) = match wqe.op {
        SendOp::Write(remote) | SendOp::WriteImm(remote, _) => (Opcode::write(start, end, imm.is_some()), Some(remote)),
        _ => (Opcode::send(start, end, imm.is_some()), None),
    };
    let mut header = Header::new(&Bth {
        opcode: opcode.on_unreliable().byte(),
        solicited: end && wqe.takes_receive() && wqe.flags.contains(SendFlags::SOLICITED),
        pad: pad_field(payload_bytes),
        version: 0,
        pkey: DEFAULT_PKEY,
        dest_qpn,
        ack_request: false,
        psn,
    });
    if let (true, Some(remote)) = (start, remote) {
        header = header.with_reth(Reth { addr: remote.addr, rkey: remote.rkey, dma_len: wqe.len });
    }
    match imm {
        Some(imm) if end => header.with_imm(imm),
        _ => header,
    }
}
