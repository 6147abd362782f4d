//! The sending direction: bytes of a stream become records.

use crate::cipher::Cipher;
use crate::{LENGTH_BYTES, RECORD_BYTES_MAX, TAG_BYTES, nonce};

/// Seals the bytes of one direction. Each record has the next number.
pub struct Sealer {
    key: Cipher,
    salt: [u8; 4],
    number: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(key: Cipher, salt: [u8; 4]) -> Self {
        Self { key, salt, number: 0 }
    }

    /// Encrypts a record where it lies: room for its length, 1 to [`RECORD_BYTES_MAX`] bytes of the stream, and room for
    /// its tag. False if it is empty or too long, or all numbers are used: then nothing was done, and the connection has
    /// to end.
    #[must_use]
    pub fn seal(&mut self, record: &mut [u8]) -> bool {
        self.seal_parts(record).is_some()
    }

    fn seal_parts(&mut self, record: &mut [u8]) -> Option<()> {
        let (head, rest) = record.split_first_chunk_mut::<LENGTH_BYTES>()?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        if !(1..=RECORD_BYTES_MAX).contains(&body.len()) || self.number == u64::MAX {
            return None;
        }
        *head = u16::try_from(body.len() + TAG_BYTES).ok()?.to_be_bytes();
        let nonce = nonce(self.salt, self.number);
        *tag = self.key.seal(nonce, head, body)?;
        self.number += 1;
        Some(())
    }
}
