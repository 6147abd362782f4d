//! A whole packet: parsing into typed requests and responses, and the header bytes of packets to send.
//!
//! A parsed packet has the headers its opcode promises and a payload without padding. Whether it fits the state of a
//! QP is the QP's affair.

use verbs::{Psn, Qpn, Rkey};

use super::{Aeth, AtomicEth, Bth, DEFAULT_PKEY, Deth, ICRC_BYTES, Opcode, Reth};

/// Why bytes are not a packet of ours; each is a counted drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketFault {
    /// Shorter than its headers, padding and ICRC.
    #[error("packet of {0} bytes is shorter than its headers")]
    Truncated(usize),
    /// Not a multiple of four bytes, as every packet is.
    #[error("packet of {0} bytes is not a multiple of 4")]
    Misshapen(usize),
    /// Transport version other than 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// Another partition.
    #[error("partition key {0:#06x} does not match")]
    Pkey(u16),
    /// Reserved, or of a transport service that is not spoken.
    #[error("opcode {0:#04x} is neither of the connected services nor an unreliable datagram")]
    Opcode(u8),
}

/// A request on a connection of either service, as the responder sees it. `start` and `end` place the packet in its
/// message; an only packet is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Part of a SEND.
    Send {
        /// First or only.
        start: bool,
        /// Last or only.
        end: bool,
        /// Immediate data, on the last packet.
        imm: Option<u32>,
        /// Key to invalidate, on the last packet.
        invalidate: Option<Rkey>,
        /// Bytes without padding.
        payload: &'a [u8],
    },
    /// Part of a WRITE.
    Write {
        /// Place and length of the message: present exactly on its first packet.
        reth: Option<Reth>,
        /// Last or only.
        end: bool,
        /// Immediate data, on the last packet.
        imm: Option<u32>,
        /// Bytes without padding.
        payload: &'a [u8],
    },
    /// READ.
    Read(Reth),
    /// Compare and swap.
    CompareSwap(AtomicEth),
    /// Fetch and add.
    FetchAdd(AtomicEth),
    /// Of the reliable connected service, with an opcode that is reserved or not supported here.
    Unsupported(u8),
}

/// A response, as the requester sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response<'a> {
    /// Part of a READ response; the AETH is there on all but middle packets.
    Read {
        /// First or only.
        start: bool,
        /// Last or only.
        end: bool,
        /// Acknowledgement of everything before.
        aeth: Option<Aeth>,
        /// Bytes without padding.
        payload: &'a [u8],
    },
    /// Acknowledgement, positive or not.
    Acknowledge(Aeth),
    /// Answer to an atomic: the value before it.
    Atomic(Aeth, u64),
}

/// An unreliable datagram: a whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Key and sender.
    pub deth: Deth,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Bytes without padding.
    pub payload: &'a [u8],
}

/// What follows the BTH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// For the responder.
    Request(Request<'a>),
    /// For the requester.
    Response(Response<'a>),
    /// For a datagram QP.
    Datagram(Datagram<'a>),
    /// For the requester: its packets were marked on the way.
    Congestion,
}

/// A parsed packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// The rest.
    pub body: Body<'a>,
}

/// A packet whose BTH alone was looked at, enough to find its QP before time is spent on the ICRC.
#[derive(Debug, Clone, Copy)]
pub struct Unchecked<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Its opcode; `None` for one of the reliable connected service that is not supported, which the QP answers.
    pub opcode: Option<Opcode>,
    /// The bytes that the ICRC covers, BTH first.
    pub covered: &'a [u8],
    /// The ICRC.
    pub icrc: [u8; ICRC_BYTES],
}

