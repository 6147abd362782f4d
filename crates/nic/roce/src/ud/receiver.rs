//! The receiving half of a datagram QP: a datagram fills one receive behind 40 bytes of header, or is counted and
//! dropped.
//!
//! The sender gets no answer (IBTA 9.8.3), and a datagram that is dropped leaves the receive where it is.

use rnic::{KeyFault, ReceiveQueue, RecvWqe};
use verbs::{Completion, CqId, GRH_BYTES, Grh, Placed, Qkey, QpInit, Qpn, RecvWr, SrqId, Status, VerbsError, WcOpcode};

use super::{Arrival, Fatal};
use crate::device::Device;
use crate::wire::{Bth, Datagram, wire_len};

/// Bytes of a UDP header, which the IP header's length covers.
const UDP_BYTES: usize = 8;

#[derive(Debug)]
pub(super) struct Receiver {
    qpn: Qpn,
    cq: CqId,
    srq: Option<SrqId>,
    queue: ReceiveQueue,
    qkey: Qkey,
    mtu_bytes: usize,
}

impl Receiver {
    pub(super) fn new(qpn: Qpn, init: &QpInit, mtu_bytes: usize) -> Self {
        let max_wr = if init.srq.is_some() { 0 } else { init.max_recv_wr };
        Self {
            qpn,
            cq: init.recv_cq,
            srq: init.srq,
            queue: ReceiveQueue::new(max_wr, init.max_recv_sge),
            qkey: Qkey(0),
            mtu_bytes,
        }
    }

    pub(super) const fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    pub(super) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        match self.srq {
            Some(_) => Err(VerbsError::Busy("the receive queue is an SRQ, post there: it")),
            None => self.queue.post(wr),
        }
    }

    pub(super) fn handle_datagram(
        &mut self,
        bth: &Bth,
        datagram: &Datagram<'_>,
        arrival: Arrival,
        dev: &mut Device,
    ) -> Result<(), Fatal> {
        let counters = &mut dev.counters;
        if datagram.deth.qkey != self.qkey {
            counters.drop_wrong_qkey += 1;
            return Ok(());
        }
        if datagram.payload.len() > self.mtu_bytes {
            counters.drop_datagram_too_long += 1;
            return Ok(());
        }
        let Some(grh) = header_area(arrival) else {
            counters.drop_wrong_source += 1;
            return Ok(());
        };
        let needed = wire_len(GRH_BYTES + datagram.payload.len());
        match self.next_capacity_bytes(dev) {
            None => {
                dev.counters.drop_no_receive += 1;
                return Ok(());
            }
            Some(capacity) if capacity < u64::from(needed) => {
                dev.counters.drop_receive_too_short += 1;
                return Ok(());
            }
            Some(_) => {}
        }
        let Some(wqe) = self.take(dev) else { return Ok(()) };
        let landed = dev
            .mrs
            .check_scatter(&wqe.sges)
            .and_then(|()| dev.mrs.scatter(&wqe.sges, 0, &grh))
            .and_then(|()| dev.mrs.scatter(&wqe.sges, GRH_BYTES as u64, datagram.payload));
        let status = match landed {
            Ok(()) => Status::Success,
            Err(_) => Status::LocProtErr,
        };
        dev.base.counters.served_datagram += u64::from(landed.is_ok());
        let received = Received { byte_len: needed, imm: datagram.imm, src_qpn: Some(datagram.deth.src_qpn) };
        self.complete(wqe, status, received, bth.solicited, dev);
        landed.map_err(|_: KeyFault| Fatal)
    }

    fn next_capacity_bytes(&self, dev: &Device) -> Option<u64> {
        match self.srq {
            Some(srq) => dev.srqs.get(srq.0)?.next_capacity_bytes(),
            None => self.queue.next_capacity_bytes(),
        }
    }

    fn take(&mut self, dev: &mut Device) -> Option<RecvWqe> {
        match self.srq {
            Some(srq) => dev.take_shared(srq),
            None => self.queue.take(),
        }
    }

    fn complete(&mut self, wqe: RecvWqe, status: Status, received: Received, solicited: bool, dev: &mut Device) {
        let Received { byte_len, imm, src_qpn } = received;
        let (wr_id, opcode, qpn) = (wqe.wr_id, WcOpcode::Recv, self.qpn);
        dev.complete(
            self.cq,
            Completion { wr_id, status, opcode, byte_len, qpn, imm, src_qpn, placed: Placed::Untold },
            solicited,
        );
        match self.srq.and_then(|srq| dev.srqs.get_mut(srq.0)) {
            Some(srq) => srq.recycle(wqe),
            None => self.queue.recycle(wqe),
        }
    }

    /// Into error: all posted receives complete as flushed. Those of an SRQ stay there.
    pub(super) fn flush(&mut self, dev: &mut Device) {
        while let Some(wqe) = self.queue.take() {
            self.complete(wqe, Status::WrFlushErr, Received::default(), false, dev);
        }
    }

    /// Forgets all receives without completions.
    pub(super) fn reset(&mut self) {
        self.queue.clear();
    }
}

/// What a completion reports of a datagram.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    byte_len: u32,
    imm: Option<u32>,
    src_qpn: Option<Qpn>,
}

/// The 40 bytes in front of the payload. A UDP socket does not show the IP header, so it is made from what is known.
fn header_area(arrival: Arrival) -> Option<[u8; GRH_BYTES]> {
    let source = arrival.from.ip().to_canonical();
    let destination = arrival.to.ip().to_canonical();
    let payload_len = u16::try_from(arrival.udp_payload_bytes + UDP_BYTES).ok()?;
    Grh { source, destination, payload_len }.to_bytes()
}
