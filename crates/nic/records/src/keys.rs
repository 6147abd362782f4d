//! The keys of one connection: one for each direction, from the secrets of both ends.
//!
//! Owns how they are derived. It must never give both directions the same key, nor show one.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::record_key::RecordKey;
use crate::{Opener, RecordLimit, Sealer};

/// Bytes of an end's secret.
pub const SECRET_BYTES: usize = 32;
/// What keys of streams over TCP are derived with.
const DOMAIN: &[u8] = b"raas tcp records 2\0";

/// What an end adds to the keys of one connection: random bytes that went to the other end over an encrypted channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_BYTES]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The part of a packet's nonce that is not the number.
pub(crate) type Salt = [u8; 4];

/// What the keys of the own and of the peer's direction follow from. None if both ends claim the same secret.
pub(crate) fn directions(own: &Secret, peer: &Secret, domain: &[u8]) -> Option<([u8; 32], [u8; 32])> {
    if own == peer {
        return None;
    }
    let mut both = [own.0, peer.0];
    both.sort_unstable();
    let of = |sender: &Secret| derived(&both.concat(), &[domain, &sender.0]);
    of(own).zip(of(peer))
}

/// HMAC-SHA256. A key of it may have any length, so there always is one.
pub(crate) fn derived(key: &[u8], parts: &[&[u8]]) -> Option<[u8; 32]> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    Some(mac.finalize().into_bytes().into())
}

/// Both directions of a connection, as one end uses them.
#[derive(Debug)]
pub struct Keys {
    /// What this end sends.
    pub sealer: Sealer,
    /// What the other end sends.
    pub opener: Opener,
}

impl Keys {
    /// The keys of the connection between two ends; none if both claim the same secret, since then the two directions
    /// would have the same key.
    pub fn new(own: &Secret, peer: &Secret) -> Option<Self> {
        let (own, peer) = directions(own, peer, DOMAIN)?;
        let of = |derived: [u8; 32]| {
            let (key, rest) = derived.split_first_chunk()?;
            Some(RecordKey { key: *key, iv: *rest.first_chunk()? })
        };
        let (own, peer) = of(own).zip(of(peer))?;
        Some(Self { sealer: Sealer::new(own), opener: Opener::new(peer) })
    }

    /// With another limit for both directions.
    #[must_use]
    pub fn limited(mut self, limit: RecordLimit) -> Self {
        self.sealer.limit = limit;
        self.opener.limit = limit;
        self
    }
}
