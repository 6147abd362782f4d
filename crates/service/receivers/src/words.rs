//! What is said to receivers and by them: fixed places in a few bytes, because both are read and written where nothing
//! may be allocated.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

/// Bytes of a message to a spawner or a receiver.
pub(crate) const ORDER_BYTES: usize = 8;
/// Bytes of an answer of a receiver.
pub(crate) const ANSWER_BYTES: usize = 88;
const END_BYTES: usize = 27;

/// What a message of a program may bring along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory of a memfd, which the daemon gets.
    Memory,
    /// A connected TCP socket, of which the daemon gets the addresses.
    Socket,
}

/// What came with a message, with the type that holds memory.
#[derive(Debug)]
pub enum Verdict<M = OwnedFd> {
    /// A descriptor that has seals, so a file in memory, whose seals are to be judged.
    Memory(M),
    /// A connected TCP socket.
    Socket(SocketEnds),
    /// Something else, which was closed.
    Other,
    /// More than one descriptor; all were closed.
    TooMany,
    /// The descriptor was lost, because the daemon or the receiver may open no more.
    NoRoom,
    /// Nothing, or there is no message any more.
    Nothing,
}

impl<M> Verdict<M> {
    /// The same, with memory held by something else.
    pub fn held_by<N>(self, hold: impl FnOnce(M) -> N) -> Verdict<N> {
        match self {
            Self::Memory(memory) => Verdict::Memory(hold(memory)),
            Self::Socket(ends) => Verdict::Socket(ends),
            Self::Other => Verdict::Other,
            Self::TooMany => Verdict::TooMany,
            Self::NoRoom => Verdict::NoRoom,
            Self::Nothing => Verdict::Nothing,
        }
    }
}

/// Where a TCP connection goes, by the kernel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketEnds {
    /// The end whose socket it is.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The network namespace (`SO_NETNS_COOKIE`); none on a kernel that does not say.
    pub namespace: Option<u64>,
}

/// What a receiver took of a program's socket.
#[derive(Debug)]
pub struct Taken {
    /// The place of the program.
    pub place: u32,
    /// What came with it.
    pub verdict: Verdict,
}

/// To a spawner or a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// To a spawner: make a receiver for the socket that comes with it.
    Spawn(u32),
    /// To a spawner: kill a receiver.
    Kill(u32),
    /// To a receiver: have the socket of a program, which comes with it.
    Hold(u32),
    /// To a receiver: close it.
    Release(u32),
    /// To a receiver: take the next message of a program, which may bring this along.
    Take(u32, Kind),
}

impl Order {
    pub(crate) fn bytes(self) -> [u8; ORDER_BYTES] {
        let (code, place) = match self {
            Self::Spawn(place) => (0_u32, place),
            Self::Kill(place) => (1, place),
            Self::Hold(place) => (2, place),
            Self::Release(place) => (3, place),
            Self::Take(place, Kind::Memory) => (4, place),
            Self::Take(place, Kind::Socket) => (5, place),
        };
        let mut bytes = [0; ORDER_BYTES];
        bytes[..4].copy_from_slice(&code.to_le_bytes());
        bytes[4..].copy_from_slice(&place.to_le_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (code, place) = bytes.split_first_chunk::<4>()?;
        let place = u32::from_le_bytes(place.try_into().ok()?);
        Some(match u32::from_le_bytes(*code) {
            0 => Self::Spawn(place),
            1 => Self::Kill(place),
            2 => Self::Hold(place),
            3 => Self::Release(place),
            4 => Self::Take(place, Kind::Memory),
            5 => Self::Take(place, Kind::Socket),
            _ => return None,
        })
    }
}

/// The head of a receiver's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Memory,
    Socket(SocketEnds),
    Other,
    TooMany,
    NoRoom,
    Nothing,
}

impl Head {
    pub(crate) fn bytes(self, place: u32) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&place.to_le_bytes());
        bytes[4] = match self {
            Self::Memory => 0,
            Self::Socket(ends) => {
                bytes[5..13].copy_from_slice(&ends.namespace.unwrap_or(0).to_le_bytes());
                bytes[13] = u8::from(ends.namespace.is_some());
                write_end(&mut bytes[14..14 + END_BYTES], ends.local);
                write_end(&mut bytes[14 + END_BYTES..14 + 2 * END_BYTES], ends.peer);
                1
            }
            Self::Other => 2,
            Self::TooMany => 3,
            Self::NoRoom => 4,
            Self::Nothing => 5,
        };
        bytes
    }

    /// The place and the head.
    pub(crate) fn read(bytes: &[u8]) -> Option<(u32, Self)> {
        let bytes: &[u8; ANSWER_BYTES] = bytes.first_chunk()?;
        let place = u32::from_le_bytes(*bytes.first_chunk()?);
        let head = match bytes[4] {
            0 => Self::Memory,
            1 => {
                let namespace = u64::from_le_bytes(bytes[5..13].try_into().ok()?);
                Self::Socket(SocketEnds {
                    namespace: (bytes[13] == 1).then_some(namespace),
                    local: read_end(&bytes[14..14 + END_BYTES])?,
                    peer: read_end(&bytes[14 + END_BYTES..14 + 2 * END_BYTES])?,
                })
            }
            2 => Self::Other,
            3 => Self::TooMany,
            4 => Self::NoRoom,
            5 => Self::Nothing,
            _ => return None,
        };
        Some((place, head))
    }
}

fn write_end(bytes: &mut [u8], end: SocketAddr) {
    let (ip, scope, flow) = match end {
        SocketAddr::V4(end) => (end.ip().to_ipv6_mapped(), 0, 0),
        SocketAddr::V6(end) => (*end.ip(), end.scope_id(), end.flowinfo()),
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..18].copy_from_slice(&end.port().to_le_bytes());
    bytes[18..22].copy_from_slice(&scope.to_le_bytes());
    bytes[22..26].copy_from_slice(&flow.to_le_bytes());
    bytes[26] = u8::from(end.is_ipv4());
}

fn read_end(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes: &[u8; END_BYTES] = bytes.try_into().ok()?;
    let ip = Ipv6Addr::from(*bytes.first_chunk::<16>()?);
    let port = u16::from_le_bytes([bytes[16], bytes[17]]);
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Some(match bytes[26] {
        1 => SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped()?), port),
        _ => SocketAddrV6::new(ip, port, word(22), word(18)).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_are_read_as_they_were_written() {
        let orders = [
            Order::Spawn(1),
            Order::Kill(u32::MAX),
            Order::Hold(3),
            Order::Release(4),
            Order::Take(5, Kind::Memory),
            Order::Take(6, Kind::Socket),
        ];
        assert!(orders.iter().all(|order| Order::read(&order.bytes()) == Some(*order)));
        assert_eq!((Order::read(&[9; ORDER_BYTES]), Order::read(&[0; 7])), (None, None));
        let mapped = "[::ffff:10.0.0.1]:7".parse().unwrap();
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 5, 3).into();
        let four = "10.0.0.1:80".parse().unwrap();
        let heads = [
            Head::Memory,
            Head::Other,
            Head::TooMany,
            Head::NoRoom,
            Head::Nothing,
            Head::Socket(SocketEnds { local: mapped, peer: scoped, namespace: Some(0) }),
            Head::Socket(SocketEnds { local: four, peer: four, namespace: None }),
        ];
        assert!(heads.iter().all(|head| Head::read(&head.bytes(7)) == Some((7, *head))));
        assert_eq!((Head::read(&[9; ANSWER_BYTES]), Head::read(&[0; 20])), (None, None));
    }
}
