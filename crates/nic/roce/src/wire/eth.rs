//! Extended transport headers (IBTA 9.3) and the meaning of the AETH syndrome.

use std::time::Duration;

use verbs::{Qkey, Qpn, Rkey};

/// RDMA extended transport header: place and length of a WRITE or READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// Address in the responder's region.
    pub addr: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::BYTES]) -> Self {
        Self { addr: be64(b, 0), rkey: Rkey(be32(b, 8)), dma_len: be32(b, 12) }
    }

    /// Writes the header.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&self.dma_len.to_be_bytes());
        b
    }
}

/// Atomic extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of 8 aligned bytes.
    pub addr: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// New value, or what to add.
    pub swap_or_add: u64,
    /// Value to compare with; ignored by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const BYTES: usize = 28;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::BYTES]) -> Self {
        Self { addr: be64(b, 0), rkey: Rkey(be32(b, 8)), swap_or_add: be64(b, 12), compare: be64(b, 20) }
    }

    /// Writes the header.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// Datagram extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// Key that the receiving QP has to have.
    pub qkey: Qkey,
    /// The sending QP.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// Reads the header; its reserved byte is ignored.
    pub fn parse(b: &[u8; Self::BYTES]) -> Self {
        Self { qkey: Qkey(be32(b, 0)), src_qpn: Qpn(be32(b, 4) & 0xff_ffff) }
    }

    /// Writes the header.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        b[4..].copy_from_slice(&(self.src_qpn.0 & 0xff_ffff).to_be_bytes());
        b
    }
}

/// ACK extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// Kind of acknowledgement.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::BYTES]) -> Self {
        Self { syndrome: Syndrome::from_byte(b[0]), msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Writes the header.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let msn = self.msn.to_be_bytes();
        [self.syndrome.byte(), msn[1], msn[2], msn[3]]
    }
}

/// Syndrome of an AETH (IBTA table 43).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive; the credit field, 0x1f for "not limited".
    Ack(u8),
    /// The receiver has no receive posted; code of the time to wait ([`rnr_delay`]).
    RnrNak(u8),
    /// Negative.
    Nak(NakCode),
    /// A reserved value.
    Reserved(u8),
}

/// Credit field of an end that does not count credits, as an SRQ must not.
pub const CREDITS_UNLIMITED: u8 = 0x1f;

/// Receives that each credit code stands for (IBTA table 44).
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096,
    6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
];

/// The receives that a credit code stands for; `None` for [`CREDITS_UNLIMITED`].
pub fn credits_of(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code & 0x1f)).copied()
}

/// The code of the largest number that is not above `receives`.
pub fn credit_code(receives: usize) -> u8 {
    let above = CREDITS.partition_point(|&credits| credits as usize <= receives);
    u8::try_from(above.saturating_sub(1)).unwrap_or(0)
}

impl Syndrome {
    const fn from_byte(b: u8) -> Self {
        match b >> 5 {
            0 => Self::Ack(b & 0x1f),
            1 => Self::RnrNak(b & 0x1f),
            3 => match b & 0x1f {
                0 => Self::Nak(NakCode::SequenceError),
                1 => Self::Nak(NakCode::InvalidRequest),
                2 => Self::Nak(NakCode::RemoteAccess),
                3 => Self::Nak(NakCode::RemoteOperational),
                _ => Self::Reserved(b),
            },
            _ => Self::Reserved(b),
        }
    }

    const fn byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(code) => 0x20 | (code & 0x1f),
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(b) => b,
        }
    }
}

/// Code of a NAK (IBTA table 46).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: send again from the NAK's PSN.
    SequenceError = 0,
    /// Unsupported, out of order, or too long.
    InvalidRequest = 1,
    /// Key, bounds or rights do not hold.
    RemoteAccess = 2,
    /// The responder could not do it for a reason of its own.
    RemoteOperational = 3,
}

/// The time that a requester waits after an RNR NAK with this code (IBTA table 45). Only the low five bits count.
pub const fn rnr_delay(code: u8) -> Duration {
    /// In units of 10 us.
    const TABLE: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
        4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(TABLE[(code & 0x1f) as usize] * 10)
}

/// The interval of a local ACK timeout code: 4.096 us x 2^code, `None` for code 0 (IBTA 9.7.6.1.3).
pub const fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        c => Some(Duration::from_nanos(4_096 << c)),
    }
}

fn be32(b: &[u8], at: usize) -> u32 {
    b[at..].first_chunk().copied().map_or(0, u32::from_be_bytes)
}

fn be64(b: &[u8], at: usize) -> u64 {
    b[at..].first_chunk().copied().map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reth_bytes() {
        let reth = Reth { addr: 0x0102_0304_0506_0708, rkey: Rkey(0xa1a2_a3a4), dma_len: 0x0001_0002 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0xa1, 0xa2, 0xa3, 0xa4, 0, 1, 0, 2];
        assert_eq!(reth.to_bytes(), bytes);
        assert_eq!(Reth::parse(&bytes), reth);
    }

    #[test]
    fn atomic_eth_bytes() {
        let eth = AtomicEth { addr: 0x10, rkey: Rkey(0x20), swap_or_add: 0x0102_0304_0506_0708, compare: 0x30 };
        let mut bytes = [0; 28];
        bytes[7] = 0x10;
        bytes[11] = 0x20;
        bytes[12..20].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[27] = 0x30;
        assert_eq!(eth.to_bytes(), bytes);
        assert_eq!(AtomicEth::parse(&bytes), eth);
    }

    #[test]
    fn deth_bytes() {
        let deth = Deth { qkey: Qkey(0x8011_2233), src_qpn: Qpn(0xab_cdef) };
        assert_eq!(deth.to_bytes(), [0x80, 0x11, 0x22, 0x33, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(
            Deth::parse(&[0x80, 0x11, 0x22, 0x33, 0xff, 0xab, 0xcd, 0xef]),
            deth,
            "a reserved byte counts for nothing"
        );
    }

    #[test]
    fn aeth_bytes() {
        let cases = [
            (Syndrome::Ack(CREDITS_UNLIMITED), 0x1f),
            (Syndrome::RnrNak(12), 0x2c),
            (Syndrome::Nak(NakCode::SequenceError), 0x60),
            (Syndrome::Nak(NakCode::InvalidRequest), 0x61),
            (Syndrome::Nak(NakCode::RemoteAccess), 0x62),
            (Syndrome::Nak(NakCode::RemoteOperational), 0x63),
            (Syndrome::Reserved(0x64), 0x64),
            (Syndrome::Reserved(0x40), 0x40),
            (Syndrome::Reserved(0xff), 0xff),
        ];
        for (syndrome, byte) in cases {
            let aeth = Aeth { syndrome, msn: 0x12_3456 };
            assert_eq!(aeth.to_bytes(), [byte, 0x12, 0x34, 0x56]);
            assert_eq!(Aeth::parse(&aeth.to_bytes()), aeth);
        }
    }

    #[test]
    fn credit_codes() {
        for (receives, code, credits) in [(0, 0, 0), (1, 1, 1), (5, 4, 4), (6, 5, 6), (511, 17, 384), (512, 18, 512)] {
            assert_eq!((credit_code(receives), credits_of(code)), (code, Some(credits)));
        }
        assert_eq!((credit_code(usize::MAX), credits_of(30)), (30, Some(32_768)));
        assert_eq!(credits_of(CREDITS_UNLIMITED), None);
    }

    #[test]
    fn timer_tables() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
    }
}
