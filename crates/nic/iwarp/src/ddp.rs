//! DDP segment headers (RFC 5041 section 4): where the bytes of a segment go.
//!
//! Owns the layout of the control byte, of the tagged and of the untagged header. The byte and the word that DDP
//! reserves for its upper layer are RDMAP's ([`crate::rdmap`]). Reserved bits are sent as zero and ignored on arrival.

/// Version of DDP that RFC 5041 defines.
pub const DDP_VERSION: u8 = 1;
/// Bytes of a tagged header.
pub const TAGGED_BYTES: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_BYTES: usize = 18;

const TAGGED_FLAG: u8 = 0x80;
const LAST_FLAG: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

/// What the first byte of a segment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// The segment names its place itself.
    pub is_tagged: bool,
    /// It is the last of its message.
    pub is_last: bool,
    /// Version of DDP.
    pub version: u8,
}

impl Control {
    /// Reads the byte. Each byte is one.
    pub const fn parse(byte: u8) -> Self {
        Self { is_tagged: byte & TAGGED_FLAG != 0, is_last: byte & LAST_FLAG != 0, version: byte & VERSION_MASK }
    }

    const fn new(is_tagged: bool, is_last: bool) -> Self {
        Self { is_tagged, is_last, version: DDP_VERSION }
    }

    /// The byte.
    pub const fn byte(self) -> u8 {
        let tagged = if self.is_tagged { TAGGED_FLAG } else { 0 };
        let last = if self.is_last { LAST_FLAG } else { 0 };
        tagged | last | (self.version & VERSION_MASK)
    }

    /// Bytes of the whole header.
    pub const fn header_bytes(self) -> usize {
        if self.is_tagged { TAGGED_BYTES } else { UNTAGGED_BYTES }
    }
}

/// Header of a tagged segment: its bytes go to an offset of a buffer that the receiver advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// Last segment of its message.
    pub is_last: bool,
    /// The control byte of the upper layer.
    pub ulp: u8,
    /// Steering tag of the buffer.
    pub stag: u32,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

impl Tagged {
    /// Writes the header.
    pub fn to_bytes(self) -> [u8; TAGGED_BYTES] {
        let mut bytes = [0; TAGGED_BYTES];
        bytes[0] = Control::new(true, self.is_last).byte();
        bytes[1] = self.ulp;
        bytes[2..6].copy_from_slice(&self.stag.to_be_bytes());
        bytes[6..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// Reads the header; its version and flags are judged from [`Control`].
    pub fn parse(bytes: &[u8; TAGGED_BYTES]) -> Self {
        Self { is_last: Control::parse(bytes[0]).is_last, ulp: bytes[1], stag: be32(bytes, 2), offset: be64(bytes, 6) }
    }
}

/// Header of an untagged segment: its bytes go to the next buffer of a queue of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untagged {
    /// Last segment of its message.
    pub is_last: bool,
    /// The control byte of the upper layer.
    pub ulp: u8,
    /// The reserved word of the upper layer.
    pub ulp_word: u32,
    /// Queue number.
    pub queue: u32,
    /// Message sequence number of the queue, from 1.
    pub msn: u32,
    /// Offset of the first byte in the message.
    pub offset: u32,
}

impl Untagged {
    /// Writes the header.
    pub fn to_bytes(self) -> [u8; UNTAGGED_BYTES] {
        let mut bytes = [0; UNTAGGED_BYTES];
        bytes[0] = Control::new(false, self.is_last).byte();
        bytes[1] = self.ulp;
        bytes[2..6].copy_from_slice(&self.ulp_word.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.queue.to_be_bytes());
        bytes[10..14].copy_from_slice(&self.msn.to_be_bytes());
        bytes[14..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// Reads the header; its version and flags are judged from [`Control`].
    pub fn parse(bytes: &[u8; UNTAGGED_BYTES]) -> Self {
        Self {
            is_last: Control::parse(bytes[0]).is_last,
            ulp: bytes[1],
            ulp_word: be32(bytes, 2),
            queue: be32(bytes, 6),
            msn: be32(bytes, 10),
            offset: be32(bytes, 14),
        }
    }
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Tagged.
    Tagged(Tagged),
    /// Untagged.
    Untagged(Untagged),
}

impl Header {
    /// Reads the header at the front of `bytes`; `None` if they are too few.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if Control::parse(*bytes.first()?).is_tagged {
            bytes.first_chunk().map(|b| Self::Tagged(Tagged::parse(b)))
        } else {
            bytes.first_chunk().map(|b| Self::Untagged(Untagged::parse(b)))
        }
    }

    /// The control byte of the upper layer.
    pub const fn ulp(&self) -> u8 {
        match self {
            Self::Tagged(h) => h.ulp,
            Self::Untagged(h) => h.ulp,
        }
    }

    /// Last segment of its message.
    pub const fn is_last(&self) -> bool {
        match self {
            Self::Tagged(h) => h.is_last,
            Self::Untagged(h) => h.is_last,
        }
    }

    /// Writes the header to the front of `out` and says how long it is; `out` has [`UNTAGGED_BYTES`] or more.
    pub fn write(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Tagged(h) => out[..TAGGED_BYTES].copy_from_slice(&h.to_bytes()),
            Self::Untagged(h) => out[..UNTAGGED_BYTES].copy_from_slice(&h.to_bytes()),
        }
        self.len()
    }

    /// Bytes of the header.
    #[allow(clippy::len_without_is_empty)] // A header is never empty.
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => TAGGED_BYTES,
            Self::Untagged(_) => UNTAGGED_BYTES,
        }
    }
}

/// Four bytes at `at`; zero if they are not there, which callers exclude by the lengths that they check.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).copied().map_or(0, u32::from_be_bytes)
}

/// As [`be32`], eight bytes.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).copied().map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5041 section 4.2, figure 4.
    #[test]
    fn tagged_bytes() {
        let header = Tagged { is_last: true, ulp: 0x40, stag: 0x0102_0304, offset: 0x1112_1314_1516_1718 };
        let bytes = [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Header::parse(&bytes), Some(Header::Tagged(header)));
        let more = Tagged { is_last: false, ..header };
        assert_eq!(more.to_bytes()[0], 0x81);
        assert_eq!(Header::parse(&bytes[..13]), None);
    }

    /// RFC 5041 section 4.3, figure 5.
    #[test]
    fn untagged_bytes() {
        let header = Untagged {
            is_last: false,
            ulp: 0x43,
            ulp_word: 0xa1a2_a3a4,
            queue: 2,
            msn: 0x0506_0708,
            offset: 0x090a_0b0c,
        };
        let bytes = [1, 0x43, 0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 2, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Header::parse(&bytes), Some(Header::Untagged(header)));
        assert_eq!(Untagged { is_last: true, ..header }.to_bytes()[0], 0x41);
        assert_eq!(Header::parse(&bytes[..17]), None);
        assert_eq!(Header::parse(&[]), None);
    }

    #[test]
    fn reserved_bits_are_ignored_and_the_version_is_kept_for_the_judge() {
        let control = Control::parse(0x3d);
        assert_eq!(control, Control { is_tagged: false, is_last: false, version: 1 });
        assert_eq!(Control::parse(0xc3).version, 3);
        assert_eq!((control.header_bytes(), Control::parse(0x80).header_bytes()), (18, 14));
    }
}
