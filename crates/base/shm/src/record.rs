//! The header in front of each datagram in the rings of a datagram socket.
//!
//! Owns its bytes (docs/inside/shared-memory.md, "Datagram record"). A record must never be read in place: its taker copies the
//! header once, and uses the copy.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of the header.
pub const RECORD_HEADER_BYTES: usize = 24;
/// Records begin at multiples of this.
const RECORD_ALIGN: u64 = 8;

/// What stands in front of a datagram: in a transmit ring where it goes, in a receive ring where it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramRecord {
    /// The other end.
    pub addr: SocketAddr,
    /// Bytes of the datagram, without header and padding.
    pub bytes: u16,
}

impl DatagramRecord {
    /// Bytes that the whole record takes in a ring.
    pub const fn ring_bytes(&self) -> u64 {
        (RECORD_HEADER_BYTES as u64 + self.bytes as u64).next_multiple_of(RECORD_ALIGN)
    }

    /// The longest datagram whose record fits a ring of `ring_bytes`.
    pub const fn bytes_max(ring_bytes: u64) -> u64 {
        let whole = ring_bytes - ring_bytes % RECORD_ALIGN;
        whole.saturating_sub(RECORD_HEADER_BYTES as u64)
    }

    /// The header.
    pub fn to_bytes(&self) -> [u8; RECORD_HEADER_BYTES] {
        let ip = match self.addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut out = [0; RECORD_HEADER_BYTES];
        out[..16].copy_from_slice(&ip.octets());
        out[16..18].copy_from_slice(&self.addr.port().to_le_bytes());
        out[18..20].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// Reads a header. `None`: its reserved bytes are not zero, so it is none.
    pub fn parse(header: &[u8; RECORD_HEADER_BYTES]) -> Option<Self> {
        let (ip, rest) = header.split_first_chunk::<16>()?;
        let &[p0, p1, b0, b1, 0, 0, 0, 0] = rest else { return None };
        let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
        let port = u16::from_le_bytes([p0, p1]);
        Some(Self { addr: SocketAddr::new(ip, port), bytes: u16::from_le_bytes([b0, b1]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let record = DatagramRecord { addr: "10.0.0.2:513".parse().unwrap(), bytes: 0x304 };
        let bytes = record.to_bytes();
        let mut expected = [0; RECORD_HEADER_BYTES];
        expected[10..20].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2, 1, 2, 4, 3]);
        assert_eq!(bytes, expected);
        assert_eq!(DatagramRecord::parse(&bytes), Some(record));
        let v6 = DatagramRecord { addr: "[fd00::7]:65535".parse().unwrap(), bytes: 0 };
        assert_eq!(DatagramRecord::parse(&v6.to_bytes()), Some(v6));
    }

    #[test]
    fn reserved_bytes_must_be_zero() {
        let bytes = DatagramRecord { addr: "10.0.0.2:513".parse().unwrap(), bytes: 9 }.to_bytes();
        for at in 20..RECORD_HEADER_BYTES {
            let mut wrong = bytes;
            wrong[at] = 1;
            assert_eq!(DatagramRecord::parse(&wrong), None);
        }
    }

    #[test]
    fn records_are_padded_to_eight_and_the_longest_fits_exactly() {
        let of = |bytes| DatagramRecord { addr: "10.0.0.2:1".parse().unwrap(), bytes }.ring_bytes();
        assert_eq!([of(0), of(1), of(8), of(9), of(u16::MAX)], [24, 32, 32, 40, 65560]);
        for ring in [4096, 8192, 65536] {
            let max = DatagramRecord::bytes_max(ring);
            assert_eq!(of(u16::try_from(max).unwrap()), ring);
        }
        assert_eq!(DatagramRecord::bytes_max(8), 0);
    }
}
