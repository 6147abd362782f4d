//! Invariant CRC (IBTA 7.8.1, annex A17.3.3): CRC-32 over the packet with its mutable fields masked by ones.
//!
//! Covered are 8 bytes of ones, the IP header, the UDP header, the BTH with its fifth byte masked, and the rest up to
//! the ICRC. The IPv4 identification field is covered, although a UDP socket never shows the one of a received packet.
//! [`IcrcChecker`] therefore solves for it: CRC is linear, so that a wrong guess of the id changes the CRC by the
//! product of the difference with a known power of x, which has an inverse. 16 of the 32 bits stay a check.

use std::net::{IpAddr, SocketAddr};

use super::{Bth, wire_len};

/// Bytes of the ICRC at the end of a packet.
pub const ICRC_BYTES: usize = 4;

const LEAD_BYTES: usize = 8;
const IPV4_BYTES: u16 = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// Bytes before the end of the IPv4 identification field.
const THROUGH_IPV4_ID_BYTES: usize = LEAD_BYTES + 6;

/// The masked IP and UDP headers of packets from one address to another, as what they do to the CRC.
///
/// The headers of two packets differ in their lengths and in the IPv4 identification. CRC is linear: what a byte at a
/// place adds to it depends on the byte and on the distance from there to the end of the headers. So the CRC of the
/// headers with zeros in those fields is kept, and tables have the rest.
#[derive(Debug, Clone, Copy)]
pub struct PseudoHeader {
    /// CRC of the headers with zeros for lengths and identification.
    crc: u32,
    /// Bytes that it covers.
    len: usize,
    is_ipv4: bool,
}

impl PseudoHeader {
    /// For packets from `source` to `destination`; `None` if one is IPv4 and the other IPv6. An IPv4 address mapped
    /// into IPv6 counts as IPv4.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let mut bytes = [0xff; LEAD_BYTES + IPV6_BYTES + UDP_BYTES];
        let ip = &mut bytes[LEAD_BYTES..];
        let ip_bytes = match (source.ip().to_canonical(), destination.ip().to_canonical()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                // Version and header length, TOS, total length, id, flags (do not fragment), TTL, protocol, checksum.
                ip[..12].copy_from_slice(&[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, PROTOCOL_UDP, 0xff, 0xff]);
                ip[12..16].copy_from_slice(&s.octets());
                ip[16..20].copy_from_slice(&d.octets());
                IPV4_BYTES.into()
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                // Version, class and flow label, payload length, next header, hop limit.
                ip[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, PROTOCOL_UDP, 0xff]);
                ip[8..24].copy_from_slice(&s.octets());
                ip[24..40].copy_from_slice(&d.octets());
                IPV6_BYTES
            }
            _ => return None,
        };
        let udp = &mut ip[ip_bytes..ip_bytes + UDP_BYTES];
        udp[..2].copy_from_slice(&source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&destination.port().to_be_bytes());
        // Length; the checksum is masked.
        udp[4..6].fill(0);
        let len = LEAD_BYTES + ip_bytes + UDP_BYTES;
        let is_ipv4 = ip_bytes == usize::from(IPV4_BYTES);
        Some(Self { crc: crc32fast::hash(&bytes[..len]), len, is_ipv4 })
    }

    /// Whether the packets have an identification field.
    pub const fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    /// The ICRC as it stands on the wire, for a packet whose bytes from BTH to padding are `packet` (at least a BTH)
    /// and whose IPv4 identification is `id` (ignored for IPv6).
    pub fn icrc(&self, packet: &[u8], id: u16) -> [u8; ICRC_BYTES] {
        self.crc(packet, id).to_le_bytes()
    }

    /// CRC of the headers of a packet with so many bytes from BTH to padding.
    fn headers_crc(&self, packet_bytes: usize, id: u16) -> u32 {
        // Lengths that no IP packet has wrap around: their ICRC is merely wrong.
        let [.., high, low] = (UDP_BYTES + packet_bytes + ICRC_BYTES).to_be_bytes();
        let udp_len = u16::from_be_bytes([high, low]);
        let crc = self.crc ^ UDP_LENGTH.of(udp_len);
        if self.is_ipv4 {
            crc ^ IPV4_LENGTH.of(udp_len.wrapping_add(IPV4_BYTES)) ^ IPV4_ID.of(id)
        } else {
            crc ^ IPV6_LENGTH.of(udp_len)
        }
    }

    fn crc(&self, packet: &[u8], id: u16) -> u32 {
        const MASKED_BTH_BYTE: usize = 4;
        let mut hasher = crc32fast::Hasher::new_with_initial(self.headers_crc(packet.len(), id));
        let (bth, rest) = packet.split_at(packet.len().min(Bth::BYTES));
        let mut masked = [0; Bth::BYTES];
        masked[..bth.len()].copy_from_slice(bth);
        masked[MASKED_BTH_BYTE] = 0xff;
        hasher.update(&masked[..bth.len()]);
        hasher.update(rest);
        hasher.finalize()
    }
}

/// What a field of two bytes adds to the CRC of the headers, by its high and its low byte.
struct Field([[u32; 256]; 2]);

/// Length of the UDP header and what follows: only the checksum is behind it.
static UDP_LENGTH: Field = Field::before(2);
/// Length of the IPv4 packet: 16 bytes of its header and the UDP header are behind it.
static IPV4_LENGTH: Field = Field::before(16 + UDP_BYTES);
/// Identification of the IPv4 packet.
static IPV4_ID: Field = Field::before(14 + UDP_BYTES);
/// Length of what follows the IPv6 header.
static IPV6_LENGTH: Field = Field::before(34 + UDP_BYTES);

