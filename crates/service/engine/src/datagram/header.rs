//! The header of a datagram between two daemons: the bytes of docs/inside/wire.md, section "Datagrams".
//!
//! Owns layout and syntax. It must never judge meaning: whether the sender is linked and the port bound is decided
//! where the datagram is taken. All integers are big-endian; parsing never panics, whatever the bytes are.

use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version in the header.
pub(crate) const DATAGRAM_VERSION: u8 = 1;
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = size_of::<WireHeader>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHeader {
    source_port: U16,
    destination_port: U16,
    version: u8,
    reserved: u8,
    bytes: U16,
    token: U64,
}

/// What stands in front of a datagram's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Port of the sending socket.
    pub(crate) source_port: u16,
    /// Port of the receiving socket.
    pub(crate) destination_port: u16,
    /// Bytes of the payload.
    pub(crate) bytes: u16,
    /// The number by which the sending daemon named itself in its offer.
    pub(crate) token: u64,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let wire = WireHeader {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            version: DATAGRAM_VERSION,
            reserved: 0,
            bytes: self.bytes.into(),
            token: self.token.into(),
        };
        let mut out = [0; HEADER_BYTES];
        out.copy_from_slice(wire.as_bytes());
        out
    }

    /// Header and payload. `None`: too short, another version, a reserved byte, or another length than it says.
    pub(crate) fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (wire, payload) = WireHeader::ref_from_prefix(datagram).ok()?;
        if wire.version != DATAGRAM_VERSION || wire.reserved != 0 || usize::from(wire.bytes.get()) != payload.len() {
            return None;
        }
        let header = Self {
            source_port: wire.source_port.get(),
            destination_port: wire.destination_port.get(),
            bytes: wire.bytes.get(),
            token: wire.token.get(),
        };
        Some((header, payload))
    }
}

/// Parses a datagram as a peer daemon sent it, header and payload, and says whether it is one. For fuzzers: what parses
/// must come out the same when it is written again.
pub fn check_datagram(datagram: &[u8]) -> bool {
    let Some((header, payload)) = Header::parse(datagram) else { return false };
    assert_eq!([&header.to_bytes(), payload].concat(), datagram, "a parsed datagram is the same when written again");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { source_port: 0x102, destination_port: 0x304, bytes: 2, token: 0x1122_3344_5566_7788 };

    #[test]
    fn literal_bytes() {
        let bytes = [HEADER.to_bytes().as_slice(), b"hi"].concat();
        let expected = [1, 2, 3, 4, 1, 0, 0, 2, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, b'h', b'i'];
        assert_eq!(bytes, expected);
        assert_eq!(Header::parse(&bytes), Some((HEADER, b"hi".as_slice())));
        assert!(check_datagram(&bytes));
    }

    #[test]
    fn what_is_no_datagram_is_refused() {
        let good = [HEADER.to_bytes().as_slice(), b"hi"].concat();
        for len in 0..good.len() {
            assert_eq!(Header::parse(&good[..len]), None, "{len} bytes");
        }
        assert_eq!(Header::parse(&[&good[..], b"!"].concat()), None, "longer than it says");
        for (at, value) in [(4, 0), (4, 2), (5, 1), (7, 1), (6, 1)] {
            let mut wrong = good.clone();
            wrong[at] = value;
            assert_eq!(Header::parse(&wrong), None, "byte {at} is {value}");
        }
    }
}
