//! The Terminate message (RFC 5040 section 4.8): why an end gives a stream up.
//!
//! Owns the codes of all layers (RFC 5040 figure 9, RFC 5041 section 7, RFC 5044 section 8, RFC 6581 section 6.1) and
//! the layout of the message.

use std::fmt;

use crate::ddp::{Header, TAGGED_BYTES, UNTAGGED_BYTES};
use crate::rdmap::ReadRequest;

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal $etype:literal $code:literal $text:literal,)*) => {
        /// A reason that the specifications give a number: layer, error type, error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Cause { $($(#[$doc])* $name,)* }

        impl Cause {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Layer, error type and error code.
            pub const fn code(self) -> Code {
                match self { $(Self::$name => Code { layer: $layer, etype: $etype, code: $code },)* }
            }

            /// In the words of the specification.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

causes! {
    /// RDMAP: something local broke.
    RdmapLocal = 0 0 0x00 "RDMAP: local catastrophic error",
    /// RDMAP: the steering tag of a request names nothing.
    RdmapInvalidStag = 0 1 0x00 "RDMAP: invalid STag",
    /// RDMAP: beyond the buffer.
    RdmapBounds = 0 1 0x01 "RDMAP: base or bounds violation",
    /// RDMAP: the buffer or the stream does not allow it.
    RdmapRights = 0 1 0x02 "RDMAP: access rights violation",
    /// RDMAP: the buffer belongs to other streams.
    RdmapNotAssociated = 0 1 0x03 "RDMAP: STag not associated with RDMAP stream",
    /// RDMAP: offset and length pass 2^64.
    RdmapWrap = 0 1 0x04 "RDMAP: TO wrap",
    /// RDMAP: Send with Invalidate names what may not be invalidated.
    RdmapNotInvalidatable = 0 1 0x09 "RDMAP: STag cannot be invalidated",
    /// RDMAP: another protection error.
    RdmapProtection = 0 1 0xff "RDMAP: unspecified protection error",
    /// RDMAP: other version.
    RdmapVersion = 0 2 0x05 "RDMAP: invalid RDMAP version",
    /// RDMAP: an opcode that is unknown, or that may not come here or at this time.
    RdmapOpcode = 0 2 0x06 "RDMAP: unexpected opcode",
    /// RDMAP: this stream cannot go on.
    RdmapStream = 0 2 0x07 "RDMAP: catastrophic error, localized to RDMAP stream",
    /// RDMAP: the whole end cannot go on.
    RdmapGlobal = 0 2 0x08 "RDMAP: catastrophic error, global",
    /// RDMAP: as [`Self::RdmapNotInvalidatable`], under the other error type that has it.
    RdmapNotInvalidatableOperation = 0 2 0x09 "RDMAP: STag cannot be invalidated (operation)",
    /// RDMAP: another operation error.
    RdmapOperation = 0 2 0xff "RDMAP: unspecified operation error",
    /// DDP: something local broke.
    DdpLocal = 1 0 0x00 "DDP: local catastrophic error",
    /// DDP: the steering tag of a tagged segment names nothing.
    TaggedInvalidStag = 1 1 0x00 "DDP tagged buffer: invalid STag",
    /// DDP: a tagged segment reaches beyond its buffer.
    TaggedBounds = 1 1 0x01 "DDP tagged buffer: base or bounds violation",
    /// DDP: the buffer belongs to other streams.
    TaggedNotAssociated = 1 1 0x02 "DDP tagged buffer: STag not associated with DDP stream",
    /// DDP: offset and length pass 2^64.
    TaggedWrap = 1 1 0x03 "DDP tagged buffer: TO wrap",
    /// DDP: other version, in a tagged segment.
    TaggedVersion = 1 1 0x04 "DDP tagged buffer: invalid DDP version",
    /// DDP: no such queue.
    UntaggedQueue = 1 2 0x01 "DDP untagged buffer: invalid QN",
    /// DDP: the queue has no buffer for the message.
    UntaggedNoBuffer = 1 2 0x02 "DDP untagged buffer: invalid MSN, no buffer available",
    /// DDP: not the message that follows the one before.
    UntaggedMsn = 1 2 0x03 "DDP untagged buffer: invalid MSN, MSN range is not valid",
    /// DDP: not the offset that follows the segment before.
    UntaggedOffset = 1 2 0x04 "DDP untagged buffer: invalid MO",
    /// DDP: more than the buffer takes.
    UntaggedTooLong = 1 2 0x05 "DDP untagged buffer: DDP message too long for available buffer",
    /// DDP: other version, in an untagged segment.
    UntaggedVersion = 1 2 0x06 "DDP untagged buffer: invalid DDP version",
    /// MPA: the TCP connection ended.
    TcpLost = 2 0 0x01 "MPA: TCP connection closed, terminated, or lost",
    /// MPA: the CRC does not match.
    Crc = 2 0 0x02 "MPA: received MPA CRC does not match",
    /// MPA: a marker contradicts the length field.
    MarkerMismatch = 2 0 0x03 "MPA: received MPA marker and length fields do not agree on the start of an FPDU",
    /// MPA: the request or reply of the startup is not valid.
    Startup = 2 0 0x04 "MPA: invalid MPA request frame or MPA response frame",
    /// MPA: something local broke during the startup.
    MpaLocal = 2 0 0x05 "MPA: local catastrophic error",
    /// MPA: the peer wants to have more READs under way than this end can hold.
    InsufficientIrd = 2 0 0x06 "MPA: insufficient IRD resources",
    /// MPA: none of the first messages that this end could send was chosen.
    NoMatchingRtr = 2 0 0x07 "MPA: no matching RTR option",
}

impl Cause {
    /// The cause of a code, if it has one.
    pub fn from_code(code: Code) -> Option<Self> {
        Self::ALL.iter().copied().find(|cause| cause.code() == code)
    }

    /// Which headers of the offending segment go along (RFC 5040 figure 10): none if no segment is at fault.
    const fn names_segment(self) -> bool {
        !matches!(self.code(), Code { etype: 0, .. })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Code { layer, etype, code } = self.code();
        write!(f, "{} ({layer}/{etype}/{code:#04x})", self.text())
    }
}

/// Numbers of a cause as they are on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    /// 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type of the layer.
    pub etype: u8,
    /// Error code of the type.
    pub code: u8,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Cause::from_code(*self) {
            Some(cause) => cause.fmt(f),
            None => write!(f, "unknown error ({}/{}/{:#04x})", self.layer, self.etype, self.code),
        }
    }
}

