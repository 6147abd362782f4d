//! The receiving direction: records become bytes of a stream.
//!
//! Owns what came and is no whole record, and what was opened and not taken. It must never give out a byte of a record
//! that is not authentic, whole and in its turn, nor hold more than one record and what was read with it.

use crate::cipher::Cipher;
use crate::record_key::RecordKey;
use crate::{
    APPLICATION_DATA, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RECORD_START, RECORD_TAIL_BYTES, RecordLimit, TAG_BYTES,
};

/// Bytes asked of the socket at a time: of a peer that has much to say, eight whole records, so that no part of one is
/// left to be moved.
const READ_BYTES: usize = 8 * (RECORD_HEAD_BYTES + RECORD_BYTES_MAX + RECORD_TAIL_BYTES);
/// Fewest and most bytes that a record says that it has: at least one is the stream's.
const LENGTH_MIN: usize = RECORD_TAIL_BYTES + 1;
const LENGTH_MAX: usize = RECORD_BYTES_MAX + RECORD_TAIL_BYTES;

/// The stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Its head is none of a record with data.
    #[error("record {number} begins with {found:02x?}, and not with {RECORD_START:02x?}")]
    Head {
        /// Which record.
        number: u64,
        /// Its first bytes.
        found: [u8; RECORD_START.len()],
    },
    /// Its length is none that a peer writes.
    #[error("record {number} says that it has {bytes} bytes; {LENGTH_MIN} to {LENGTH_MAX} are allowed")]
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
    /// The peer sealed what is no data: an alert, a handshake, or padding.
    #[error("record {number} has content of type {found}, and not {APPLICATION_DATA}, or is padded")]
    Content {
        /// Which record.
        number: u64,
        /// Its last byte.
        found: u8,
    },
    /// The key has protected as many records as it may, and the peer goes on.
    #[error("record {number} is one more than one key may protect: the connection has to be made anew")]
    KeyUsedUp {
        /// Which record.
        number: u64,
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
    key: RecordKey,
    cipher: Cipher,
    number: u64,
    pub(crate) limit: RecordLimit,
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
    pub(crate) fn new(key: RecordKey) -> Self {
        let cipher = key.cipher();
        Self {
            key,
            cipher,
            number: 0,
            limit: RecordLimit::default(),
            buffer: Vec::new(),
            opened: (0, 0),
            next: 0,
            filled: 0,
            fault: None,
        }
    }

    /// Leaves the direction to somebody who begins at record 0 with its key, such as a kernel; whether he took it. He is
    /// not asked once something of the stream came here: he would miss it.
    pub fn hand_over(&self, takes: impl FnOnce(&RecordKey) -> bool) -> bool {
        self.number == 0 && self.filled == 0 && takes(&self.key)
    }

    /// How many records were opened here.
    pub fn opened(&self) -> u64 {
        self.number
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
        let Some((head, rest)) = came.split_first_chunk_mut::<RECORD_HEAD_BYTES>() else { return Ok(false) };
        let [found @ .., high, low] = *head;
        if found != RECORD_START {
            return Err(RecordError::Head { number, found });
        }
        if number >= self.limit.most() {
            return Err(RecordError::KeyUsedUp { number });
        }
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if !(LENGTH_MIN..=LENGTH_MAX).contains(&bytes) {
            return Err(RecordError::Length { number, bytes });
        }
        let Some((body, tag)) = rest.get_mut(..bytes).and_then(|record| record.split_last_chunk_mut::<TAG_BYTES>())
        else {
            return Ok(false);
        };
        if !self.cipher.open(self.key.nonce(number), head, body, *tag) {
            return Err(RecordError::Forged { number, bytes });
        }
        match body.last() {
            Some(&APPLICATION_DATA) => {}
            found => return Err(RecordError::Content { number, found: found.copied().unwrap_or(0) }),
        }
        let first = start + RECORD_HEAD_BYTES;
        self.number += 1;
        (self.opened, self.next) = ((first, first + bytes - RECORD_TAIL_BYTES), first + bytes);
        Ok(true)
    }

    /// The other side sends no more: whether that is at the end of a record.
    pub fn end(&self) -> Result<(), RecordError> {
        if self.next == self.filled { Ok(()) } else { Err(RecordError::Cut { number: self.number }) }
    }
}
