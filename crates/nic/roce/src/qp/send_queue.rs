//! The send queue: work requests in order, each with its place in the sequence of request packets.
//!
//! Packets are counted from the start of the connection in 64 bits; the requester turns a count into a PSN. Bytes are
//! counted likewise, so that what is in flight is a subtraction.

use std::collections::VecDeque;
use std::ops::Range;

use rnic::{KeyFault, MrTable};
use verbs::{Payload, SendFlags, SendOp, SendWr, Sge, VerbsError, WcOpcode};

use crate::limits::PACKET_CHARGE_BYTES;
use crate::wire::wire_len;

/// Bytes of a send work request, owned.
#[derive(Debug)]
pub(crate) enum Data {
    Sges(Vec<Sge>),
    Inline(Vec<u8>),
}

/// A posted send work request.
#[derive(Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) data: Data,
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
        matches!(self.op, SendOp::Read(_) | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Whether it takes a receive of the peer.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendImm(_) | SendOp::WriteImm(..))
    }

    pub(crate) const fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::Write,
            SendOp::Read(_) => WcOpcode::Read,
            SendOp::CmpSwap { .. } => WcOpcode::CmpSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            _ => WcOpcode::Send,
        }
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
    pub(crate) fn read(&self, mrs: &MrTable, offset: u32, dst: &mut [u8]) -> Result<(), KeyFault> {
        match &self.data {
            Data::Sges(sges) => mrs.gather(sges, offset.into(), dst),
            Data::Inline(bytes) => {
                let source = bytes.get(offset as usize..).and_then(|b| b.get(..dst.len())).ok_or(KeyFault::Bounds)?;
                dst.copy_from_slice(source);
                Ok(())
            }
        }
    }

    /// Checks the landing place of an answer.
    pub(crate) fn check_writable(&self, mrs: &MrTable) -> Result<(), KeyFault> {
        match &self.data {
            Data::Sges(sges) => mrs.check_scatter(sges),
            Data::Inline(_) => Err(KeyFault::Rights),
        }
    }

    /// Copies bytes of an answer in.
    pub(crate) fn write(&self, mrs: &MrTable, offset: u32, src: &[u8]) -> Result<(), KeyFault> {
        match &self.data {
            Data::Sges(sges) => mrs.scatter(sges, offset.into(), src),
            Data::Inline(_) => Err(KeyFault::Rights),
        }
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

/// What a QP's sends may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline_bytes: u32,
    pub(crate) max_msg_bytes: u32,
    pub(crate) sig_all: bool,
}

/// Posted and not completed sends, oldest first.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: VecDeque<SendWqe>,
    limits: SendLimits,
    spare_sges: Vec<Vec<Sge>>,
    spare_inline: Vec<Vec<u8>>,
    next_packet: u64,
    next_charge: u64,
}

impl SendQueue {
    pub(crate) fn new(limits: SendLimits) -> Self {
        Self {
            wqes: VecDeque::new(),
            limits,
            spare_sges: Vec::new(),
            spare_inline: Vec::new(),
            next_packet: 0,
            next_charge: 0,
        }
    }

