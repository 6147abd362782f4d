//! The cluster key: what makes two daemons trust each other. It must never be logged, sent or shown.

use std::fmt;

/// Bytes of a key that a daemon makes; the least that is accepted.
pub const KEY_BYTES: usize = 32;
/// Longest key that is accepted.
pub const KEY_BYTES_MAX: usize = 1024;

/// The secret that all daemons of a cluster have.
#[derive(Clone)]
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

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