/// The segment that a Terminate message complains of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offender {
    /// Its length: DDP header and payload.
    pub ulpdu_bytes: u16,
    /// Its DDP header.
    pub header: Header,
    /// Its Read Request, if it is one.
    pub request: Option<ReadRequest>,
}

/// A Terminate message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// Why.
    pub code: Code,
    /// Because of which segment.
    pub offender: Option<Offender>,
}

/// The message ends before its flags say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a Terminate message of {0} bytes is too short for what its flags announce")]
pub struct TerminateTooShort(pub usize);

const HAS_LENGTH: u8 = 0x80;
const HAS_DDP_HEADER: u8 = 0x40;
const HAS_RDMAP_HEADER: u8 = 0x20;
const CONTROL_BYTES: usize = 4;

impl Terminate {
    /// Longest message in bytes.
    pub const BYTES_MAX: usize = CONTROL_BYTES + 2 + UNTAGGED_BYTES + ReadRequest::BYTES;

    /// The message for a cause; the offending segment goes along where the cause is about one.
    pub fn new(cause: Cause, offender: Option<Offender>) -> Self {
        Self { code: cause.code(), offender: offender.filter(|_| cause.names_segment()) }
    }

    /// Writes the message to the front of `out` and says how long it is.
    pub fn write(&self, out: &mut [u8; Self::BYTES_MAX]) -> usize {
        out[..CONTROL_BYTES].fill(0);
        out[0] = (self.code.layer << 4) | (self.code.etype & 0x0f);
        out[1] = self.code.code;
        let Some(offender) = self.offender else { return CONTROL_BYTES };
        out[2] = HAS_LENGTH | HAS_DDP_HEADER;
        let mut at = CONTROL_BYTES;
        out[at..at + 2].copy_from_slice(&offender.ulpdu_bytes.to_be_bytes());
        at += 2;
        at += offender.header.write(&mut out[at..]);
        if let Some(request) = offender.request {
            out[2] |= HAS_RDMAP_HEADER;
            out[at..at + ReadRequest::BYTES].copy_from_slice(&request.to_bytes());
            at += ReadRequest::BYTES;
        }
        at
    }

