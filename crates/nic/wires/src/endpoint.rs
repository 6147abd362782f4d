//! Endpoints that list wires, and the rule by which two ends choose one. The bytes are in docs/inside/control-link.md,
//! "Endpoints".
//!
//! No I/O. Owns the part about TCP and the rule, which must give both ends the same answer. Parsing never panics: the bytes are
//! a peer's.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use iwarp::{Extensions, QpAttr};
use records::{Keys, SECRET_BYTES, Secret};
use verbs::{Endpoint, Gid, PathMtu, Psn, Qpn, RoceEndpoint, VerbsError, Wire, WirePolicy};

/// First byte of an endpoint, or of its part, that is a stream over TCP.
const KIND_TCP: u8 = 3;
/// Kind of the part of an end that seals RoCEv2 packets and has no part about TCP: flags and a secret.
const KIND_SEALED: u8 = 6;
/// In its flags: the end refuses a connection in the clear.
const SEALED_REQUIRED: u8 = 1;
/// Bytes of the part behind its kind (and, behind a RoCEv2 endpoint, its length).
const PART_BYTES: usize = 44;
/// Bytes of the part of an end that encrypts: its secret is behind the rest.
const SECRET_PART_BYTES: usize = PART_BYTES + SECRET_BYTES;
/// Bytes by which the two ends of a connection know each other.
pub const TOKEN_BYTES: usize = 16;

/// Bytes of private data: number and token of the end that is meant, and of the one that speaks.
pub const HELLO_BYTES: usize = 2 * (4 + TOKEN_BYTES);
/// Longest MULPDU: what an FPDU's length field can say.
pub const FPDU_BYTES: u16 = u16::MAX;

/// The device would rather have the connection over TCP.
const FLAG_PREFERRED: u8 = 1;
/// The device wants a CRC with each FPDU (RFC 5044).
const FLAG_CRC: u8 = 1 << 1;
/// The device has immediate data and atomics (RFC 7306).
const FLAG_EXTENDED: u8 = 1 << 2;
/// The device answers zero-length READs, by which a completion means that the peer has everything.
const FLAG_CONFIRMS: u8 = 1 << 3;
/// The device refuses a connection that is not encrypted.
const FLAG_SECRET_REQUIRED: u8 = 1 << 4;

/// The device seals RoCEv2 packets with keys from the same secret.
const FLAG_SEALS_PACKETS: u8 = 1 << 6;

/// Smallest MULPDU that a peer may ask for: a header and some bytes (RFC 5044 4.2 asks for 128 at least).
const FPDU_MIN: u16 = 128;

/// Proof that a TCP connection belongs to a queue pair: it went to the peer over the channel of the consumers.
#[derive(Clone, Copy, Eq)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl PartialEq for Token {
    /// In the same time wherever they differ.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What an end adds to the encryption of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encryption {
    /// Random, of this connection alone.
    pub secret: Secret,
    /// It refuses a connection in the clear.
    pub is_required: bool,
}

/// What an endpoint says of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpPart {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Address of the port.
    pub gid: Gid,
    /// Of the listener.
    pub port: u16,
    /// What the peer has to show.
    pub token: Token,
    /// The device would rather have TCP.
    pub is_preferred: bool,
    /// An FPDU has a CRC.
    pub wants_crc: bool,
    /// RFC 7306 is spoken.
    pub is_extended: bool,
    /// Zero-length READs are answered beyond what `max_rd_atomic` says.
    pub confirms: bool,
    /// Longest MULPDU that the device takes.
    pub fpdu_bytes: u16,
    /// READs and atomics that it executes at a time.
    pub max_rd_atomic: u8,
    /// Largest path MTU, for datagrams beside the connection.
    pub mtu: PathMtu,
    /// It encrypts with peers that do.
    pub encryption: Option<Encryption>,
    /// Over RoCEv2 too, with keys from the same secret.
    pub seals_packets: bool,
}

