//! The sending direction: bytes of a stream become records.

use crate::cipher::Cipher;
use crate::record_key::RecordKey;
use crate::{APPLICATION_DATA, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RECORD_START, RECORD_TAIL_BYTES, TAG_BYTES};

/// The number that no record has.
const NO_NUMBER: u64 = u64::MAX;

/// Seals the bytes of one direction. Each record has the next number.
pub struct Sealer {
    key: RecordKey,
    cipher: Cipher,
    number: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(key: RecordKey) -> Self {
        Self { cipher: key.cipher(), key, number: 0 }
    }

    /// Leaves the direction to somebody who begins at record 0 with its key, such as a kernel; whether he took it. Then
    /// nothing is sealed here any more. He is not asked once a record was sealed here: he would use its number again.
    pub fn hand_over(&mut self, takes: impl FnOnce(&RecordKey) -> bool) -> bool {
        let is_taken = self.number == 0 && takes(&self.key);
        if is_taken {
            self.number = NO_NUMBER;
        }
        is_taken
    }

    /// Encrypts a record where it lies: room for its head, 1 to [`RECORD_BYTES_MAX`] bytes of the stream, and room for
    /// its tail. False if it is empty or too long, all numbers are used, or the direction was handed over: then nothing
    /// was done, and the connection has to end.
    #[must_use]
    pub fn seal(&mut self, record: &mut [u8]) -> bool {
        self.seal_parts(record).is_some()
    }

    fn seal_parts(&mut self, record: &mut [u8]) -> Option<()> {
        let (head, rest) = record.split_first_chunk_mut::<RECORD_HEAD_BYTES>()?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        let (content, stream) = body.split_last_mut()?;
        if !(1..=RECORD_BYTES_MAX).contains(&stream.len()) || self.number == NO_NUMBER {
            return None;
        }
        let length = u16::try_from(stream.len() + RECORD_TAIL_BYTES).ok()?;
        *content = APPLICATION_DATA;
        head[..RECORD_START.len()].copy_from_slice(&RECORD_START);
        head[RECORD_START.len()..].copy_from_slice(&length.to_be_bytes());
        *tag = self.cipher.seal(self.key.nonce(self.number), head, body)?;
        self.number += 1;
        Some(())
    }
}
