//! The send queue: work requests in order, each with its place in the sequence of request packets.
//!
//! Packets are counted from the start of the connection in 64 bits; the requester turns a count into a PSN. Bytes are
//! counted likewise, so that what is in flight is a subtraction.

use std::collections::VecDeque;

use rnic::{Domain, KeyFault, PostedData, SendLimits, SpareData, send_opcode, wants_data};
use verbs::{PdId, SendFlags, SendOp, SendWr, VerbsError, WcOpcode};

use crate::limits::PACKET_CHARGE_BYTES;
use crate::wire::wire_len;

/// A posted send work request.
#[derive(Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    data: PostedData,
    pub(crate) len: u32,
    /// Its first request packet, or the first packet of its answer (READ), counted from the first of the QP.
    pub(crate) first: u64,
    /// How many, at least one.
    pub(crate) packets: u64,
    /// Payload bytes of each packet except the last: the path MTU, or less for a WRITE that is cut.
    segment: u32,
    /// Each packet is a WRITE of its own (see [`Cut::Even`]).
    pub(crate) is_cut: bool,
    /// Window charge of everything before it.
    charge: u64,
}

impl SendWqe {
    /// The packet after its last.
    pub(crate) const fn end(&self) -> u64 {
        self.first + self.packets
    }

    /// Whether the responder answers it with data, and not by an ACK alone.
    pub(crate) const fn wants_data(&self) -> bool {
        wants_data(&self.op)
    }

    /// Whether it takes a receive of the peer.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendImm(_) | SendOp::WriteImm(..))
    }

    pub(crate) const fn opcode(&self) -> WcOpcode {
        send_opcode(&self.op)
    }

    pub(crate) const fn imm(&self) -> Option<u32> {
        match self.op {
            SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) => Some(imm),
            _ => None,
        }
    }

    /// Payload bytes of a packet, counted from the QP's first, and their offset in the message.
    pub(crate) fn slice_of(&self, packet: u64) -> (u32, usize) {
        let offset = (packet - self.first) * u64::from(self.segment);
        let offset = u32::try_from(offset).unwrap_or(u32::MAX).min(self.len);
        (offset, (self.len - offset).min(self.segment) as usize)
    }

    /// Window charge of everything before a packet of this request (or right after its last).
    pub(crate) fn charge_before(&self, packet: u64) -> u64 {
        let n = packet - self.first;
        self.charge + n * PACKET_CHARGE_BYTES + (n * u64::from(self.segment)).min(self.len.into())
    }

    /// Copies payload bytes out.
    pub(crate) fn read(&self, mrs: Domain<'_>, offset: u32, dst: &mut [u8]) -> Result<(), KeyFault> {
        self.data.read(mrs, offset, dst)
    }

    /// Checks the landing place of an answer.
    pub(crate) fn check_writable(&self, mrs: Domain<'_>) -> Result<(), KeyFault> {
        self.data.check_writable(mrs)
    }

    /// Copies bytes of an answer in.
    pub(crate) fn write(&self, mrs: Domain<'_>, offset: u32, src: &[u8]) -> Result<(), KeyFault> {
        self.data.write(mrs, offset, src)
    }
}

/// How messages become packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// First, Middle, Last, of one path MTU each (IBTA 9.7.2).
    Mtu,
    /// WRITEs without immediate become as many WRITE Only packets of equal length as they need, as if they had been
    /// posted one by one.
    ///
    /// A First packet is longer than a Middle one by its RETH, so they cannot share a GSO batch; packets of equal
    /// length together cost the kernel one traversal. On a wire that is a socket this is worth more than the 16 bytes
    /// for each packet. A WRITE with immediate gives the receiver its length, so it must stay one message.
    Even,
}

impl Cut {
    /// Payload bytes of each packet except the last, and the number of packets.
    fn apply(self, op: &SendOp, len: u32, mtu: u32) -> (u32, u64) {
        if len <= mtu || self == Self::Mtu || !matches!(op, SendOp::Write(_)) {
            return (mtu, len.div_ceil(mtu).max(1).into());
        }
        // Padding would make the last packet of a batch longer than the others.
        let segment = len.div_ceil(len.div_ceil(mtu)).next_multiple_of(4).min(mtu);
        (segment, len.div_ceil(segment).into())
    }
}

