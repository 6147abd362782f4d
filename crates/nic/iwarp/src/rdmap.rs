//! RDMAP messages (RFC 5040 section 4, RFC 7306 sections 5 and 6): what a DDP message means.
//!
//! Owns the control byte, the opcodes with their queues, and the layout of messages whose payload is RDMAP's own: Read
//! Request, Atomic Request and Response, Immediate Data. Terminate is in [`crate::terminate`].

use crate::ddp::{be32, be64};

/// Version of RDMAP that RFC 5040 defines.
pub const RDMAP_VERSION: u8 = 1;

/// Queue of SENDs and Immediate Data (RFC 5040 section 3.3, RFC 7306 section 4).
pub const QUEUE_SEND: u32 = 0;
/// Queue of Read Requests and Atomic Requests, which share its sequence numbers.
pub const QUEUE_REQUEST: u32 = 1;
/// Queue of the Terminate message.
pub const QUEUE_TERMINATE: u32 = 2;
/// Queue of Atomic Responses.
pub const QUEUE_ATOMIC_RESPONSE: u32 = 3;

/// Opcode of an RDMAP message (RFC 5040 figure 3, RFC 7306 figure 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306).
    Immediate = 8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 11,
}

impl Opcode {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// The opcode of a number, if it has one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The queue of its messages; `None`: they are tagged.
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited => Some(QUEUE_SEND),
            Self::ReadRequest | Self::AtomicRequest => Some(QUEUE_REQUEST),
            Self::Terminate => Some(QUEUE_TERMINATE),
            Self::AtomicResponse => Some(QUEUE_ATOMIC_RESPONSE),
        }
    }

    /// The receiver's completion is a solicited event.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited)
    }

    /// RDMAP's control byte with this opcode.
    pub const fn control(self) -> u8 {
        (RDMAP_VERSION << 6) | self as u8
    }
}

/// The version in a control byte.
pub const fn version_of(control: u8) -> u8 {
    control >> 6
}

/// The number of the opcode in a control byte.
pub const fn opcode_number(control: u8) -> u8 {
    control & 0x0f
}

/// Payload of a Read Request (RFC 5040 figure 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// Steering tag of the requester's buffer; the answer names it.
    pub sink_stag: u32,
    /// Tagged offset in it.
    pub sink_offset: u64,
    /// Bytes.
    pub len: u32,
    /// Steering tag of the responder's buffer.
    pub source_stag: u32,
    /// Tagged offset in it.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const BYTES: usize = 28;

    /// Reads it.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            sink_stag: be32(bytes, 0),
            sink_offset: be64(bytes, 4),
            len: be32(bytes, 12),
            source_stag: be32(bytes, 16),
            source_offset: be64(bytes, 20),
        }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        bytes[20..].copy_from_slice(&self.source_offset.to_be_bytes());
        bytes
    }
}

/// What an Atomic Request does (RFC 7306 section 5.1). The atomics of verbs are FetchAdd with mask 0 and CmpSwap with
/// all bits of both masks set; only those are sent and executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicCode {
    /// Adds.
    FetchAdd,
    /// Swaps if the value is what it is compared with.
    CompareSwap,
    /// A number that RFC 7306 reserves.
    Reserved(u8),
}

impl AtomicCode {
    const fn from_number(number: u8) -> Self {
        match number & 0x0f {
            0 => Self::FetchAdd,
            2 => Self::CompareSwap,
            other => Self::Reserved(other),
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::FetchAdd => 0,
            Self::CompareSwap => 2,
            Self::Reserved(n) => n & 0x0f,
        }
    }
}

/// Payload of an Atomic Request (RFC 7306 figure 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// What to do.
    pub code: AtomicCode,
    /// Comes back in the answer.
    pub id: u32,
    /// Steering tag of the word.
    pub stag: u32,
    /// Tagged offset of the word.
    pub offset: u64,
    /// What to add, or the new value.
    pub add_or_swap: u64,
    /// Mask of [`Self::add_or_swap`].
    pub add_or_swap_mask: u64,
    /// What the value is compared with.
    pub compare: u64,
    /// Mask of [`Self::compare`].
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const BYTES: usize = 52;

    /// Reads it.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            code: AtomicCode::from_number(bytes[3]),
            id: be32(bytes, 4),
            stag: be32(bytes, 8),
            offset: be64(bytes, 12),
            add_or_swap: be64(bytes, 20),
            add_or_swap_mask: be64(bytes, 28),
            compare: be64(bytes, 36),
            compare_mask: be64(bytes, 44),
        }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[3] = self.code.number();
        bytes[4..8].copy_from_slice(&self.id.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.stag.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.offset.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.add_or_swap.to_be_bytes());
        bytes[28..36].copy_from_slice(&self.add_or_swap_mask.to_be_bytes());
        bytes[36..44].copy_from_slice(&self.compare.to_be_bytes());
        bytes[44..].copy_from_slice(&self.compare_mask.to_be_bytes());
        bytes
    }
}

