//! The receiving direction: records become bytes of a stream.
//!
//! Owns what came and is no whole record, and what was opened and not taken. It must never give out a byte of a record
//! that is not authentic, whole and in its turn, nor hold more than one record and what was read with it.

use crate::cipher::Cipher;
use crate::{LENGTH_BYTES, RECORD_BYTES_MAX, TAG_BYTES, nonce};

/// Bytes asked of the socket at a time: of a peer that has much to say, four whole records, so that no part of one is left
/// to be moved.
const READ_BYTES: usize = 4 * (LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES);

/// The stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Its length is none that a peer writes.
    #[error("record {number} says that it has {bytes} bytes; 17 to {max} are allowed", max = RECORD_BYTES_MAX + TAG_BYTES)]
    Length {
        /// Which record.
        number: u64,
        /// What it says.
        bytes: usize,
    },
    /// It was changed, repeated, left out or reordered.
    #[error("record {number} ({bytes} bytes) is not what the peer sent: somebody between the hosts changed the stream")]
    Forged {
        /// Which record was due.
        number: u64,
        /// Its bytes.
        bytes: usize,
    },
    /// The stream ended within a record.
    #[error("the stream ends within record {number}")]
    Cut {
        /// Which record.
        number: u64,
    },
}

/// Opens the records of one direction, which have the numbers 0, 1, 2 and so on.
pub struct Opener {
    key: Cipher,
    salt: [u8; 4],
    number: u64,
    buffer: Vec<u8>,
    /// Bytes of the stream that were opened and not taken: this range of the buffer.
    opened: (usize, usize),
    /// Where the next record begins in the buffer.
    next: usize,
    /// End of what came from the socket.
    filled: usize,
    fault: Option<RecordError>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Opener {
    pub(crate) fn new(key: Cipher, salt: [u8; 4]) -> Self {
        Self { key, salt, number: 0, buffer: Vec::new(), opened: (0, 0), next: 0, filled: 0, fault: None }
    }

    /// Bytes of the stream that wait to be taken.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.opened.0..self.opened.1).unwrap_or(&[])
    }

    /// So many of [`Self::bytes`] were taken.
    pub fn consume(&mut self, bytes: usize) {
        self.opened.0 = (self.opened.0 + bytes).min(self.opened.1);
    }

    /// Room for what comes from the socket, to be called when [`Self::bytes`] is empty.
    pub fn room(&mut self) -> &mut [u8] {
        if self.bytes().is_empty() && self.next > 0 {
            self.buffer.copy_within(self.next..self.filled, 0);
            self.filled -= self.next;
            (self.opened, self.next) = ((0, 0), 0);
        }
        if self.buffer.len() < self.filled + READ_BYTES {
            self.buffer.resize(self.filled + READ_BYTES, 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// So many bytes of [`Self::room`] were filled.
    pub fn fill(&mut self, bytes: usize) {
        self.filled = (self.filled + bytes).min(self.buffer.len());
    }

    /// Opens the next record if all of it is there, and none that was opened waits. True: [`Self::bytes`] has some.
    pub fn open(&mut self) -> Result<bool, RecordError> {
        if !self.bytes().is_empty() {
            return Ok(true);
        }
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        self.open_next().inspect_err(|fault| self.fault = Some(*fault))
    }

    fn open_next(&mut self) -> Result<bool, RecordError> {
        let (number, start) = (self.number, self.next);
        let came = self.buffer.get_mut(start..self.filled).unwrap_or(&mut []);
        let Some((head, rest)) = came.split_first_chunk_mut::<LENGTH_BYTES>() else { return Ok(false) };
        let bytes = usize::from(u16::from_be_bytes(*head));
        if !(TAG_BYTES + 1..=RECORD_BYTES_MAX + TAG_BYTES).contains(&bytes) {
            return Err(RecordError::Length { number, bytes });
        }
        let Some((body, tag)) = rest.get_mut(..bytes).and_then(|record| record.split_last_chunk_mut::<TAG_BYTES>())
        else {
            return Ok(false);
        };
        let nonce = nonce(self.salt, number);
        if !self.key.open(nonce, head, body, *tag) {
            return Err(RecordError::Forged { number, bytes });
        }
        let first = start + LENGTH_BYTES;
        self.number += 1;
        (self.opened, self.next) = ((first, first + bytes - TAG_BYTES), first + bytes);
        Ok(true)
    }

    /// The other side sends no more: whether that is at the end of a record.
    pub fn end(&self) -> Result<(), RecordError> {
        if self.next == self.filled { Ok(()) } else { Err(RecordError::Cut { number: self.number }) }
    }
}
