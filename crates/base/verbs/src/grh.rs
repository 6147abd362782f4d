//! The 40 bytes in front of a received datagram: its sender, in the form of the IP header of its packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes that a datagram's receive has in front of the payload (IBTA 11.4.1.2; annex A17.4.5).
pub const GRH_BYTES: usize = 40;

const IPV4_BYTES: u16 = 20;
/// Where an IPv4 header lies: at the end, so that the payload follows it.
const IPV4_AT: usize = GRH_BYTES - IPV4_BYTES as usize;
const PROTOCOL_UDP: u8 = 17;
/// TTL or hop limit of headers that are made here: sockets do not show the real one.
const HOP_LIMIT: u8 = 64;

/// Source, destination and length out of the header area of a received datagram.
///
/// An IPv6 header fills the area; an IPv4 header is its last 20 bytes and the first 20 mean nothing. The bytes may look
/// like both. Then, as in rdma-core, the IPv4 header's checksum decides. It is checked only in that case, because
/// packets that never left their host may have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grh {
    /// The sender's port.
    pub source: IpAddr,
    /// The port that it came to.
    pub destination: IpAddr,
    /// Bytes behind the IP header: UDP header, transport headers, payload, padding, ICRC.
    pub payload_len: u16,
}

impl Grh {
    /// Reads the area. `None`: it holds neither header.
    pub fn parse(area: &[u8; GRH_BYTES]) -> Option<Self> {
        let ipv4 = area.last_chunk::<{ IPV4_BYTES as usize }>()?;
        let may_be_ipv6 = area[0] >> 4 == 6;
        if ipv4[0] == 0x45 && (!may_be_ipv6 || ones_sum(ipv4) == 0xffff) {
            let total = u16::from_be_bytes([ipv4[2], ipv4[3]]);
            return Some(Self {
                source: Ipv4Addr::new(ipv4[12], ipv4[13], ipv4[14], ipv4[15]).into(),
                destination: Ipv4Addr::new(ipv4[16], ipv4[17], ipv4[18], ipv4[19]).into(),
                payload_len: total.checked_sub(IPV4_BYTES)?,
            });
        }
        if !may_be_ipv6 {
            return None;
        }
        let (_, addresses) = area.split_first_chunk::<8>()?;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        Some(Self {
            source: Ipv6Addr::from(*source).into(),
            destination: Ipv6Addr::from(*destination.first_chunk()?).into(),
            payload_len: u16::from_be_bytes([area[4], area[5]]),
        })
    }

    /// Writes the area like a device that never saw the packet's IP header: traffic class 0, hop limit 64, and over
    /// IPv4 identification 0, "do not fragment" and a right checksum. `None` if one address is IPv4 and the other IPv6.
    pub fn to_bytes(&self) -> Option<[u8; GRH_BYTES]> {
        let mut area = [0; GRH_BYTES];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = &mut area[IPV4_AT..];
                let total = self.payload_len.wrapping_add(IPV4_BYTES).to_be_bytes();
                ip[..10].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, HOP_LIMIT, PROTOCOL_UDP]);
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..].copy_from_slice(&destination.octets());
                let checksum = !ones_sum(ip);
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let len = self.payload_len.to_be_bytes();
                area[..8].copy_from_slice(&[0x60, 0, 0, 0, len[0], len[1], PROTOCOL_UDP, HOP_LIMIT]);
                area[8..24].copy_from_slice(&source.octets());
                area[24..].copy_from_slice(&destination.octets());
            }
            _ => return None,
        }
        Some(area)
    }
}

/// The sum of big-endian 16-bit words in ones' complement (RFC 1071); all ones over a header with a right checksum.
fn ones_sum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_ipv4() {
        let grh = Grh {
            source: Ipv4Addr::new(10, 0, 0, 1).into(),
            destination: Ipv4Addr::new(10, 0, 0, 2).into(),
            payload_len: 36,
        };
        let area = grh.to_bytes().unwrap();
        assert_eq!(area[..20], [0; 20]);
        let ip = [0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 17, 0x26, 0xb3, 10, 0, 0, 1, 10, 0, 0, 2];
        assert_eq!(area[20..], ip);
        assert_eq!(Grh::parse(&area), Some(grh));
    }

    #[test]
    fn literal_ipv6() {
        let grh =
            Grh { source: "fd00::1".parse().unwrap(), destination: "fd00::2".parse().unwrap(), payload_len: 0x102 };
        let area = grh.to_bytes().unwrap();
        assert_eq!(area[..8], [0x60, 0, 0, 0, 1, 2, 17, 64]);
        assert_eq!((area[8], area[23], area[24], area[39]), (0xfd, 1, 0xfd, 2));
        assert_eq!(Grh::parse(&area), Some(grh));
    }

    /// What lies in the first 20 bytes of an IPv4 area means nothing, even where it looks like IPv6.
    #[test]
    fn the_checksum_tells_ipv4_from_ipv6() {
        let grh = Grh {
            source: Ipv4Addr::new(1, 2, 3, 4).into(),
            destination: Ipv4Addr::new(5, 6, 7, 8).into(),
            payload_len: 100,
        };
        let mut area = grh.to_bytes().unwrap();
        area[..20].fill(0x66);
        assert_eq!(Grh::parse(&area), Some(grh));
        area[30] ^= 1;
        assert!(Grh::parse(&area).is_some_and(|g| g.source.is_ipv6()));
        area[..20].fill(0);
        assert_eq!(Grh::parse(&area), Some(grh), "it can only be IPv4");
        area[20] = 0x46;
        assert_eq!(Grh::parse(&area), None, "and has no options");
        let mixed = Grh { source: "fd00::1".parse().unwrap(), ..grh };
        assert_eq!(mixed.to_bytes(), None);
    }

    #[test]
    fn short_totals_are_no_header() {
        let mut area = [0; GRH_BYTES];
        area[20] = 0x45;
        area[23] = 19;
        let checksum = !ones_sum(&area[20..]);
        area[30..32].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(Grh::parse(&area), None);
        assert_eq!(Grh::parse(&[0; GRH_BYTES]), None);
    }
}