impl Field {
    /// Of a field behind which the headers go on for so many bytes.
    const fn before(bytes: usize) -> Self {
        let mut tables = [[0; 256]; 2];
        let mut value = 0;
        while value < 256 {
            tables[0][value] = Self::contribution(value, bytes + 1);
            tables[1][value] = Self::contribution(value, bytes);
            value += 1;
        }
        Self(tables)
    }

    /// What a byte adds that so many others follow.
    #[allow(clippy::cast_possible_truncation)] // A byte.
    const fn contribution(byte: usize, followers: usize) -> u32 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 * (followers + 1) {
            crc = crc >> 1 ^ gf2::POLYNOMIAL & 0u32.wrapping_sub(crc & 1);
            bit += 1;
        }
        crc
    }

    fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.0[0][usize::from(high)] ^ self.0[1][usize::from(low)]
    }
}

/// How a packet's ICRC was found right, and its IPv4 identification (0 over IPv6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// With an expected identification, or over IPv6: all 32 bits were checked.
    Full(u16),
    /// With another identification, solved from the ICRC itself: 16 bits were checked.
    WithId(u16),
}

impl Checked {
    /// The identification.
    pub const fn id(self) -> u16 {
        match self {
            Self::Full(id) | Self::WithId(id) => id,
        }
    }
}

/// Which IPv4 identifications packets from a peer have: Linux numbers the segments of a send 0, 1, 2, ..., and devices
/// on the way may hand them out one by one.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdGuess {
    last: u16,
    /// A packet that came alone, or first of several, continued the numbers of those before.
    goes_on: bool,
}

impl IdGuess {
    /// The likeliest for the packet at this place of what was received at once, and the next likely ones. One that is
    /// solved for and is among them had all of its 32 bits checked.
    pub const fn likely(self, place: u16) -> [u16; 3] {
        let next = self.last.wrapping_add(1);
        if place > 0 || self.goes_on { [next, 0, place] } else { [place, next, 0] }
    }

    /// The packet at that place had this one.
    pub const fn found(&mut self, place: u16, id: u16) {
        self.last = id;
        if place == 0 {
            self.goes_on = id != 0;
        }
    }
}

/// Checks ICRCs of received packets; keeps constants of recent packet lengths.
#[derive(Debug, Clone)]
pub struct IcrcChecker {
    /// Direct-mapped by length: (bytes after the id field, x^-(8 x bytes + 32)).
    inverses: [(usize, u32); INVERSE_CACHE],
}

/// Packet lengths whose constant is remembered. A connection has two or three lengths at a time.
const INVERSE_CACHE: usize = 64;

impl Default for IcrcChecker {
    fn default() -> Self {
        Self { inverses: [(usize::MAX, 0); INVERSE_CACHE] }
    }
}

impl IcrcChecker {
    /// Checks `packet` (BTH to padding) against the ICRC that followed it. `likely` are the IPv4 identifications that
    /// the packet may have, the likeliest first. `None`: the packet is damaged.
    pub fn check(
        &mut self,
        header: &PseudoHeader,
        packet: &[u8],
        icrc: [u8; ICRC_BYTES],
        likely: [u16; 3],
    ) -> Option<Checked> {
        let [guess, others @ ..] = likely;
        let difference = header.crc(packet, guess) ^ u32::from_le_bytes(icrc);
        if difference == 0 {
            return Some(Checked::Full(if header.is_ipv4 { guess } else { 0 }));
        }
        if !header.is_ipv4 {
            return None;
        }
        let tail = header.len + packet.len() - THROUGH_IPV4_ID_BYTES;
        let delta = gf2::multiply(difference, self.inverse(tail));
        // A difference of the id alone is a polynomial of degree below 16: in this bit order, the upper half.
        if delta & 0xffff != 0 {
            return None;
        }
        let id = guess ^ ((delta >> 16) as u16).swap_bytes();
        Some(if others.contains(&id) { Checked::Full(id) } else { Checked::WithId(id) })
    }

    fn inverse(&mut self, tail: usize) -> u32 {
        let slot = &mut self.inverses[(tail / 4) % INVERSE_CACHE];
        if slot.0 != tail {
            *slot = (tail, gf2::x_to_minus(8 * wire_len(tail) + 32));
        }
        slot.1
    }
}

/// Polynomials over GF(2) modulo the CRC-32 polynomial, in reflected bit order: bit 31 is the coefficient of x^0.
mod gf2 {
    pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;
    const ONE: u32 = 1 << 31;
    const X: u32 = 1 << 30;

    pub(super) fn multiply(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        for i in (0..32).rev() {
            product ^= b & 0u32.wrapping_sub((a >> i) & 1);
            b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
        }
        product
    }

    /// x^-n. The polynomial is primitive, so x has order 2^32 - 1.
    pub(super) fn x_to_minus(n: u32) -> u32 {
        let mut exponent = u32::MAX - n;
        let mut power = X;
        let mut result = ONE;
        while exponent != 0 {
            if exponent & 1 != 0 {
                result = multiply(result, power);
            }
            power = multiply(power, power);
            exponent >>= 1;
        }
        result
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn inverses_invert() {
            let mut power = ONE;
            for n in 1..2_000 {
                power = multiply(power, X);
                assert_eq!(multiply(power, x_to_minus(n)), ONE, "{n}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
