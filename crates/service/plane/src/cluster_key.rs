//! The cluster key: what makes two daemons trust each other. It must never be logged, sent or shown.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a key that a daemon makes; the least that is accepted.
pub const KEY_BYTES: usize = 32;
/// Longest key that is accepted.
pub const KEY_BYTES_MAX: usize = 1024;
/// Keys that a daemon has at a time: each is tried when another daemon dials.
pub const KEYS_MAX: usize = 8;

/// What the pre-shared key of control links is derived with.
const LINK_DOMAIN: &[u8] = b"raas control link 2\0";
/// What fingerprints are derived with.
const FINGERPRINT_DOMAIN: &[u8] = b"raas key fingerprint 1\0";

/// The secret that all daemons of a cluster have.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey(Vec<u8>);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

impl ClusterKey {
    /// A key of these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Eight hexadecimal digits by which people compare keys of different hosts. They tell nothing of a random key.
    pub fn fingerprint(&self) -> String {
        self.derive(FINGERPRINT_DOMAIN).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The pre-shared key of control links.
    pub(crate) fn link_psk(&self) -> [u8; 32] {
        self.derive(LINK_DOMAIN)
    }

    fn derive(&self, domain: &[u8]) -> [u8; 32] {
        // A key of HMAC may have any length, so this cannot fail; and if it did, no two daemons would agree.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return [0; 32] };
        mac.update(domain);
        mac.finalize().into_bytes().into()
    }
}

/// The keys of a daemon: it dials with the first, and accepts all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    first: ClusterKey,
    further: Arc<[ClusterKey]>,
}

impl ClusterKeys {
    /// One key.
    pub fn one(key: ClusterKey) -> Self {
        Self { first: key, further: Arc::from([]) }
    }

    /// The key to dial with, and those that are accepted beside it; of all of them the first [`KEYS_MAX`].
    pub fn new(first: ClusterKey, mut further: Vec<ClusterKey>) -> Self {
        further.retain(|key| *key != first);
        further.truncate(KEYS_MAX - 1);
        Self { first, further: further.into() }
    }

    /// The key to dial with.
    pub fn dialing(&self) -> &ClusterKey {
        &self.first
    }

    /// All that are accepted, the one to dial with first.
    pub fn accepted(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.first).chain(self.further.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinguished_by_fingerprint_and_by_use() {
        let keys = [1, 2].map(|n| ClusterKey::new(vec![n; 32]));
        assert_ne!(keys[0].fingerprint(), keys[1].fingerprint());
        assert_eq!(keys[0].fingerprint().len(), 8);
        assert_ne!(keys[0].link_psk(), keys[1].link_psk());
        assert_ne!(keys[0].link_psk(), keys[0].derive(FINGERPRINT_DOMAIN));
        assert_eq!(format!("{:?}", keys[0]), "ClusterKey(..)");
    }

    #[test]
    fn the_first_key_dials_and_there_are_at_most_eight() {
        let key = |n: u8| ClusterKey::new(vec![n; 32]);
        let keys = ClusterKeys::new(key(0), (0..20).map(key).collect());
        assert_eq!(keys.dialing(), &key(0));
        let accepted: Vec<_> = keys.accepted().cloned().collect();
        assert_eq!(accepted, (0..8).map(key).collect::<Vec<_>>());
        assert_eq!(ClusterKeys::one(key(3)).accepted().count(), 1);
    }
}