    /// Reads a message. What its flags leave out is not there; a header of which only a part is named counts as left
    /// out.
    pub fn parse(bytes: &[u8]) -> Result<Self, TerminateTooShort> {
        let short = TerminateTooShort(bytes.len());
        let (control, mut rest) = bytes.split_first_chunk::<CONTROL_BYTES>().ok_or(short)?;
        let code = Code { layer: control[0] >> 4, etype: control[0] & 0x0f, code: control[1] };
        let flags = control[2];
        let mut ulpdu_bytes = None;
        // Without a header the length field may be missing; siw and others send it with the header only.
        if flags & (HAS_LENGTH | HAS_DDP_HEADER) != 0 {
            let (length, after) = rest.split_first_chunk::<2>().ok_or(short)?;
            ulpdu_bytes = Some(u16::from_be_bytes(*length));
            rest = after;
        }
        if flags & HAS_DDP_HEADER == 0 {
            return Ok(Self { code, offender: None });
        }
        let header = Header::parse(rest).ok_or(short)?;
        let skipped = if matches!(header, Header::Tagged(_)) { TAGGED_BYTES } else { UNTAGGED_BYTES };
        let request = if flags & HAS_RDMAP_HEADER == 0 {
            None
        } else {
            rest.get(skipped..).and_then(|b| b.first_chunk()).map(ReadRequest::parse)
        };
        Ok(Self { code, offender: ulpdu_bytes.map(|ulpdu_bytes| Offender { ulpdu_bytes, header, request }) })
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::{Tagged, Untagged};
    use crate::rdmap::Opcode;

    fn written(terminate: &Terminate) -> Vec<u8> {
        let mut out = [0xee; Terminate::BYTES_MAX];
        let len = terminate.write(&mut out);
        out[..len].to_vec()
    }

    /// RFC 5040 figures 8 to 10.
    #[test]
    fn bytes_without_with_one_and_with_both_headers() {
        let local = Terminate::new(Cause::RdmapLocal, None);
        assert_eq!(written(&local), [0, 0, 0, 0]);
        assert_eq!(Terminate::parse(&written(&local)), Ok(local));

        let header = Tagged { is_last: true, ulp: Opcode::Write.control(), stag: 0x0a0b_0c0d, offset: 5 };
        let offender = Offender { ulpdu_bytes: 0x0102, header: Header::Tagged(header), request: None };
        let bounds = Terminate::new(Cause::TaggedBounds, Some(offender));
        let bytes = [0x11, 0x01, 0xc0, 0, 1, 2, 0xc1, 0x40, 10, 11, 12, 13, 0, 0, 0, 0, 0, 0, 0, 5];
        assert_eq!(written(&bounds), bytes);
        assert_eq!(Terminate::parse(&bytes), Ok(bounds));

        let header =
            Untagged { is_last: true, ulp: Opcode::ReadRequest.control(), ulp_word: 0, queue: 1, msn: 7, offset: 0 };
        let request = ReadRequest { sink_stag: 1, sink_offset: 2, len: 3, source_stag: 4, source_offset: 5 };
        let offender = Offender { ulpdu_bytes: 46, header: Header::Untagged(header), request: Some(request) };
        let rights = Terminate::new(Cause::RdmapRights, Some(offender));
        let mut bytes = vec![0x01, 0x02, 0xe0, 0, 0, 46];
        bytes.extend([0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0]);
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(written(&rights), bytes);
        assert_eq!(Terminate::parse(&bytes), Ok(rights));
        for cut in 0..24 {
            assert_eq!(Terminate::parse(&bytes[..cut]), Err(TerminateTooShort(cut)));
        }
    }

    #[test]
    fn an_error_without_a_segment_names_none() {
        let header = Tagged { is_last: true, ulp: 0x40, stag: 0, offset: 0 };
        let offender = Offender { ulpdu_bytes: 14, header: Header::Tagged(header), request: None };
        for cause in [Cause::RdmapLocal, Cause::DdpLocal, Cause::Crc, Cause::NoMatchingRtr] {
            assert_eq!(Terminate::new(cause, Some(offender)).offender, None, "{cause}");
        }
    }

    #[test]
    fn codes_are_distinct_and_found_again() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_code(cause.code()), Some(*cause));
        }
        assert_eq!(Cause::ALL.len(), 33);
        let unknown = Code { layer: 3, etype: 9, code: 0x77 };
        assert_eq!(Cause::from_code(unknown), None);
        assert_eq!(unknown.to_string(), "unknown error (3/9/0x77)");
        assert_eq!(Cause::Crc.to_string(), "MPA: received MPA CRC does not match (2/0/0x02)");
    }
}