impl<'a> Unchecked<'a> {
    /// Looks at the BTH of one UDP payload.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketFault> {
        let len = datagram.len();
        let (covered, icrc) = datagram.split_last_chunk().ok_or(PacketFault::Truncated(len))?;
        Self::of(covered, *icrc)
    }

    /// Looks at the BTH of what a sealed packet had in it: a packet from BTH to padding, whose ICRC is of no use.
    pub fn parse_opened(opened: &'a [u8]) -> Result<Self, PacketFault> {
        Self::of(opened, [0; ICRC_BYTES])
    }

    fn of(covered: &'a [u8], icrc: [u8; ICRC_BYTES]) -> Result<Self, PacketFault> {
        let len = covered.len() + ICRC_BYTES;
        let bth = Bth::parse(covered.first_chunk().ok_or(PacketFault::Truncated(len))?);
        if !len.is_multiple_of(4) {
            return Err(PacketFault::Misshapen(len));
        }
        if bth.version != 0 {
            return Err(PacketFault::Version(bth.version));
        }
        if !bth.pkey_matches() {
            return Err(PacketFault::Pkey(bth.pkey));
        }
        let opcode = match Opcode::from_byte(bth.opcode) {
            Ok(opcode) => Some(opcode),
            Err(unknown) if unknown.is_reliable() => None,
            Err(unknown) => return Err(PacketFault::Opcode(unknown.0)),
        };
        Ok(Self { bth, opcode, covered, icrc })
    }

    /// Splits extension headers, payload and padding.
    pub fn into_packet(self) -> Result<Packet<'a>, PacketFault> {
        let Some(opcode) = self.opcode else {
            let body = Body::Request(Request::Unsupported(self.bth.opcode));
            return Ok(Packet { bth: self.bth, body });
        };
        let body = parse_body(opcode, &self.bth, self.covered)
            .ok_or(PacketFault::Truncated(self.covered.len() + ICRC_BYTES))?;
        Ok(Packet { bth: self.bth, body })
    }
}

impl<'a> Packet<'a> {
    /// Parses one UDP payload without checking its ICRC.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketFault> {
        Unchecked::parse(datagram)?.into_packet()
    }
}

/// Takes headers off the front of the bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(head)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().copied().map(u32::from_be_bytes)
    }

    fn reth(&mut self) -> Option<Reth> {
        self.take().map(Reth::parse)
    }

    fn aeth(&mut self) -> Option<Aeth> {
        self.take().map(Aeth::parse)
    }

    fn deth(&mut self) -> Option<Deth> {
        self.take().map(Deth::parse)
    }
}

fn parse_body<'a>(opcode: Opcode, bth: &Bth, covered: &'a [u8]) -> Option<Body<'a>> {
    let mut r = Reader(covered.get(Bth::BYTES..)?);
    // The padding is at the end, so it can go before the headers are read.
    r.0 = r.0.get(..r.0.len().checked_sub(usize::from(bth.pad))?)?;
    let send = |start, end, imm, invalidate, payload| Request::Send { start, end, imm, invalidate, payload };
    let write = |reth, end, imm, payload| Request::Write { reth, end, imm, payload };
    let request = match opcode.request() {
        Opcode::SendFirst => send(true, false, None, None, r.0),
        Opcode::SendMiddle => send(false, false, None, None, r.0),
        Opcode::SendLast => send(false, true, None, None, r.0),
        Opcode::SendLastImm => send(false, true, Some(r.word()?), None, r.0),
        Opcode::SendOnly => send(true, true, None, None, r.0),
        Opcode::SendOnlyImm => send(true, true, Some(r.word()?), None, r.0),
        Opcode::SendLastInvalidate => send(false, true, None, Some(Rkey(r.word()?)), r.0),
        Opcode::SendOnlyInvalidate => send(true, true, None, Some(Rkey(r.word()?)), r.0),
        Opcode::WriteFirst => write(Some(r.reth()?), false, None, r.0),
        Opcode::WriteMiddle => write(None, false, None, r.0),
        Opcode::WriteLast => write(None, true, None, r.0),
        Opcode::WriteLastImm => write(None, true, Some(r.word()?), r.0),
        Opcode::WriteOnly => write(Some(r.reth()?), true, None, r.0),
        Opcode::WriteOnlyImm => {
            let reth = r.reth()?;
            write(Some(reth), true, Some(r.word()?), r.0)
        }
        Opcode::ReadRequest => Request::Read(r.reth()?),
        Opcode::CompareSwap => Request::CompareSwap(AtomicEth::parse(r.take()?)),
        Opcode::FetchAdd => Request::FetchAdd(AtomicEth::parse(r.take()?)),
        Opcode::Datagram => return Some(Body::Datagram(Datagram { deth: r.deth()?, imm: None, payload: r.0 })),
        Opcode::DatagramImm => {
            let deth = r.deth()?;
            return Some(Body::Datagram(Datagram { deth, imm: Some(r.word()?), payload: r.0 }));
        }
        Opcode::CongestionNotification => {
            r.take::<16>()?;
            return Some(Body::Congestion);
        }
        response => return Some(Body::Response(parse_response(response, r)?)),
    };
    Some(Body::Request(request))
}

