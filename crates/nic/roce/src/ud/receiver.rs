//! The receiving half of a datagram QP: a datagram fills one receive behind 40 bytes of header, or is counted and
//! dropped.
//!
//! The sender gets no answer (IBTA 9.8.3), and a datagram that is dropped leaves the receive where it is.

use rnic::KeyFault;
use verbs::{GRH_BYTES, Grh, Placed, Qkey, QpInit, QpState, Qpn, RecvWr, Status, VerbsError, WcOpcode};

use super::Arrival;
use crate::device::Device;
use crate::receives::{Fatal, Received, Receives};
use crate::wire::{Bth, Datagram, wire_len};

/// Bytes of a UDP header, which the IP header's length covers.
const UDP_BYTES: usize = 8;

#[derive(Debug)]
pub(super) struct Receiver {
    receives: Receives,
    qkey: Qkey,
    mtu_bytes: usize,
}

impl Receiver {
    pub(super) fn new(qpn: Qpn, init: &QpInit, mtu_bytes: usize) -> Self {
        Self { receives: Receives::new(qpn, init), qkey: Qkey(0), mtu_bytes }
    }

    pub(super) const fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    /// Posts one receive to the QP's own queue. In the error state it is flushed.
    pub(super) fn post(&mut self, wr: &RecvWr<'_>, state: QpState, dev: &mut Device) -> Result<(), VerbsError> {
        self.receives.post(wr, state, dev)?;
        if state == QpState::Err {
            self.flush(dev);
        }
        Ok(())
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
        match self.receives.next_capacity_bytes(dev) {
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
        let Some(wqe) = self.receives.take(dev) else { return Ok(()) };
        let landed = dev
            .mrs
            .of(self.receives.pd)
            .check_scatter(&wqe.sges)
            .and_then(|()| dev.mrs.of(self.receives.pd).scatter(&wqe.sges, 0, &grh))
            .and_then(|()| dev.mrs.of(self.receives.pd).scatter(&wqe.sges, GRH_BYTES as u64, datagram.payload));
        let status = match landed {
            Ok(()) => Status::Success,
            Err(_) => Status::LocProtErr,
        };
        dev.base.counters.served_datagram += u64::from(landed.is_ok());
        let received = Received {
            opcode: WcOpcode::Recv,
            byte_len: needed,
            imm: datagram.imm,
            src_qpn: Some(datagram.deth.src_qpn),
            placed: Placed::Untold,
            solicited: bth.solicited,
        };
        self.receives.complete(wqe, status, received, dev);
        landed.map_err(|_: KeyFault| Fatal)
    }

    /// Into error: all posted receives complete as flushed. Those of an SRQ stay there.
    pub(super) fn flush(&mut self, dev: &mut Device) {
        while let Some(wqe) = self.receives.take_own() {
            self.receives.complete(wqe, Status::WrFlushErr, Received::nothing(Placed::Untold), dev);
        }
    }

    /// Forgets all receives without completions.
    pub(super) fn reset(&mut self) {
        self.receives.clear();
    }
}

/// The 40 bytes in front of the payload. A UDP socket does not show the IP header, so it is made from what is known.
fn header_area(arrival: Arrival) -> Option<[u8; GRH_BYTES]> {
    let source = arrival.from.ip().to_canonical();
    let destination = arrival.to.ip().to_canonical();
    let payload_len = u16::try_from(arrival.udp_payload_bytes + UDP_BYTES).ok()?;
    Grh { source, destination, payload_len }.to_bytes()
}
