//! The header of a frame.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FRAME_VERSION;
use super::error::FrameError;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = size_of::<WireHeader>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHeader {
    version: u8,
    flags: u8,
    records: U16,
    incarnation: U32,
    sequence: U64,
    credits: U64,
}

/// What every frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Records that follow.
    pub(crate) records: u16,
    /// Incarnation of the sender's end of the lane.
    pub(crate) incarnation: u32,
    /// Counts the frames of the incarnation from 1.
    pub(crate) sequence: u64,
    /// SRQ entries given to the receiver since the incarnation began, beyond those of the offer.
    pub(crate) credits: u64,
}

impl Header {
    /// Takes it off the front of a frame.
    pub(super) fn read(frame: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let (h, rest) = WireHeader::ref_from_prefix(frame).map_err(|_| FrameError::Truncated("header"))?;
        if h.version != FRAME_VERSION {
            return Err(FrameError::Version(h.version));
        }
        if h.flags != 0 {
            return Err(FrameError::Reserved("header"));
        }
        let header = Self {
            records: h.records.get(),
            incarnation: h.incarnation.get(),
            sequence: h.sequence.get(),
            credits: h.credits.get(),
        };
        Ok((header, rest))
    }

    /// Fills in the front of a frame.
    pub(super) fn write(&self, frame: &mut [u8]) {
        let header = WireHeader {
            version: FRAME_VERSION,
            flags: 0,
            records: self.records.into(),
            incarnation: self.incarnation.into(),
            sequence: self.sequence.into(),
            credits: self.credits.into(),
        };
        frame[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    }
}
