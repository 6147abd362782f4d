//! Packets that come one by one, in any order, or not at all: each is sealed by itself, with its number in it.
//!
//! ```text
//! head, in the clear (12 bytes) | number (8) | body, encrypted | tag (16)
//! ```
//!
//! Owns the numbers of both directions, the keys that follow from them, and what came already. It must never seal two
//! packets with one key and number, nor give out a body that the other end did not send, or gave out before.

use crate::TAG_BYTES;
use crate::cipher::Cipher;
use crate::keys::{Salt, Secret, derived, directions};
use crate::window::{Known, ReplayWindow};

/// Bytes in the clear in front of a packet's number; they are authenticated.
pub const PACKET_HEAD_BYTES: usize = 12;
/// Bytes of a packet's number, big-endian.
pub const PACKET_NUMBER_BYTES: usize = 8;
/// What sealing adds to head and body.
pub const PACKET_SEAL_BYTES: usize = PACKET_NUMBER_BYTES + TAG_BYTES;
/// Packets under one key. Afterwards both ends go on with the next one, which follows from the same secrets. The longest
/// packets have 260 blocks of the cipher, so one key encrypts at most 2^34.1 of them: no more than TLS 1.3 allows it
/// (2^34.5: RFC 8446, 5.5), nor QUIC (2^35: RFC 9001, B.1.1).
pub const PACKETS_PER_KEY: u64 = 1 << 26;

/// Where the body begins.
const BODY_AT: usize = PACKET_HEAD_BYTES + PACKET_NUMBER_BYTES;

/// What keys are for. The same secrets give other keys for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The packets of one connection.
    Connection,
    /// The datagrams beside it.
    Datagrams,
}

impl Purpose {
    const fn domain(self) -> &'static [u8] {
        match self {
            Self::Connection => b"raas roce packets 2\0",
            Self::Datagrams => b"raas datagrams 2\0",
        }
    }
}

/// Both directions between two ends, as one of them uses them.
#[derive(Debug)]
pub struct PacketKeys {
    /// What this end sends.
    pub sealer: PacketSealer,
    /// What the other end sends.
    pub opener: PacketOpener,
}

impl PacketKeys {
    /// The keys of two ends; none if both claim the same secret, since then the two directions would have the same key.
    /// Two secrets are for one call: a second one would begin with the same numbers under the same keys.
    pub fn new(own: &Secret, peer: &Secret, purpose: Purpose) -> Option<Self> {
        let (own, peer) = directions(own, peer, purpose.domain())?;
        Some(Self { sealer: PacketSealer::new(own)?, opener: PacketOpener::new(peer)? })
    }
}

/// A direction's secret and the key of the numbers from one multiple of [`PACKETS_PER_KEY`] on.
struct Direction {
    secret: [u8; 32],
    epoch: u64,
    key: Cipher,
    salt: Salt,
}

impl Direction {
    fn new(secret: [u8; 32], epoch: u64) -> Option<Self> {
        let (key, salt) = key_of(&secret, epoch)?;
        Some(Self { secret, epoch, key, salt })
    }

    /// For this number. None: HMAC does not work.
    fn at(&mut self, number: u64) -> Option<(&Cipher, Salt)> {
        let epoch = number / PACKETS_PER_KEY;
        if epoch != self.epoch {
            *self = Self::new(self.secret, epoch)?;
        }
        Some((&self.key, self.salt))
    }
}

/// The nonce of a packet: its direction's salt and its number, which is never used twice.
fn nonce(salt: Salt, number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

fn key_of(secret: &[u8; 32], epoch: u64) -> Option<(Cipher, Salt)> {
    let derived = derived(secret, &[&epoch.to_be_bytes()])?;
    let (key, rest) = derived.split_first_chunk()?;
    Some((Cipher::new(key), *rest.first_chunk()?))
}

/// Seals the packets of one direction.
pub struct PacketSealer {
    direction: Direction,
    number: u64,
}

impl std::fmt::Debug for PacketSealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSealer").field("number", &self.number).finish_non_exhaustive()
    }
}

impl PacketSealer {
    fn new(secret: [u8; 32]) -> Option<Self> {
        Some(Self { direction: Direction::new(secret, 0)?, number: 0 })
    }

    /// The number of the next packet.
    pub fn next_number(&self) -> u64 {
        self.number
    }

    /// Seals a packet where it lies: its head, room for its number, its body, and room for its tag. False if it has no
    /// room for these, or all numbers are used: then nothing of it may be sent.
    #[must_use]
    pub fn seal(&mut self, packet: &mut [u8]) -> bool {
        self.seal_parts(packet).is_some()
    }

    fn seal_parts(&mut self, packet: &mut [u8]) -> Option<()> {
        let (head, rest) = packet.split_first_chunk_mut::<BODY_AT>()?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        let number = self.number;
        self.number = number.checked_add(1)?;
        head[PACKET_HEAD_BYTES..].copy_from_slice(&number.to_be_bytes());
        let (key, salt) = self.direction.at(number)?;
        *tag = key.seal(nonce(salt, number), head, body)?;
        Some(())
    }
}

/// Why a packet is not taken. It is as if the network had lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketRefused {
    /// It is shorter than head, number and tag.
    #[error("a sealed packet of {bytes} bytes is too short")]
    Short {
        /// Its length.
        bytes: usize,
    },
    /// It came before.
    #[error("packet {number} came before")]
    Repeated {
        /// Its number.
        number: u64,
    },
    /// It is so late that nothing remembers whether it came before.
    #[error("packet {number} is more than {max} numbers late", max = crate::REPLAY_WINDOW_PACKETS)]
    Stale {
        /// Its number.
        number: u64,
    },
    /// The other end did not send it: it was made, changed, or is of another connection.
    #[error("packet {number} is not what the peer sent")]
    Forged {
        /// The number that it claims.
        number: u64,
    },
}

