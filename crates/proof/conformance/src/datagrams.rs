//! What a pair of datagram queue pairs has beyond a connected one: destinations, header areas, further queue pairs.

use verbs::*;

use crate::pair::make_qp;
use crate::{Failure, Options, Outcome, Pair, Rig, Side};

/// The key of the suite's datagram QPs.
const QKEY: Qkey = Qkey(0x0bad_cafe);

impl Options {
    /// For datagrams.
    pub fn datagrams() -> Self {
        Self { qp_type: QpType::Ud, qkey: QKEY, ..Self::default() }
    }
}

impl<'r> Pair<'r> {
    /// Two datagram QPs in RTS.
    pub fn datagrams(rig: &'r mut dyn Rig) -> Result<Self, Failure> {
        Self::connect(rig, Options::datagrams())
    }

    /// How the other side reaches this one.
    pub fn address_of(&mut self, side: Side) -> AddressVector {
        let device = self.device(side).device();
        AddressVector { udp_port: device.udp_port, ..AddressVector::new(device.gid) }
    }

    /// A new address handle on `side` that leads to `to`.
    pub fn address_handle(&mut self, side: Side, to: Side) -> Result<AhId, Failure> {
        let av = self.address_of(to);
        Ok(self.device(side).create_ah(&av)?)
    }

    /// The destination of what `side` sends: the other end's QP; `None` for connected QPs.
    pub fn dest(&self, side: Side) -> Option<UdDest> {
        let ah = self.end(side).ah?;
        Some(UdDest { ah, qpn: self.end(side.other()).qpn, qkey: self.options.qkey })
    }

    /// Posts one signalled datagram from a given QP to a given destination.
    pub fn send_to(&mut self, side: Side, qpn: Qpn, wr_id: u64, bytes: &[u8], dest: Option<UdDest>) -> Outcome {
        let (op, payload, flags) = (SendOp::Send, Payload::Inline(bytes), SendFlags::SIGNALED);
        self.device(side).post_send(qpn, &[SendWr { wr_id, op, payload, flags, dest }])?;
        Ok(())
    }

    /// Bytes in front of the payload of a message that lands in a receive.
    pub fn header_bytes(&self) -> usize {
        if self.options.qp_type == QpType::Ud { GRH_BYTES } else { 0 }
    }

    /// Posts a receive for a message of `len` bytes, with its header area, at a place of the side's region.
    pub fn recv_message(&mut self, side: Side, wr_id: u64, at: u64, len: usize) -> Outcome {
        self.recv(side, wr_id, &[self.sge(side, at, self.header_bytes() + len)])
    }

    /// Payload bytes of a message that landed at a place of the side's region.
    pub fn message(&self, side: Side, at: u64, len: usize) -> Vec<u8> {
        self.bytes(side, at + self.header_bytes() as u64, len)
    }

    /// The header area in front of a datagram that landed at a place of the side's region.
    pub fn header(&self, side: Side, at: u64) -> Option<Grh> {
        Grh::parse(self.bytes(side, at, GRH_BYTES).first_chunk()?)
    }

    /// Another datagram QP of a side, on the same CQ and SRQ, in RTS.
    pub fn another_qp(&mut self, side: Side) -> Result<Qpn, Failure> {
        let o = self.options.clone();
        let end = self.end(side).clone();
        let qpn = make_qp(self.device(side), &o, (end.pd, end.cq), end.srq)?;
        for to in [self.init(), self.rtr(side), self.rts(side)] {
            self.device(side).modify_qp(qpn, &to)?;
        }
        Ok(qpn)
    }
}