/// Posted and not completed sends, oldest first.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: VecDeque<SendWqe>,
    limits: SendLimits,
    spare: SpareData,
    next_packet: u64,
    next_charge: u64,
}

impl SendQueue {
    /// Whose memory its sends are made of.
    pub(crate) const fn pd(&self) -> PdId {
        self.limits.pd
    }

    pub(crate) fn new(limits: SendLimits) -> Self {
        Self { wqes: VecDeque::new(), limits, spare: SpareData::default(), next_packet: 0, next_charge: 0 }
    }

    /// Appends a work request.
    pub(crate) fn post(&mut self, wr: &SendWr<'_>, mtu: usize, cut: Cut) -> Result<(), VerbsError> {
        let len = self.limits.check(wr, self.wqes.len())?;
        let (flags, data) = (self.limits.flags(wr), self.spare.own(&wr.payload));
        let (segment, packets) = cut.apply(&wr.op, len, wire_len(mtu));
        let is_cut = cut == Cut::Even && packets > 1 && matches!(wr.op, SendOp::Write(_));
        let (first, charge) = (self.next_packet, self.next_charge);
        self.next_packet += packets;
        self.next_charge += packets * PACKET_CHARGE_BYTES + u64::from(len);
        let (wr_id, op) = (wr.wr_id, wr.op);
        self.wqes.push_back(SendWqe { wr_id, op, flags, data, len, first, packets, segment, is_cut, charge });
        Ok(())
    }

    /// Work requests that it may hold.
    pub(crate) const fn max_wr(&self) -> u32 {
        self.limits.max_wr
    }

    /// As [`Self::len`]; the depth of a queue fits.
    pub(crate) fn outstanding(&self) -> u32 {
        u32::try_from(self.wqes.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn len(&self) -> usize {
        self.wqes.len()
    }

    pub(crate) fn at(&self, index: usize) -> Option<&SendWqe> {
        self.wqes.get(index)
    }

    pub(crate) fn head(&self) -> Option<&SendWqe> {
        self.wqes.front()
    }

    /// Takes the oldest. Its memory goes back with [`Self::recycle`].
    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        self.wqes.pop_front()
    }

    /// Keeps the lists of a completed request for later ones.
    pub(crate) fn recycle(&mut self, wqe: SendWqe) {
        self.spare.put_back(wqe.data, self.limits.max_wr);
    }

    /// Forgets everything and starts counting at zero again.
    pub(crate) fn reset(&mut self) {
        while let Some(wqe) = self.pop() {
            self.recycle(wqe);
        }
        (self.next_packet, self.next_charge) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{RemoteAddr, Rkey};

    #[test]
    fn even_packets_are_equal_but_for_a_shorter_last_one() {
        let to = RemoteAddr { addr: 0, rkey: Rkey(0) };
        for mtu in [256, 1024, 4096] {
            for len in (0..70_000).step_by(4 * 13 + 1).chain([4092, 4096, 8188, 8192, 16_384, 65_536, 262_144]) {
                let (segment, packets) = Cut::Even.apply(&SendOp::Write(to), len, mtu);
                assert!(segment <= mtu && packets == u64::from(len).div_ceil(mtu.into()).max(1), "{len} of {mtu}");
                let last = u64::from(len) - (packets - 1) * u64::from(segment);
                assert!(last <= segment.into() && (packets == 1 || last > 0 && segment % 4 == 0), "{len} of {mtu}");
            }
        }
        assert_eq!(Cut::Even.apply(&SendOp::WriteImm(to, 1), 10_000, 4096), (4096, 3), "its length is told");
        assert_eq!(Cut::Even.apply(&SendOp::Send, 10_000, 4096), (4096, 3), "only a WRITE can be several");
    }
}