/// Opens the packets of one direction.
pub struct PacketOpener {
    direction: Direction,
    window: ReplayWindow,
}

impl std::fmt::Debug for PacketOpener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketOpener").finish_non_exhaustive()
    }
}

impl PacketOpener {
    fn new(secret: [u8; 32]) -> Option<Self> {
        Some(Self { direction: Direction::new(secret, 0)?, window: ReplayWindow::new() })
    }

    /// Puts the body of a packet into `body`, whose content is replaced and worth nothing if the packet is refused. A
    /// packet that is refused changes nothing here.
    pub fn open(&mut self, packet: &[u8], body: &mut Vec<u8>) -> Result<(), PacketRefused> {
        let bytes = packet.len();
        let short = PacketRefused::Short { bytes };
        let (head, rest) = packet.split_first_chunk::<BODY_AT>().ok_or(short)?;
        let (sealed, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(short)?;
        let number = head.last_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        self.window.check(number).map_err(|known| match known {
            Known::Repeated => PacketRefused::Repeated { number },
            Known::Stale => PacketRefused::Stale { number },
        })?;
        body.clear();
        body.extend_from_slice(sealed);
        if !self.opens(number, head, body, *tag) {
            return Err(PacketRefused::Forged { number });
        }
        self.window.mark(number);
        Ok(())
    }

    /// Only an authentic packet moves on to another key, so that numbers of others do not take the present one away.
    fn opens(&mut self, number: u64, head: &[u8], body: &mut [u8], tag: [u8; TAG_BYTES]) -> bool {
        let epoch = number / PACKETS_PER_KEY;
        if epoch == self.direction.epoch {
            return self.direction.key.open(nonce(self.direction.salt, number), head, body, tag);
        }
        let Some(other) = Direction::new(self.direction.secret, epoch) else { return false };
        let is_authentic = other.key.open(nonce(other.salt, number), head, body, tag);
        if is_authentic && epoch > self.direction.epoch {
            self.direction = other;
        }
        is_authentic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (PacketKeys, PacketKeys) {
        let (a, b) = (Secret([1; 32]), Secret([2; 32]));
        let of = |own, peer| PacketKeys::new(own, peer, Purpose::Connection).unwrap();
        (of(&a, &b), of(&b, &a))
    }

    fn packet(sealer: &mut PacketSealer) -> Vec<u8> {
        let mut out = [&[7; PACKET_HEAD_BYTES][..], &[0; PACKET_NUMBER_BYTES], b"body", &[0; TAG_BYTES]].concat();
        assert!(sealer.seal(&mut out));
        out
    }

    /// The keys change, late packets of the key before are taken, and forged numbers change nothing.
    #[test]
    fn keys_follow_each_other_and_numbers_never_begin_again() {
        let (mut a, mut b) = ends();
        let mut body = Vec::new();
        a.sealer.number = PACKETS_PER_KEY - 2;
        let packets: Vec<Vec<u8>> = (0..4).map(|_| packet(&mut a.sealer)).collect();
        let mut forged = packets[0].clone();
        forged[PACKET_HEAD_BYTES] = 0xff;
        assert!(matches!(b.opener.open(&forged, &mut body), Err(PacketRefused::Forged { .. })));
        assert_eq!(b.opener.direction.epoch, 0);
        for at in [0, 2, 1, 3] {
            assert_eq!(b.opener.open(&packets[at], &mut body), Ok(()), "{at}");
            assert_eq!(body, b"body");
        }
        assert_eq!((a.sealer.direction.epoch, b.opener.direction.epoch), (1, 1));
        let keys = |epoch| key_of(&[9; 32], epoch).unwrap();
        let mut same = [[0; 16]; 2];
        let tags: Vec<_> = (0..2).map(|e| keys(e).0.seal([0; 12], &[], &mut same[e as usize])).collect();
        assert!(same[0] != same[1] && tags[0] != tags[1], "each epoch has a key of its own");
        // A direction that stood still for long is taken up again.
        a.sealer.number = 77 * PACKETS_PER_KEY + 5;
        assert_eq!(b.opener.open(&packet(&mut a.sealer), &mut body), Ok(()));
        assert_eq!(b.opener.open(&packets[0], &mut body), Err(PacketRefused::Stale { number: PACKETS_PER_KEY - 2 }));
    }

    /// With a path MTU of 4096 and the longest headers: BTH, AETH or RETH, an atomic's, DETH, and padding.
    #[test]
    fn no_key_encrypts_more_blocks_than_a_key_of_tls() {
        let blocks = (4096 + 12 + 16 + 28 + 8 + 4_u64).div_ceil(16);
        let of_tls = crate::RECORDS_PER_KEY * (crate::RECORD_BYTES_MAX as u64 / 16);
        assert!(PACKETS_PER_KEY * blocks <= of_tls, "{blocks} blocks each");
    }

    #[test]
    fn at_the_end_of_all_numbers_nothing_is_sealed_any_more() {
        let (mut a, mut b) = ends();
        a.sealer.number = u64::MAX - 1;
        let last = packet(&mut a.sealer);
        assert_eq!(b.opener.open(&last, &mut Vec::new()), Ok(()));
        for _ in 0..2 {
            assert!(!a.sealer.seal(&mut last.clone()));
        }
    }
}
