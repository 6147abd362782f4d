//! The immediate of a lane's message. Of ring data it has the connection, and the bytes that came before the WRITE that
//! carries it.
//!
//! Owns the layout of its 32 bits: the highest is 0 for ring data, and 1 for an operation, whose tag the other 31 are.
//! No operation exists yet, so a message of one is a breach of the protocol. The number of bytes in it is a claim of
//! the peer: it is checked against the grant like any length, and against the place where the device says that bytes
//! were put.
//!
//! A WRITE with immediate gives the receiver only its own length. Between devices that can, long data leaves as a WRITE
//! of whole units and a WRITE with immediate of the rest. The packets of a plain WRITE can be cut evenly, so that they
//! share a GSO batch; those of a WRITE with immediate cannot (`roce`, send queue). The immediate then has the number of
//! units.

/// Bits of a route id.
pub(crate) const ROUTE_BITS: u32 = 27;
/// The bit that distinguishes an operation's tag from ring data.
const OPERATION: u32 = 1 << 31;

/// Bytes of a unit: the largest path MTU, so that units are whole packets at any.
pub(crate) const UNIT_BYTES: u32 = 4096;
/// Units of one piece: their packets fill a GSO batch, which holds less than 64 KiB.
pub(crate) const UNITS_MAX: u32 = (1 << (31 - ROUTE_BITS)) - 1;

/// What the immediate of ring data says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Immediate {
    /// The receiver's route id.
    pub(crate) route: u32,
    /// Bytes that plain WRITEs brought before, a multiple of [`UNIT_BYTES`] up to [`UNITS_MAX`] of them.
    pub(crate) bytes_before: u32,
}

impl Immediate {
    pub(crate) const fn to_bits(self) -> u32 {
        ((self.bytes_before / UNIT_BYTES) << ROUTE_BITS) | self.route
    }

    /// `None`: it is of an operation.
    pub(crate) const fn from_bits(bits: u32) -> Option<Self> {
        if bits & OPERATION != 0 {
            return None;
        }
        Some(Self { route: bits & ((1 << ROUTE_BITS) - 1), bytes_before: (bits >> ROUTE_BITS) * UNIT_BYTES })
    }
}

/// How much of a piece leaves as a plain WRITE before the WRITE with immediate. The rest may be nothing: a whole unit
/// with an immediate would be longer than the others.
pub(crate) const fn bytes_before(piece_bytes: u32) -> u32 {
    if piece_bytes <= UNIT_BYTES { 0 } else { piece_bytes / UNIT_BYTES * UNIT_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_there_and_back() {
        for bits in [0, 1, u32::MAX >> 1, 1 << ROUTE_BITS, (1 << ROUTE_BITS) - 1, 0x1234_5678] {
            assert_eq!(Immediate::from_bits(bits).map(Immediate::to_bits), Some(bits));
        }
        for tag in [0, 1, u32::MAX >> 1] {
            assert_eq!(Immediate::from_bits(OPERATION | tag), None);
        }
        let most = Immediate { route: 7, bytes_before: UNITS_MAX * UNIT_BYTES };
        assert_eq!(Immediate::from_bits(most.to_bits()), Some(most));
        assert_eq!(most.to_bits() >> 27, 15);
    }

    #[test]
    fn routes_that_no_immediate_carries_are_refused() {}

    #[test]
    fn short_pieces_are_whole_and_long_ones_leave_whole_units_first() {
        assert_eq!([1, 4096, 4097, 8191, 8192, 61_440].map(bytes_before), [0, 0, 4096, 4096, 8192, 61_440]);
    }
}