impl TcpPart {
    fn to_bytes(self) -> Vec<u8> {
        let ip = match self.gid.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let flags = flag(self.is_preferred, FLAG_PREFERRED)
            | flag(self.wants_crc, FLAG_CRC)
            | flag(self.is_extended, FLAG_EXTENDED)
            | flag(self.confirms, FLAG_CONFIRMS)
            | flag(self.encryption.is_some_and(|e| e.is_required), FLAG_SECRET_REQUIRED)
            | flag(self.encryption.is_some() && self.seals_packets, FLAG_SEALS_PACKETS);
        let mut bytes = vec![0; PART_BYTES];
        bytes[..4].copy_from_slice(&self.qpn.0.to_be_bytes());
        bytes[4..20].copy_from_slice(&ip.octets());
        bytes[20..22].copy_from_slice(&self.port.to_be_bytes());
        bytes[22..38].copy_from_slice(&self.token.0);
        bytes[38] = flags;
        bytes[39] = self.max_rd_atomic;
        bytes[40..42].copy_from_slice(&self.fpdu_bytes.to_be_bytes());
        bytes[42..44].copy_from_slice(&u16::try_from(self.mtu.bytes()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(self.encryption.iter().flat_map(|e| e.secret.0));
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, VerbsError> {
        let wrong = |what, value: u64, min: u64, max: u64| VerbsError::OutOfRange { what, value, min, max };
        let (min, max) = (PART_BYTES as u64, SECRET_PART_BYTES as u64);
        let length = || wrong("length of the TCP endpoint", bytes.len() as u64, min, max);
        let (bytes, secret) = bytes.split_first_chunk::<PART_BYTES>().ok_or_else(length)?;
        let secret = match secret {
            [] => None,
            secret => Some(Secret(secret.try_into().map_err(|_| length())?)),
        };
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let qpn = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if !(1..Psn::MODULUS).contains(&qpn) {
            return Err(wrong("QP number of the offer", qpn.into(), 1, u64::from(Psn::MODULUS) - 1));
        }
        let (port, fpdu_bytes, mtu_bytes) = (u16_at(20), u16_at(40), u16_at(42));
        if port == 0 {
            return Err(wrong("TCP port of the offer", 0, 1, u16::MAX.into()));
        }
        if fpdu_bytes < FPDU_MIN {
            return Err(wrong("longest MULPDU of the offer", fpdu_bytes.into(), FPDU_MIN.into(), u16::MAX.into()));
        }
        let mtu = PathMtu::from_bytes(mtu_bytes.into()).ok_or_else(|| {
            let [min, max] = [PathMtu::Mtu256, PathMtu::Mtu4096].map(|mtu| mtu.bytes() as u64);
            wrong("path MTU of the offer", mtu_bytes.into(), min, max)
        })?;
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[4..20]);
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&bytes[22..38]);
        let flags = bytes[38];
        Ok(Self {
            qpn: Qpn(qpn),
            gid: Gid::from(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical()),
            port,
            token: Token(token),
            is_preferred: flags & FLAG_PREFERRED != 0,
            wants_crc: flags & FLAG_CRC != 0,
            is_extended: flags & FLAG_EXTENDED != 0,
            confirms: flags & FLAG_CONFIRMS != 0,
            fpdu_bytes,
            max_rd_atomic: bytes[39],
            mtu,
            encryption: secret.map(|secret| Encryption { secret, is_required: flags & FLAG_SECRET_REQUIRED != 0 }),
            seals_packets: secret.is_some() && flags & FLAG_SEALS_PACKETS != 0,
        })
    }

    /// The keys of the connection to that peer, and why it is encrypted or not; an error if one of the two ends wants
    /// no connection in the clear and the other one does not encrypt.
    pub fn keys_with(&self, peer: &Self) -> Result<(Option<Keys>, &'static str), VerbsError> {
        match (self.encryption, peer.encryption) {
            (Some(own), Some(peer)) => match Keys::new(&own.secret, &peer.secret) {
                Some(keys) => Ok((Some(keys), "both ends encrypt, with keys of this queue pair alone")),
                None => Err(VerbsError::NotEncrypted("the peer's end sent this end's own secret back")),
            },
            (Some(own), None) if own.is_required => Err(VerbsError::NotEncrypted(
                "the peer's end does not encrypt: set `encrypt` there to \"preferred\" or \"required\"",
            )),
            (None, Some(peer)) if peer.is_required => Err(VerbsError::NotEncrypted(
                "only the peer's end has it so: set `encrypt` here to \"preferred\" or \"required\"",
            )),
            (Some(_), None) => Ok((None, "the peer's end does not encrypt (`encrypt` there)")),
            (None, _) => Ok((None, "`encrypt` is \"off\"")),
        }
    }

    /// The private data by which an end of a connection says whom it means and who it is.
    pub fn hello_to(&self, peer: &Self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        for (half, part) in bytes.chunks_exact_mut(HELLO_BYTES / 2).zip([peer, self]) {
            half[..4].copy_from_slice(&part.qpn.0.to_be_bytes());
            half[4..].copy_from_slice(&part.token.0);
        }
        bytes
    }

    /// What the machine of a queue pair is made of that the RoCEv2 machine lent.
    pub fn qp_attr(&self, peer: &Self, lent: &roce::LentQp, max_msg_bytes: u32) -> QpAttr {
        QpAttr {
            qpn: self.qpn,
            init: lent.init.clone(),
            access: lent.access,
            max_msg_bytes,
            ird: self.max_rd_atomic.into(),
            ord: self.max_rd_atomic.min(peer.max_rd_atomic).into(),
            wants_crc: self.wants_crc || peer.wants_crc,
            extensions: if self.is_extended && peer.is_extended { Extensions::all() } else { Extensions::empty() },
            confirms: self.confirms && peer.confirms,
        }
    }

    /// Where the listener is.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.gid.ip(), self.port)
    }

