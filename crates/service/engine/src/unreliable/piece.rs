//! The header in front of each piece of a message on UC: docs/inside/wire.md, section "Messages on UC".
//!
//! Owns its bytes, and what can be said of a header alone. All integers are big-endian; parsing never panics.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub(crate) const PIECE_HEADER_BYTES: usize = size_of::<WirePiece>();
const VERSION: u8 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WirePiece {
    version: u8,
    zero: u8,
    writes: U16,
    route: U32,
    number: U64,
    bytes: U32,
    offset: U32,
}

/// Of which message a piece is, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The receiver's route id.
    pub(crate) route: u32,
    /// Counts the messages of the sender's direction on this queue pair, from 1.
    pub(crate) number: u64,
    /// Bytes of the message.
    pub(crate) bytes: u32,
    /// Where in it the piece begins.
    pub(crate) offset: u32,
    /// The last 16 bits of the number of WRITEs that left the queue pair before it: of its own number, if it is one.
    pub(crate) writes: u16,
}

impl Piece {
    /// The header.
    pub(crate) fn to_bytes(self) -> [u8; PIECE_HEADER_BYTES] {
        let wire = WirePiece {
            version: VERSION,
            zero: 0,
            writes: self.writes.into(),
            route: self.route.into(),
            number: self.number.into(),
            bytes: self.bytes.into(),
            offset: self.offset.into(),
        };
        let mut out = [0; PIECE_HEADER_BYTES];
        out.copy_from_slice(wire.as_bytes());
        out
    }

    /// Takes a piece apart. `None`: it is none. What it carries lies within its message, and is not empty unless the
    /// message is.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (wire, payload) = WirePiece::ref_from_prefix(bytes).ok()?;
        if wire.version != VERSION || wire.zero != 0 || wire.number.get() == 0 {
            return None;
        }
        let piece = Self {
            route: wire.route.get(),
            number: wire.number.get(),
            bytes: wire.bytes.get(),
            offset: wire.offset.get(),
            writes: wire.writes.get(),
        };
        let len = u32::try_from(payload.len()).ok()?;
        let is_within = piece.offset.checked_add(len).is_some_and(|end| end <= piece.bytes);
        (is_within && (len > 0 || piece.bytes == 0)).then_some((piece, payload))
    }
}

/// Takes a piece apart as the engine does; how many bytes of a message it carries. This is for tools and fuzzers.
pub fn check_piece(bytes: &[u8]) -> Option<usize> {
    let (piece, payload) = Piece::parse(bytes)?;
    debug_assert!(piece.offset as usize + payload.len() <= piece.bytes as usize);
    debug_assert_eq!(piece.to_bytes(), bytes[..PIECE_HEADER_BYTES]);
    Some(payload.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let piece =
            Piece { route: 0x0102_0304, number: 0x1122_3344_5566_7788, bytes: 0x0a0b, offset: 0x0a09, writes: 0x3132 };
        let mut bytes = piece.to_bytes().to_vec();
        #[rustfmt::skip]
        assert_eq!(bytes, [
            1, 0, 0x31, 0x32, 1, 2, 3, 4,
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
            0, 0, 0x0a, 0x0b, 0, 0, 0x0a, 0x09,
        ]);
        bytes.extend([7, 8]);
        assert_eq!(Piece::parse(&bytes), Some((piece, &[7, 8][..])));
        let empty = Piece { bytes: 0, offset: 0, ..piece };
        assert_eq!(Piece::parse(&empty.to_bytes()), Some((empty, &[][..])));
    }

    #[test]
    fn what_cannot_be_is_none() {
        let piece = Piece { route: 1, number: 1, bytes: 4, offset: 2, writes: 0 };
        let of = |piece: Piece, payload: &[u8]| Piece::parse(&[&piece.to_bytes()[..], payload].concat()).is_some();
        assert!(of(piece, &[1, 2]));
        assert!(!of(piece, &[1, 2, 3]), "beyond its message");
        assert!(!of(piece, &[]), "nothing of a message that has bytes");
        assert!(!of(Piece { number: 0, ..piece }, &[1]));
        assert!(!of(Piece { offset: u32::MAX, ..piece }, &[1]));
        assert!(!of(Piece { bytes: 0, offset: 1, ..piece }, &[]));
        for at in 0..2 {
            let mut bytes = [&piece.to_bytes()[..], &[1]].concat();
            bytes[at] ^= 2;
            assert_eq!(Piece::parse(&bytes), None, "byte {at}");
        }
        assert_eq!(Piece::parse(&[1; PIECE_HEADER_BYTES - 1]), None);
    }
}