/// Payload of an Atomic Response (RFC 7306 figure 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicResponse {
    /// [`AtomicRequest::id`] of what is answered.
    pub id: u32,
    /// The value before.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// Reads it.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self { id: be32(bytes, 0), original: be64(bytes, 4) }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.id.to_be_bytes());
        bytes[4..].copy_from_slice(&self.original.to_be_bytes());
        bytes
    }
}

/// What an immediate belongs to. RFC 7306 gives Immediate Data eight bytes whose meaning is the upper layer's. The
/// first four are the immediate of verbs; the last four say this. Zero is what other implementations send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImmediateOf {
    /// The RDMA Write before it: 0.
    Write,
    /// The Send behind it, whose receive it completes with it: 1. Only between ends that both know this.
    Send,
}

/// Payload of Immediate Data (RFC 7306 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate {
    /// The immediate of verbs, in host order.
    pub value: u32,
    /// The other four bytes as they are on the wire.
    pub kind: u32,
}

impl Immediate {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// An immediate for a message of that kind.
    pub const fn new(value: u32, of: ImmediateOf) -> Self {
        let kind = match of {
            ImmediateOf::Write => 0,
            ImmediateOf::Send => 1,
        };
        Self { value, kind }
    }

    /// Reads it.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self { value: be32(bytes, 0), kind: be32(bytes, 4) }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.value.to_be_bytes());
        bytes[4..].copy_from_slice(&self.kind.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5040 figures 3 and 4, RFC 7306 figure 3: opcode, queue, control byte.
    #[test]
    fn opcodes_and_queues() {
        let table = [
            (Opcode::Write, None, 0x40),
            (Opcode::ReadRequest, Some(1), 0x41),
            (Opcode::ReadResponse, None, 0x42),
            (Opcode::Send, Some(0), 0x43),
            (Opcode::SendInvalidate, Some(0), 0x44),
            (Opcode::SendSolicited, Some(0), 0x45),
            (Opcode::SendSolicitedInvalidate, Some(0), 0x46),
            (Opcode::Terminate, Some(2), 0x47),
            (Opcode::Immediate, Some(0), 0x48),
            (Opcode::ImmediateSolicited, Some(0), 0x49),
            (Opcode::AtomicRequest, Some(1), 0x4a),
            (Opcode::AtomicResponse, Some(3), 0x4b),
        ];
        for (opcode, queue, control) in table {
            assert_eq!((opcode.queue(), opcode.control()), (queue, control), "{opcode:?}");
            assert_eq!(Opcode::from_number(opcode_number(control)), Some(opcode));
            assert_eq!(version_of(control), RDMAP_VERSION);
        }
        assert!((12..16).all(|n| Opcode::from_number(n).is_none()));
        assert_eq!((version_of(0xff), opcode_number(0xfa)), (3, 10));
    }

    #[test]
    fn read_request_bytes() {
        let request = ReadRequest {
            sink_stag: 0x0102_0304,
            sink_offset: 0x1112_1314_1516_1718,
            len: 0x2122_2324,
            source_stag: 0x3132_3334,
            source_offset: 0x4142_4344_4546_4748,
        };
        let bytes = [
            1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34,
            0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
        ];
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(ReadRequest::parse(&bytes), request);
    }

    #[test]
    fn atomic_bytes() {
        let request = AtomicRequest {
            code: AtomicCode::CompareSwap,
            id: 0x0102_0304,
            stag: 0x0506_0708,
            offset: 9,
            add_or_swap: 10,
            add_or_swap_mask: u64::MAX,
            compare: 11,
            compare_mask: u64::MAX,
        };
        let mut bytes = [0; 52];
        bytes[3] = 2;
        bytes[4..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        (bytes[19], bytes[27], bytes[43]) = (9, 10, 11);
        bytes[28..36].fill(0xff);
        bytes[44..].fill(0xff);
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(AtomicRequest::parse(&bytes), request);
        bytes[3] = 0xf0;
        assert_eq!(AtomicRequest::parse(&bytes).code, AtomicCode::FetchAdd, "the other bits are reserved");
        bytes[3] = 1;
        assert_eq!(AtomicRequest::parse(&bytes).code, AtomicCode::Reserved(1));

        let response = AtomicResponse { id: 0x0102_0304, original: 0x1112_1314_1516_1718 };
        let bytes = [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(response.to_bytes(), bytes);
        assert_eq!(AtomicResponse::parse(&bytes), response);
    }

    #[test]
    fn immediate_bytes() {
        let of_write = Immediate::new(0x0102_0304, ImmediateOf::Write);
        assert_eq!(of_write.to_bytes(), [1, 2, 3, 4, 0, 0, 0, 0]);
        let of_send = Immediate::new(0x0102_0304, ImmediateOf::Send);
        assert_eq!(of_send.to_bytes(), [1, 2, 3, 4, 0, 0, 0, 1]);
        assert_eq!(Immediate::parse(&of_send.to_bytes()), of_send);
    }
}