    /// Checks a work request without posting it, and gives its length.
    fn check(&self, wr: &SendWr<'_>) -> Result<u32, VerbsError> {
        let too_many = |what, value: usize, max: u32| VerbsError::OutOfRange {
            what,
            value: value as u64,
            min: 0,
            max: max.into(),
        };
        if self.wqes.len() >= self.limits.max_wr as usize {
            return Err(VerbsError::Full { what: "the send queue", limit: self.limits.max_wr.into() });
        }
        let wants_data = matches!(wr.op, SendOp::Read(_) | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. });
        let len: u64 = match wr.payload {
            Payload::Sges(sges) if sges.len() > self.limits.max_sge as usize => {
                return Err(too_many("gather entries of a send", sges.len(), self.limits.max_sge));
            }
            Payload::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Payload::Inline(bytes) if wants_data => {
                return Err(too_many("inline bytes of a request for data", bytes.len(), 0));
            }
            Payload::Inline(bytes) if bytes.len() > self.limits.max_inline_bytes as usize => {
                return Err(too_many("inline bytes of a send", bytes.len(), self.limits.max_inline_bytes));
            }
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let (min, max) = match wr.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => (8, 8),
            _ => (0, u64::from(self.limits.max_msg_bytes)),
        };
        let allowed = u32::try_from(len).ok().filter(|_| (min..=max).contains(&len));
        allowed.ok_or(VerbsError::OutOfRange { what: "bytes of a message", value: len, min, max })
    }

    /// Appends a work request.
    pub(crate) fn post(&mut self, wr: &SendWr<'_>, mtu: usize, cut: Cut) -> Result<(), VerbsError> {
        let len = self.check(wr)?;
        let data = match wr.payload {
            Payload::Sges(sges) => {
                let mut list = self.spare_sges.pop().unwrap_or_default();
                list.extend_from_slice(sges);
                Data::Sges(list)
            }
            Payload::Inline(bytes) => {
                let mut copy = self.spare_inline.pop().unwrap_or_default();
                copy.extend_from_slice(bytes);
                Data::Inline(copy)
            }
        };
        let mut flags = wr.flags;
        flags.set(SendFlags::SIGNALED, self.limits.sig_all || flags.contains(SendFlags::SIGNALED));
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

    /// The place of the request that a packet belongs to.
    pub(crate) fn index_of(&self, packet: u64) -> usize {
        self.wqes.partition_point(|wqe| wqe.end() <= packet)
    }

    /// Window charge of packets of requests that are in the queue.
    pub(crate) fn charge(&self, packets: &Range<u64>) -> u64 {
        let before = |packet| {
            let wqe = self.wqes.get(self.index_of(packet)).or(self.wqes.back());
            wqe.map_or(0, |wqe| wqe.charge_before(packet.max(wqe.first)))
        };
        before(packets.end).saturating_sub(before(packets.start))
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
        let limit = self.limits.max_wr as usize;
        match wqe.data {
            Data::Sges(mut list) if self.spare_sges.len() < limit => {
                list.clear();
                self.spare_sges.push(list);
            }
            Data::Inline(mut bytes) if self.spare_inline.len() < limit => {
                bytes.clear();
                self.spare_inline.push(bytes);
            }
            _ => {}
        }
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

    fn check(queue: &SendQueue, op: SendOp, payload: Payload<'_>) -> Result<u32, VerbsError> {
        queue.check(&SendWr { wr_id: 1, op, payload, flags: SendFlags::empty(), dest: None })
    }

    fn gather(queue: &SendQueue, op: SendOp, lens: &[u32]) -> Result<u32, VerbsError> {
        let sges: Vec<Sge> = lens.iter().map(|len| Sge { addr: 0, len: *len, lkey: verbs::Lkey(1) }).collect();
        check(queue, op, Payload::Sges(&sges))
    }

    #[test]
    fn each_limit_is_the_last_that_is_allowed() {
        let limits = SendLimits { max_wr: 2, max_sge: 2, max_inline_bytes: 4, max_msg_bytes: 100, sig_all: false };
        let mut queue = SendQueue::new(limits);
        let send = |queue: &SendQueue, payload| check(queue, SendOp::Send, payload);
        assert_eq!(gather(&queue, SendOp::Send, &[60, 40]), Ok(100));
        assert_eq!(send(&queue, Payload::Inline(&[1; 4])), Ok(4));
        let refused = |what, value, min, max| Err(VerbsError::OutOfRange { what, value, min, max });
        assert_eq!(gather(&queue, SendOp::Send, &[1; 3]), refused("gather entries of a send", 3, 0, 2));
        assert_eq!(send(&queue, Payload::Inline(&[1; 5])), refused("inline bytes of a send", 5, 0, 4));
        assert_eq!(gather(&queue, SendOp::Send, &[60, 41]), refused("bytes of a message", 101, 0, 100));
        let from = RemoteAddr { addr: 0, rkey: Rkey(0) };
        let inline = refused("inline bytes of a request for data", 1, 0, 0);
        assert_eq!(check(&queue, SendOp::Read(from), Payload::Inline(&[1])), inline);
        let add = SendOp::FetchAdd { remote: from, add: 1 };
        assert_eq!(gather(&queue, add, &[8]), Ok(8));
        assert_eq!(gather(&queue, add, &[9]), refused("bytes of a message", 9, 8, 8));
        for _ in 0..2 {
            let wr = SendWr {
                wr_id: 1,
                op: SendOp::Send,
                payload: Payload::Sges(&[]),
                flags: SendFlags::empty(),
                dest: None,
            };
            queue.post(&wr, 256, Cut::Mtu).expect("room");
        }
        assert_eq!(send(&queue, Payload::Sges(&[])), Err(VerbsError::Full { what: "the send queue", limit: 2 }));
    }
}
