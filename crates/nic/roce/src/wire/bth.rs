//! Base transport header (IBTA 9.2): the first 12 bytes of each packet.

use verbs::{Psn, Qpn};

/// Default partition key with full membership, the only partition RoCEv2 ports use.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Base transport header. Reserved bits are sent as zero and ignored on arrival, as is the migration bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// Opcode byte, not yet judged.
    pub opcode: u8,
    /// The message asks for a solicited event.
    pub solicited: bool,
    /// Bytes of padding after the payload, 0..=3.
    pub pad: u8,
    /// Transport version, 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination QP, 24 bits.
    pub dest_qpn: Qpn,
    /// The responder is asked for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// Reads a header. Every byte sequence is one.
    pub const fn parse(b: &[u8; Self::BYTES]) -> Self {
        Self {
            opcode: b[0],
            solicited: b[1] & 0x80 != 0,
            pad: (b[1] >> 4) & 3,
            version: b[1] & 0x0f,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            dest_qpn: Qpn(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_request: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// Writes the header with the migration bit set (state Migrated), which hardware demands of a QP without an
    /// alternate path.
    pub const fn to_bytes(&self) -> [u8; Self::BYTES] {
        const MIGRATED: u8 = 0x40;
        let key = self.pkey.to_be_bytes();
        let qpn = self.dest_qpn.0.to_be_bytes();
        let psn = self.psn.get().to_be_bytes();
        let flags = (if self.solicited { 0x80 } else { 0 }) | MIGRATED | ((self.pad & 3) << 4) | (self.version & 0x0f);
        let ack = if self.ack_request { 0x80 } else { 0 };
        [self.opcode, flags, key[0], key[1], 0, qpn[1], qpn[2], qpn[3], ack, psn[1], psn[2], psn[3]]
    }

    /// Whether the packet belongs to the default partition: the low 15 bits match, and one of both sides is a full
    /// member, which we are (IBTA 10.9.3).
    pub const fn pkey_matches(&self) -> bool {
        self.pkey & 0x7fff == DEFAULT_PKEY & 0x7fff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let bth = Bth {
            opcode: 0x0b,
            solicited: true,
            pad: 3,
            version: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn: Qpn(0x12_3456),
            ack_request: true,
            psn: Psn::new(0xfe_dcba),
        };
        let bytes = [0x0b, 0xf0, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xfe, 0xdc, 0xba];
        assert_eq!(bth.to_bytes(), bytes);
        assert_eq!(Bth::parse(&bytes), bth);
        let plain = Bth { opcode: 7, solicited: false, pad: 0, ack_request: false, ..bth };
        assert_eq!(plain.to_bytes()[..2], [0x07, 0x40]);
        assert_eq!(plain.to_bytes()[8], 0);
    }

    #[test]
    fn reserved_bits_are_ignored_and_partitions_matched() {
        let mut bytes = [0x04, 0x40, 0x7f, 0xff, 0xff, 0, 0, 2, 0x7f, 0, 0, 9];
        let bth = Bth::parse(&bytes);
        assert_eq!((bth.dest_qpn, bth.psn, bth.ack_request), (Qpn(2), Psn::new(9), false));
        assert!(bth.pkey_matches());
        bytes[3] = 0xfe;
        assert!(!Bth::parse(&bytes).pkey_matches());
    }
}
