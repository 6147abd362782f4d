//! The sending half of a datagram QP: each work request is one packet, done when it is built.

use std::collections::VecDeque;

use rnic::SendLimits;
use verbs::{
    Completion, CqId, Payload, Placed, Psn, Qkey, QpInit, QpType, Qpn, SendFlags, SendWr, Status, VerbsError, WcOpcode,
};

use crate::batch::Batch;
use crate::device::Device;
use crate::path::Path;
use crate::qp::{Cut, SendQueue, SendWqe};
use crate::wire::{Bth, DEFAULT_PKEY, Deth, Header, Opcode, pad_field, wire_len};

/// A queue key with this bit stands for the sending QP's own (IBTA 10.2.5).
const QKEY_OF_THE_QP: u32 = 1 << 31;

/// Where a posted datagram goes. It is copied while posting, so that its address handle may go before it.
#[derive(Debug, Clone, Copy)]
struct Target {
    path: Path,
    qpn: Qpn,
    qkey: Qkey,
}

#[derive(Debug)]
pub(super) struct Sender {
    qpn: Qpn,
    cq: CqId,
    qkey: Qkey,
    queue: SendQueue,
    /// One for each entry of the queue.
    targets: VecDeque<Target>,
    psn: Psn,
    mtu_bytes: usize,
}

impl Sender {
    pub(super) fn new(qpn: Qpn, init: &QpInit, mtu_bytes: usize) -> Self {
        let limits = SendLimits::new(init, wire_len(mtu_bytes));
        Self {
            qpn,
            cq: init.send_cq,
            qkey: Qkey(0),
            queue: SendQueue::new(limits),
            targets: VecDeque::new(),
            psn: Psn::new(0),
            mtu_bytes,
        }
    }

    pub(super) const fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    pub(super) const fn start(&mut self, psn: Psn) {
        self.psn = psn;
    }

    pub(super) const fn next_psn(&self) -> Psn {
        self.psn
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    pub(super) fn post(&mut self, wr: &SendWr<'_>, dev: &Device) -> Result<(), VerbsError> {
        let unsupported = |what| VerbsError::Unsupported { device: dev.attr.name.clone(), what };
        QpType::Ud.check(&wr.op)?;
        let dest = wr.dest.ok_or_else(|| unsupported("a datagram to nowhere: set SendWr::dest"))?;
        let path = *dev.ahs.get(dest.ah.0).ok_or(VerbsError::NoSuch("address handle"))?;
        if dest.qpn.0 >= 1 << 24 {
            let (value, max) = (dest.qpn.0.into(), (1 << 24) - 1);
            return Err(VerbsError::OutOfRange { what: "destination QP number", value, min: 0, max });
        }
        let value: u64 = match wr.payload {
            Payload::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let max = self.mtu_bytes as u64;
        if value > max {
            let what = "length of a datagram, which the port's path MTU limits,";
            return Err(VerbsError::OutOfRange { what, value, min: 0, max });
        }
        let qkey = if dest.qkey.0 & QKEY_OF_THE_QP != 0 { self.qkey } else { dest.qkey };
        self.queue.post(wr, self.mtu_bytes, Cut::Mtu)?;
        self.targets.push_back(Target { path, qpn: dest.qpn, qkey });
        Ok(())
    }

    /// Sends the oldest datagrams as long as they go the way of the first and the batch has room. An error is how the
    /// oldest one that is left has to end, and with it the send queue.
    pub(super) fn fill(&mut self, batch: &mut Batch<'_>, dev: &mut Device) -> (Option<Path>, Result<(), Status>) {
        let mut way: Option<Path> = None;
        while let (Some(wqe), Some(target)) = (self.queue.head(), self.targets.front()) {
            let header = header(wqe, target, self.psn, self.qpn);
            let len = wqe.len as usize;
            let (header_bytes, joins) = (header.as_bytes().len(), way.is_none_or(|way| way.leads_like(&target.path)));
            let Device { base, seals, counters, .. } = &mut *dev;
            let read = |dst: &mut [u8]| wqe.read(base.mrs.of(self.queue.pd()), 0, dst);
            let pushed = match target.path.seal {
                None if joins && batch.fits(header_bytes, len) => batch.push(&target.path.route, &header, len, read),
                Some(key) if joins && batch.fits_sealed(header_bytes, len) => match seals.get_mut(key) {
                    Some(peer) => {
                        counters.tx_sealed += 1;
                        let by = (&mut peer.seal.keys.sealer, target.qpn, peer.seal.peer_key);
                        batch.push_sealed(by, &header, len, read)
                    }
                    None => {
                        // Its address handle is gone. It is lost, as on the way, and never leaves in the clear.
                        counters.tx_unsealed += 1;
                        self.finish_oldest(Status::Success, dev);
                        continue;
                    }
                },
                _ => break,
            };
            if pushed.is_err() {
                return (way, Err(Status::LocProtErr));
            }
            way = Some(target.path);
            self.psn = self.psn.plus(1);
            self.finish_oldest(Status::Success, dev);
        }
        (way, Ok(()))
    }

    /// Completes everything: the oldest with `status`, those behind it as flushed.
    pub(super) fn flush(&mut self, status: Status, dev: &mut Device) {
        let mut status = status;
        while self.queue.len() > 0 {
            self.finish_oldest(status, dev);
            status = Status::WrFlushErr;
        }
    }

    /// Forgets all work without completions.
    pub(super) fn reset(&mut self) {
        self.queue.reset();
        self.targets.clear();
    }

    fn finish_oldest(&mut self, status: Status, dev: &mut Device) {
        self.targets.pop_front();
        let Some(wqe) = self.queue.pop() else { return };
        if status != Status::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            let (wr_id, opcode, qpn) = (wqe.wr_id, WcOpcode::Send, self.qpn);
            dev.complete(
                self.cq,
                Completion {
                    wr_id,
                    status,
                    opcode,
                    byte_len: 0,
                    qpn,
                    imm: None,
                    src_qpn: None,
                    placed: Placed::Untold,
                },
                false,
            );
        }
        self.queue.recycle(wqe);
    }
}

fn header(wqe: &SendWqe, target: &Target, psn: Psn, src_qpn: Qpn) -> Header {
    let imm = wqe.imm();
    let header = Header::new(&Bth {
        opcode: if imm.is_some() { Opcode::DatagramImm } else { Opcode::Datagram }.byte(),
        solicited: wqe.flags.contains(SendFlags::SOLICITED),
        pad: pad_field(wqe.len as usize),
        version: 0,
        pkey: DEFAULT_PKEY,
        dest_qpn: target.qpn,
        ack_request: false,
        psn,
    })
    .with_deth(Deth { qkey: target.qkey, src_qpn });
    match imm {
        Some(imm) => header.with_imm(imm),
        None => header,
    }
}
