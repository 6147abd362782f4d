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

    /// Begins a record at the end of `out`, behind which the caller puts 1 to [`RECORD_BYTES_MAX`] bytes of the stream.
    /// [`Self::finish`] takes what this returns.
    pub fn begin(out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend([0; LENGTH_BYTES]);
        start
    }

    /// Encrypts the record that begins at `start`. False if it is empty or too long, or all numbers are used: then it is
    /// taken back, and the connection has to end.
    #[must_use]
    pub fn finish(&mut self, out: &mut Vec<u8>, start: usize) -> bool {
        let sealed = self.seal(out, start).is_some();
        if !sealed {
            out.truncate(start);
        }
        sealed
    }

    fn seal(&mut self, out: &mut Vec<u8>, start: usize) -> Option<()> {
        let (head, body) = out.get_mut(start..)?.split_first_chunk_mut::<LENGTH_BYTES>()?;
        if !(1..=RECORD_BYTES_MAX).contains(&body.len()) || self.number == u64::MAX {
            return None;
        }
        *head = u16::try_from(body.len() + TAG_BYTES).ok()?.to_be_bytes();
        let nonce = nonce(self.salt, self.number);
        let tag = self.key.seal(nonce, head, body)?;
        self.number += 1;
        out.extend_from_slice(&tag);
        Some(())
    }
}