    /// Whether this end connects and the other one listens: the one with the smaller address and QP number.
    pub fn connects_to(&self, peer: &Self) -> bool {
        (self.gid.0, self.port, self.qpn) < (peer.gid.0, peer.port, peer.qpn)
    }
}

/// The wires of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wires {
    /// RoCEv2, if it may be used.
    pub roce: Option<RoceEndpoint>,
    /// TCP, if it may be used.
    pub tcp: Option<TcpPart>,
    /// The end seals RoCEv2 packets, and says so here, because it has no part about TCP to say it in.
    pub sealed: Option<Encryption>,
}

impl Wires {
    /// What a policy leaves of the wires of an end that encrypts, or does not.
    pub fn allowed(self, policy: WirePolicy) -> Self {
        let tcp = self.tcp.filter(|_| policy.allows(Wire::Iwarp));
        let sealed = self.sealing().filter(|_| tcp.is_none());
        Self { roce: self.roce.filter(|_| policy.allows(Wire::Roce)), tcp, sealed }
    }

    /// How the end seals RoCEv2 packets, if it does.
    pub fn sealing(&self) -> Option<Encryption> {
        self.tcp.filter(|tcp| tcp.seals_packets).and_then(|tcp| tcp.encryption).or(self.sealed)
    }

    /// What the end adds to the encryption of a connection, on whichever wire.
    pub fn encryption(&self) -> Option<Encryption> {
        self.tcp.and_then(|tcp| tcp.encryption).or(self.sealed)
    }

    /// As the peer is told; `None` if there is no wire.
    pub fn to_endpoint(self) -> Option<Result<Endpoint, VerbsError>> {
        match (self.roce, self.tcp, self.sealed) {
            (Some(roce), Some(tcp), _) => Some(roce.to_endpoint_with(&[(KIND_TCP, &tcp.to_bytes())])),
            (Some(roce), None, Some(sealed)) => {
                let mut part = vec![if sealed.is_required { SEALED_REQUIRED } else { 0 }];
                part.extend(sealed.secret.0);
                Some(roce.to_endpoint_with(&[(KIND_SEALED, &part)]))
            }
            (Some(roce), None, None) => Some(Ok(roce.to_endpoint())),
            (None, Some(tcp), _) => Some(Endpoint::new([&[KIND_TCP][..], &tcp.to_bytes()].concat())),
            (None, None, _) => None,
        }
    }

