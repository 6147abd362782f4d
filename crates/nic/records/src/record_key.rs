//! The key of one direction's records, and their nonces.

use crate::cipher::{Cipher, KEY_BYTES};

/// Bytes of the initialization vector of a direction.
const IV_BYTES: usize = 12;

/// What protects the records of one direction: the "traffic key" and its IV of RFC 8446 (7.3).
#[derive(Clone, PartialEq, Eq)]
pub struct RecordKey {
    /// Of AES-128-GCM.
    pub key: [u8; KEY_BYTES],
    /// The nonce of a record is this, exclusive or the record's number.
    pub iv: [u8; IV_BYTES],
}

impl std::fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordKey(..)")
    }
}

impl RecordKey {
    pub(crate) fn cipher(&self) -> Cipher {
        Cipher::new(&self.key)
    }

    /// The nonce of a record (RFC 8446, 5.3). No number is used twice.
    pub(crate) fn nonce(&self, number: u64) -> [u8; IV_BYTES] {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[IV_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        nonce
    }
}
