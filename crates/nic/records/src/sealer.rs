//! The sending direction: bytes of a stream become records.

use crate::cipher::Cipher;
use crate::record_key::RecordKey;
use crate::{
    APPLICATION_DATA, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RECORD_START, RECORD_TAIL_BYTES, RecordLimit, TAG_BYTES,
};

/// Why a record is not sealed: nothing was done, and the connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// It has no room for head and tail, or carries too little or too much.
    #[error("a record of {bytes} bytes with head and tail; it carries 1 to {RECORD_BYTES_MAX} of the stream")]
    Length {
        /// Its bytes.
        bytes: usize,
    },
    /// The key has protected as many records as it may.
    #[error("all {most} records that one key may protect are sealed: the connection has to be made anew")]
    KeyUsedUp {
        /// So many.
        most: u64,
    },
    /// Somebody else seals the direction.
    #[error("the direction was handed over, and is sealed elsewhere")]
    HandedOver,
}

/// Seals the bytes of one direction. Each record has the next number.
pub struct Sealer {
    key: RecordKey,
    cipher: Cipher,
    number: u64,
    is_handed_over: bool,
    pub(crate) limit: RecordLimit,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(key: RecordKey) -> Self {
        Self { cipher: key.cipher(), key, number: 0, is_handed_over: false, limit: RecordLimit::default() }
    }

    /// Leaves the direction to somebody who begins at record 0 with its key, such as a kernel; whether he took it. Then
    /// nothing is sealed here any more. He is not asked once a record was sealed here: he would use its number again.
    pub fn hand_over(&mut self, takes: impl FnOnce(&RecordKey) -> bool) -> bool {
        let is_taken = self.number == 0 && !self.is_handed_over && takes(&self.key);
        self.is_handed_over |= is_taken;
        is_taken
    }

    /// How many records were sealed here.
    pub fn sealed(&self) -> u64 {
        self.number
    }

    /// How many may be.
    pub fn limit(&self) -> RecordLimit {
        self.limit
    }

    /// Encrypts a record where it lies: room for its head, 1 to [`RECORD_BYTES_MAX`] bytes of the stream, and room for
    /// its tail.
    pub fn seal(&mut self, record: &mut [u8]) -> Result<(), SealError> {
        if self.is_handed_over {
            return Err(SealError::HandedOver);
        }
        if self.number >= self.limit.most() {
            return Err(SealError::KeyUsedUp { most: self.limit.most() });
        }
        let bytes = record.len();
        self.seal_parts(record).ok_or(SealError::Length { bytes })
    }

    fn seal_parts(&mut self, record: &mut [u8]) -> Option<()> {
        let (head, rest) = record.split_first_chunk_mut::<RECORD_HEAD_BYTES>()?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        let (content, stream) = body.split_last_mut()?;
        if !(1..=RECORD_BYTES_MAX).contains(&stream.len()) {
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