    /// What a peer's bytes say, if they can be so.
    pub fn parse(endpoint: &Endpoint) -> Result<Self, VerbsError> {
        if let Some((&KIND_TCP, part)) = endpoint.as_bytes().split_first() {
            return Ok(Self { roce: None, tcp: Some(TcpPart::parse(part)?), sealed: None });
        }
        let roce = RoceEndpoint::parse(endpoint)?;
        let further = RoceEndpoint::further_wires(endpoint)?;
        let part = |wanted| further.iter().find(|(kind, _)| *kind == wanted).map(|(_, part)| *part);
        let tcp = part(KIND_TCP).map(TcpPart::parse).transpose()?;
        let sealed = part(KIND_SEALED).filter(|_| tcp.is_none()).map(sealed_part).transpose()?;
        Ok(Self { roce: Some(roce), tcp, sealed })
    }

    fn names(&self) -> String {
        let names = [self.roce.map(|_| "RoCEv2"), self.tcp.map(|_| "iWARP")];
        names.into_iter().flatten().collect::<Vec<_>>().join(" or ")
    }
}

/// The part of an end that seals RoCEv2 packets.
fn sealed_part(part: &[u8]) -> Result<Encryption, VerbsError> {
    let (value, length) = (part.len() as u64, 1 + SECRET_BYTES as u64);
    let wrong =
        || VerbsError::OutOfRange { what: "length of the part about sealed packets", value, min: length, max: length };
    let (flags, secret) = part.split_first().ok_or_else(wrong)?;
    let secret = Secret(secret.try_into().map_err(|_| wrong())?);
    Ok(Encryption { secret, is_required: flags & SEALED_REQUIRED != 0 })
}

/// What carries a connection between two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// RoCEv2: this end and the peer's.
    Roce(RoceEndpoint, RoceEndpoint),
    /// TCP: this end and the peer's.
    Tcp(TcpPart, TcpPart),
}

