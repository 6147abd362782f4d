//! Endpoints of devices that speak RoCEv2: queue pair, PSN, port. The bytes are in docs/inside/control-link.md,
//! "Endpoints".
//!
//! Owns their layout and the check of each value. Parsing never panics: the bytes are a peer's.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;

use crate::{AddressVector, ENDPOINT_BYTES_MAX, Endpoint, Gid, PathMtu, Psn, Qkey, QpType, Qpn, VerbsError};

/// First byte of an endpoint: a reliable connection over RoCEv2.
const KIND_RC: u8 = 1;
/// First byte of an endpoint: a datagram port over RoCEv2.
const KIND_UD: u8 = 2;
/// First byte of an endpoint: an unreliable connection over RoCEv2. 3 is that of a connection over TCP.
const KIND_UC: u8 = 4;

const CONNECTION_BYTES: usize = 34;
const UD_BYTES: usize = 27;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceEndpoint {
    /// Transport service: RC or UC.
    pub qp_type: QpType,
    /// Queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
    /// Address of its port.
    pub gid: Gid,
    /// UDP port of its port.
    pub udp_port: u16,
    /// Largest path MTU.
    pub mtu: PathMtu,
    /// READs and atomics that it executes at a time.
    pub max_rd_atomic: u8,
    /// [`crate::DeviceAttr::rx_budget_bytes`].
    pub rx_budget_bytes: u32,
}

/// A datagram port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RocePort {
    /// UD queue pair.
    pub qpn: Qpn,
    /// Its key; the highest bit is clear.
    pub qkey: Qkey,
    /// Address of its port.
    pub gid: Gid,
    /// UDP port of its port; 0: it takes encrypted datagrams alone, at the port of the connection beside it. To port 0
    /// a device that does not know this sends nothing (Linux: EINVAL).
    pub udp_port: u16,
}

/// Takes an endpoint's bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// `len`: what is allowed.
    fn new(endpoint: &'a Endpoint, kind: u8, len: RangeInclusive<usize>) -> Result<Self, VerbsError> {
        let (&found, rest) = endpoint.as_bytes().split_first().unwrap_or((&0, &[]));
        if found != kind {
            return Err(VerbsError::ForeignEndpoint { found, expected: kind });
        }
        if !len.contains(&endpoint.as_bytes().len()) {
            let value = endpoint.as_bytes().len() as u64;
            let (min, max) = (*len.start() as u64, *len.end() as u64);
            return Err(VerbsError::OutOfRange { what: "length of the endpoint", value, min, max });
        }
        Ok(Self(rest))
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        // The length was checked as a whole; past the end there are zeros, which no field relies on.
        let Some((taken, rest)) = self.0.split_first_chunk::<N>() else { return [0; N] };
        self.0 = rest;
        *taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn gid(&mut self) -> Gid {
        Gid::from(IpAddr::V6(Ipv6Addr::from(self.take::<16>())).to_canonical())
    }
}

fn range(what: &'static str, value: u32, min: u32, max: u32) -> Result<u32, VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(VerbsError::OutOfRange { what, value: value.into(), min: min.into(), max: max.into() })
}

/// The first byte of an endpoint of a connection.
const fn kind_of(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Uc => KIND_UC,
        _ => KIND_RC,
    }
}