fn parse_response<'a>(opcode: Opcode, mut r: Reader<'a>) -> Option<Response<'a>> {
    match opcode {
        Opcode::ReadResponseFirst | Opcode::ReadResponseLast | Opcode::ReadResponseOnly => {
            let (start, end) = (opcode != Opcode::ReadResponseLast, opcode != Opcode::ReadResponseFirst);
            Some(Response::Read { start, end, aeth: Some(r.aeth()?), payload: r.0 })
        }
        Opcode::ReadResponseMiddle => Some(Response::Read { start: false, end: false, aeth: None, payload: r.0 }),
        Opcode::Acknowledge => Some(Response::Acknowledge(r.aeth()?)),
        Opcode::AtomicAcknowledge => Some(Response::Atomic(r.aeth()?, r.take().copied().map(u64::from_be_bytes)?)),
        _ => None,
    }
}

/// BTH and extension headers of a packet to send.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    bytes: [u8; Bth::BYTES + AtomicEth::BYTES],
    len: usize,
}

impl Header {
    /// Starts with the BTH. Extension headers follow in the order of the calls, at most 28 bytes of them, which is what
    /// the longest packet has; more is a mistake of the caller and panics.
    pub fn new(bth: &Bth) -> Self {
        let mut bytes = [0; Bth::BYTES + AtomicEth::BYTES];
        bytes[..Bth::BYTES].copy_from_slice(&bth.to_bytes());
        Self { bytes, len: Bth::BYTES }
    }

    /// All of a congestion notification to a QP: BECN is set, the PSN is 0, and 16 bytes are reserved (annex A17.9.3).
    pub fn congestion_notification(dest_qpn: Qpn) -> Self {
        const BECN: u8 = 0x40;
        let bth = Bth {
            opcode: Opcode::CongestionNotification.byte(),
            solicited: false,
            pad: 0,
            version: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn,
            ack_request: false,
            psn: Psn::new(0),
        };
        let mut header = Self::new(&bth).with(&[0; 16]);
        header.bytes[4] |= BECN;
        header
    }

    fn with(mut self, extension: &[u8]) -> Self {
        self.bytes[self.len..self.len + extension.len()].copy_from_slice(extension);
        self.len += extension.len();
        self
    }

    /// Appends a RETH.
    #[must_use]
    pub fn with_reth(self, reth: Reth) -> Self {
        self.with(&reth.to_bytes())
    }

    /// Appends an AtomicETH.
    #[must_use]
    pub fn with_atomic(self, eth: AtomicEth) -> Self {
        self.with(&eth.to_bytes())
    }

    /// Appends an AETH.
    #[must_use]
    pub fn with_aeth(self, aeth: Aeth) -> Self {
        self.with(&aeth.to_bytes())
    }

    /// Appends a DETH.
    #[must_use]
    pub fn with_deth(self, deth: Deth) -> Self {
        self.with(&deth.to_bytes())
    }

    /// Appends an AtomicAckETH.
    #[must_use]
    pub fn with_original(self, value: u64) -> Self {
        self.with(&value.to_be_bytes())
    }

    /// Appends immediate data.
    #[must_use]
    pub fn with_imm(self, imm: u32) -> Self {
        self.with(&imm.to_be_bytes())
    }

    /// The header's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Whether a packet of a message with so many bytes of payload is as long as its place demands: all except the last are
/// as long as the path MTU, a last one is not empty, an only one may be (IBTA 9.7.4.1.6).
pub const fn has_right_length(start: bool, end: bool, payload_len: usize, mtu: usize) -> bool {
    match (start, end) {
        (_, false) => payload_len == mtu,
        (false, true) => 1 <= payload_len && payload_len <= mtu,
        (true, true) => payload_len <= mtu,
    }
}

/// Padding that brings a payload to a multiple of four bytes.
pub const fn pad_bytes(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// The same for the BTH's field.
pub const fn pad_field(payload_len: usize) -> u8 {
    [0, 3, 2, 1][payload_len & 3]
}

#[cfg(test)]
mod tests;