/// The wire that both ends choose, each by itself, and why: TCP if both prefer it, else RoCEv2 if both have it, else
/// what both have. Two ends that encrypt never choose a wire on which they cannot: else who lets nothing pass on the
/// other one could read what they send.
pub fn choose(own: &Wires, peer: &Wires) -> Result<(Choice, &'static str), VerbsError> {
    let roce = own.roce.zip(peer.roce).map(|(own, peer)| Choice::Roce(own, peer));
    let tcp = own.tcp.zip(peer.tcp);
    let preferred = tcp.map_or([false; 2], |(own, peer)| [own.is_preferred, peer.is_preferred]);
    let both_encrypt = tcp.is_some_and(|(own, peer)| own.encryption.is_some() && peer.encryption.is_some());
    let both_seal = own.sealing().is_some() && peer.sealing().is_some();
    let tcp = tcp.map(|(own, peer)| Choice::Tcp(own, peer));
    match (tcp, roce) {
        (Some(tcp), Some(_)) if both_encrypt && !both_seal => {
            Ok((tcp, "both ends encrypt, which they can over TCP alone"))
        }
        (Some(_), Some(roce)) if both_seal && !both_encrypt => {
            Ok((roce, "both ends encrypt, which they can over RoCEv2 alone"))
        }
        (Some(tcp), Some(roce)) => match preferred {
            [true, true] => Ok((tcp, "both ends are software NICs, which move bytes at least cost over TCP")),
            [false, _] => Ok((roce, "TCP to the peer's device did not come up, or was given up, lately")),
            [true, false] => Ok((roce, "the peer's device does not prefer TCP: it may not reach this one with it")),
        },
        (Some(tcp), None) if own.roce.is_none() => Ok((tcp, "this end is configured to use TCP alone")),
        (Some(tcp), None) => Ok((tcp, "the peer's end is configured to use TCP alone")),
        (None, Some(roce)) if own.tcp.is_none() => Ok((roce, "this end offers RoCEv2 alone")),
        (None, Some(roce)) => Ok((roce, "the peer's device offers RoCEv2 alone")),
        (None, None) => Err(VerbsError::NoCommonWire { own: own.names(), peer: peer.names() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roce() -> RoceEndpoint {
        RoceEndpoint {
            qp_type: verbs::QpType::Rc,
            qpn: Qpn(0x12_3456),
            psn: Psn::new(7),
            gid: Gid::from(IpAddr::from([10, 0, 0, 1])),
            udp_port: 4791,
            mtu: PathMtu::Mtu1024,
            max_rd_atomic: 16,
            rx_budget_bytes: 9,
        }
    }

    fn tcp(last: u8) -> TcpPart {
        TcpPart {
            qpn: Qpn(0x12_3456),
            gid: Gid::from(IpAddr::from([10, 0, 0, last])),
            port: 4791,
            token: Token([last; 16]),
            is_preferred: true,
            wants_crc: false,
            is_extended: true,
            confirms: true,
            fpdu_bytes: 0xfff0,
            max_rd_atomic: 16,
            mtu: PathMtu::Mtu2048,
            encryption: None,
            seals_packets: false,
        }
    }

    fn secret(last: u8, is_required: bool) -> TcpPart {
        TcpPart { encryption: Some(Encryption { secret: Secret([last; 32]), is_required }), ..tcp(last) }
    }

    #[test]
    fn ends_that_encrypt_agree_and_one_that_requires_it_refuses_the_others() {
        for part in [secret(3, false), secret(3, true)] {
            for roce in [Some(roce()), None] {
                let wires = Wires { roce, tcp: Some(part), sealed: None };
                assert_eq!(Wires::parse(&wires.to_endpoint().unwrap().unwrap()), Ok(wires));
            }
        }
        let is_encrypted = |own: TcpPart, peer: TcpPart| own.keys_with(&peer).map(|(keys, _)| keys.is_some());
        for required in [false, true] {
            assert_eq!(is_encrypted(secret(1, required), secret(2, false)), Ok(true));
            assert_eq!(is_encrypted(secret(1, required), tcp(2)).is_err(), required);
            assert_eq!(is_encrypted(tcp(1), secret(2, required)).is_err(), required);
        }
        assert_eq!(is_encrypted(tcp(1), tcp(2)), Ok(false));
        assert!(is_encrypted(secret(1, false), secret(1, false)).is_err(), "reflected");
        assert!(!format!("{:?}", secret(77, true)).contains("77, 77"));
    }

    #[test]
    fn ends_that_encrypt_choose_tcp_however_badly_it_comes_up() {
        let of = |tcp: TcpPart| Wires {
            roce: Some(roce()),
            tcp: Some(TcpPart { is_preferred: false, ..tcp }),
            sealed: None,
        };
        let is_tcp = |own: Wires, peer: Wires| matches!(choose(&own, &peer), Ok((Choice::Tcp(..), _)));
        assert!(is_tcp(of(secret(1, false)), of(secret(2, false))));
        assert!(!is_tcp(of(secret(1, false)), of(tcp(2))) && !is_tcp(of(tcp(1)), of(secret(2, false))));
        // Unless both seal RoCEv2 packets too. An end of an older release does not.
        let seals = |last| of(TcpPart { seals_packets: true, ..secret(last, false) });
        assert!(!is_tcp(seals(1), seals(2)));
        assert!(is_tcp(seals(1), of(secret(2, false))) && is_tcp(of(secret(1, false)), seals(2)));
    }

    #[test]
    fn an_end_that_seals_packets_says_so_in_the_part_about_tcp_or_in_one_of_its_own() {
        let encryption = Encryption { secret: Secret([5; 32]), is_required: true };
        let alone = Wires { roce: Some(roce()), tcp: None, sealed: Some(encryption) };
        let tcp = TcpPart { seals_packets: true, ..secret(5, true) };
        let with_tcp = Wires { roce: Some(roce()), tcp: Some(tcp), sealed: None };
        for wires in [alone, with_tcp, with_tcp.allowed(TCP), with_tcp.allowed(ROCE)] {
            let endpoint = wires.to_endpoint().unwrap().unwrap();
            assert_eq!(Wires::parse(&endpoint), Ok(wires));
            assert_eq!((wires.sealing(), wires.encryption()), (Some(encryption), Some(encryption)));
        }
        assert_eq!(with_tcp.allowed(ROCE), alone);
        let bytes = alone.to_endpoint().unwrap().unwrap().into_bytes();
        assert_eq!(bytes[34..], [&[6, 33, 1][..], &[5; 32]].concat());
        for cut in [vec![6, 0], [&[6, 32, 0][..], &[5; 31]].concat(), [&[6, 34, 0][..], &[5; 33]].concat()] {
            let bytes = [&bytes[..34], &cut[..]].concat();
            assert!(Wires::parse(&Endpoint::new(bytes).unwrap()).is_err(), "{cut:?}");
        }
        // The TCP part of an older release, whose secret is for TCP alone.
        assert_eq!(Wires { tcp: Some(secret(5, true)), ..with_tcp }.sealing(), None);
    }

    fn both(last: u8) -> Wires {
        Wires { roce: Some(roce()), tcp: Some(tcp(last)), sealed: None }
    }

    const ROCE: WirePolicy = WirePolicy::Only(Wire::Roce);
    const TCP: WirePolicy = WirePolicy::Only(Wire::Iwarp);

    #[test]
    fn each_set_of_wires_is_read_back() {
        for policy in [WirePolicy::Auto, ROCE, TCP] {
            let wires = both(3).allowed(policy);
            let endpoint = wires.to_endpoint().expect("a wire is left").unwrap();
            assert_eq!(Wires::parse(&endpoint), Ok(wires), "{policy}");
            // A device that knows RoCEv2 alone takes what it knows.
            assert_eq!(RoceEndpoint::parse(&endpoint).is_ok(), policy != TCP);
        }
        assert!(Wires { roce: None, tcp: None, sealed: None }.to_endpoint().is_none());
    }

    #[test]
    fn literal_bytes_of_the_tcp_part() {
        let wires = both(3).allowed(TCP);
        let bytes = wires.to_endpoint().unwrap().unwrap().into_bytes();
        let mut expected = vec![3, 0, 0x12, 0x34, 0x56];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 3, 0x12, 0xb7]);
        expected.extend([3; 16]);
        expected.extend([0b1101, 16, 0xff, 0xf0, 8, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = both(3).allowed(TCP).to_endpoint().unwrap().unwrap().into_bytes();
        let what = |at: usize, byte: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + byte.len()].copy_from_slice(byte);
            match Wires::parse(&Endpoint::new(bytes).unwrap()) {
                Err(VerbsError::OutOfRange { what, .. }) => what,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(what(1, &[1]), "QP number of the offer");
        assert_eq!(what(21, &[0, 0]), "TCP port of the offer");
        assert_eq!(what(41, &[0, 127]), "longest MULPDU of the offer");
        assert_eq!(what(43, &[8, 1]), "path MTU of the offer");
        for len in 1..128 {
            let mut bytes = good.clone();
            bytes.resize(len, 0);
            // 32 bytes more are a secret.
            let is_whole = len == good.len() || len == good.len() + SECRET_BYTES;
            assert_eq!(Wires::parse(&Endpoint::new(bytes).unwrap()).is_ok(), is_whole, "{len}");
        }
    }

    #[test]
    fn both_ends_choose_the_same() {
        let lazy = |last| Wires { tcp: Some(TcpPart { is_preferred: false, ..tcp(last) }), ..both(last) };
        let table = [
            (both(1), both(2), Some(Wire::Iwarp)),
            (both(1), lazy(2), Some(Wire::Roce)),
            (both(1), both(2).allowed(ROCE), Some(Wire::Roce)),
            (both(1), both(2).allowed(TCP), Some(Wire::Iwarp)),
            (lazy(1), lazy(2).allowed(TCP), Some(Wire::Iwarp)),
            (both(1).allowed(ROCE), both(2).allowed(TCP), None),
        ];
        for (a, b, expected) in table {
            for (own, peer) in [(a, b), (b, a)] {
                let chosen = choose(&own, &peer);
                match (&chosen, expected) {
                    (Ok((Choice::Roce(..), _)), Some(Wire::Roce)) => {}
                    (Ok((Choice::Tcp(o, p), _)), Some(Wire::Iwarp)) => {
                        assert_ne!(o.connects_to(p), p.connects_to(o), "one end connects");
                    }
                    (Err(VerbsError::NoCommonWire { .. }), None) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        let error = choose(&both(1).allowed(ROCE), &both(2).allowed(TCP)).unwrap_err().to_string();
        assert!(error.contains("RoCEv2") && error.contains("iWARP"), "{error}");
    }
}