fn octets(gid: Gid) -> [u8; 16] {
    match gid.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl RoceEndpoint {
    /// As the peer is told.
    pub fn to_endpoint(self) -> Endpoint {
        let mut bytes = Vec::with_capacity(CONNECTION_BYTES);
        bytes.push(kind_of(self.qp_type));
        bytes.extend(self.qpn.0.to_be_bytes());
        bytes.extend(self.psn.get().to_be_bytes());
        bytes.extend(octets(self.gid));
        bytes.extend(self.udp_port.to_be_bytes());
        bytes.extend(u16::try_from(self.mtu.bytes()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.push(self.max_rd_atomic);
        bytes.extend(self.rx_budget_bytes.to_be_bytes());
        Endpoint::new(bytes).expect("34 bytes are no more than 128")
    }

    /// The same, and the further wires of its device behind it: each is a kind, a length and so many bytes, as
    /// [`Self::further_wires`] gives them back.
    pub fn to_endpoint_with(self, further: &[(u8, &[u8])]) -> Result<Endpoint, VerbsError> {
        let mut bytes = self.to_endpoint().into_bytes();
        for (kind, body) in further {
            let long = VerbsError::OutOfRange {
                what: "length of a wire's part of an endpoint",
                value: body.len() as u64,
                min: 0,
                max: u8::MAX.into(),
            };
            bytes.extend([*kind, u8::try_from(body.len()).map_err(|_| long)?]);
            bytes.extend_from_slice(body);
        }
        Endpoint::new(bytes)
    }

    /// The parts of an endpoint behind the one of RoCEv2. A device skips kinds that it does not know.
    pub fn further_wires(endpoint: &Endpoint) -> Result<Vec<(u8, &[u8])>, VerbsError> {
        let mut rest = endpoint.as_bytes().get(CONNECTION_BYTES..).unwrap_or(&[]);
        let mut further = Vec::new();
        while let Some((&kind, after)) = rest.split_first() {
            let cut = || VerbsError::OutOfRange {
                what: "length of a wire's part of the endpoint",
                value: after.first().map_or(1, |len| u64::from(*len)),
                min: 0,
                max: after.len().saturating_sub(1) as u64,
            };
            let (&len, after_len) = after.split_first().ok_or_else(cut)?;
            let (body, next) = after_len.split_at_checked(len.into()).ok_or_else(cut)?;
            further.push((kind, body));
            rest = next;
        }
        Ok(further)
    }

    /// What a peer's bytes say, if they can be so. Further wires behind it ([`Self::further_wires`]) are left aside.
    pub fn parse(endpoint: &Endpoint) -> Result<Self, VerbsError> {
        let qp_type = if endpoint.as_bytes().first() == Some(&KIND_UC) { QpType::Uc } else { QpType::Rc };
        let mut r = Reader::new(endpoint, kind_of(qp_type), CONNECTION_BYTES..=ENDPOINT_BYTES_MAX)?;
        Self::further_wires(endpoint)?;
        let qpn = Qpn(range("QP number of the offer", r.u32(), 1, Psn::MODULUS - 1)?);
        let psn = Psn::new(range("PSN of the offer", r.u32(), 0, Psn::MODULUS - 1)?);
        let (gid, udp_port, mtu_bytes) = (r.gid(), r.u16(), r.u16());
        let mtu = PathMtu::from_bytes(mtu_bytes.into()).ok_or(VerbsError::OutOfRange {
            what: "path MTU of the offer",
            value: mtu_bytes.into(),
            min: PathMtu::Mtu256.bytes() as u64,
            max: PathMtu::Mtu4096.bytes() as u64,
        })?;
        let [max_rd_atomic] = r.take();
        Ok(Self { qp_type, qpn, psn, gid, udp_port, mtu, max_rd_atomic, rx_budget_bytes: r.u32() })
    }

    /// Refuses to connect ends of different transport services.
    pub fn check_service(&self, peer: &Self) -> Result<(), VerbsError> {
        let (found, expected) = (kind_of(peer.qp_type), kind_of(self.qp_type));
        if found == expected { Ok(()) } else { Err(VerbsError::ForeignEndpoint { found, expected }) }
    }

    /// Where its packets go.
    pub fn address_vector(&self) -> AddressVector {
        AddressVector { udp_port: self.udp_port, ..AddressVector::new(self.gid) }
    }
}

impl RocePort {
    /// As the peer is told.
    pub fn to_endpoint(self) -> Endpoint {
        let mut bytes = Vec::with_capacity(UD_BYTES);
        bytes.push(KIND_UD);
        bytes.extend(self.qpn.0.to_be_bytes());
        bytes.extend(self.qkey.0.to_be_bytes());
        bytes.extend(octets(self.gid));
        bytes.extend(self.udp_port.to_be_bytes());
        Endpoint::new(bytes).expect("27 bytes are no more than 128")
    }

    /// What a peer's bytes say, if they can be so.
    pub fn parse(endpoint: &Endpoint) -> Result<Self, VerbsError> {
        let mut r = Reader::new(endpoint, KIND_UD, UD_BYTES..=UD_BYTES)?;
        let qpn = Qpn(range("UD QP number of the offer", r.u32(), 1, Psn::MODULUS - 1)?);
        let qkey = Qkey(range("queue key of the offer", r.u32(), 0, u32::MAX >> 1)?);
        Ok(Self { qpn, qkey, gid: r.gid(), udp_port: r.u16() })
    }

    /// Where its packets go.
    pub fn address_vector(&self) -> AddressVector {
        AddressVector { udp_port: self.udp_port, ..AddressVector::new(self.gid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rc(ip: &str) -> RoceEndpoint {
        RoceEndpoint {
            qp_type: QpType::Rc,
            qpn: Qpn(0x12_3456),
            psn: Psn::new(0xab_cdef),
            gid: Gid::from(ip.parse::<IpAddr>().unwrap()),
            udp_port: 4791,
            mtu: PathMtu::Mtu2048,
            max_rd_atomic: 16,
            rx_budget_bytes: 0x0102_0304,
        }
    }

    #[test]
    fn there_and_back() {
        for ip in ["10.0.0.1", "fd00::1"] {
            let end = rc(ip);
            assert_eq!(RoceEndpoint::parse(&end.to_endpoint()), Ok(end));
            let unreliable = RoceEndpoint { qp_type: QpType::Uc, ..end };
            assert_eq!(unreliable.to_endpoint().as_bytes()[0], 4);
            assert_eq!(RoceEndpoint::parse(&unreliable.to_endpoint()), Ok(unreliable));
            let port = RocePort { qpn: Qpn(1), qkey: Qkey(u32::MAX >> 1), gid: end.gid, udp_port: 1 };
            assert_eq!(RocePort::parse(&port.to_endpoint()), Ok(port));
        }
        let mut expected = vec![1, 0, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, 0x12, 0xb7, 8, 0, 16, 1, 2, 3, 4]);
        assert_eq!(rc("10.0.0.1").to_endpoint().as_bytes(), expected);
    }

    #[test]
    fn services_are_not_connected_to_each_other() {
        let reliable = rc("10.0.0.1");
        let unreliable = RoceEndpoint { qp_type: QpType::Uc, ..reliable };
        assert_eq!(unreliable.check_service(&unreliable), Ok(()));
        let refused = VerbsError::ForeignEndpoint { found: 4, expected: 1 };
        assert_eq!(reliable.check_service(&unreliable), Err(refused));
        assert!(unreliable.check_service(&reliable).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = rc("10.0.0.1").to_endpoint().into_bytes();
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            RoceEndpoint::parse(&Endpoint::new(bytes).unwrap())
        };
        assert_eq!(changed(0, 2), Err(VerbsError::ForeignEndpoint { found: 2, expected: 1 }));
        let what = |at, byte| match changed(at, byte) {
            Err(VerbsError::OutOfRange { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(1, 1), "QP number of the offer");
        assert_eq!(what(5, 1), "PSN of the offer");
        assert_eq!(what(28, 7), "path MTU of the offer");
        for len in 1..=ENDPOINT_LENGTHS {
            let mut bytes = good.clone();
            bytes.resize(len, 0);
            // Zeros behind it are whole parts of kind 0 and no bytes.
            let whole = len >= good.len() && (len - good.len()).is_multiple_of(2);
            assert_eq!(RoceEndpoint::parse(&Endpoint::new(bytes).unwrap()).is_ok(), whole, "{len}");
        }
        assert!(Endpoint::new(Vec::new()).is_err() && Endpoint::new(vec![1; 129]).is_err());
    }

    #[test]
    fn further_wires_lie_behind_and_must_be_whole() {
        let end = rc("10.0.0.1");
        let both = end.to_endpoint_with(&[(3, &[7; 5]), (9, &[])]).unwrap();
        assert_eq!(RoceEndpoint::parse(&both), Ok(end));
        assert_eq!(RoceEndpoint::further_wires(&both), Ok(vec![(3, &[7; 5][..]), (9, &[][..])]));
        assert_eq!(RoceEndpoint::further_wires(&end.to_endpoint()), Ok(vec![]));
        for cut in 1..9 {
            let bytes = both.as_bytes()[..both.as_bytes().len() - cut].to_vec();
            let parsed = RoceEndpoint::parse(&Endpoint::new(bytes).unwrap());
            // Without the last part, and without both, it is whole again.
            assert_eq!(parsed.is_ok(), cut == 2, "{cut} bytes are missing: {parsed:?}");
        }
        assert!(end.to_endpoint_with(&[(3, &[0; 200])]).is_err(), "longer than an endpoint may be");
    }

    const ENDPOINT_LENGTHS: usize = crate::ENDPOINT_BYTES_MAX;
}
