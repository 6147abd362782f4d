//! The framing of messages: four bytes of length, little-endian, before each. A header with its highest bit set is
//! followed by a record about messages by reference (docs/inside/wire.md).
//!
//! Owns the message that is being received. It must never give out a part of a message, and never keep more than one.

use shm::RING_BYTES_MAX;

use crate::loans::{self, LeaseRecord, LoanRecord, Record};

/// Bytes before each message.
pub const MESSAGE_HEADER_BYTES: usize = 4;
/// The longest message that any connection may carry: the largest ring, less its header.
pub const MESSAGE_BYTES_MAX: usize = RING_BYTES_MAX as usize - MESSAGE_HEADER_BYTES;

/// A message that could not be sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FramingError {
    /// Longer than the connection carries.
    #[error("a message of {len} bytes is longer than the {max} that this connection carries")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that would fit.
        max: usize,
    },
    /// The buffer is too small; the message is kept.
    #[error("the next message has {len} bytes, the buffer {buffer}")]
    BufferTooSmall {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the buffer.
        buffer: usize,
    },
    /// The peer ended in the middle of a message.
    #[error("the connection ended in the middle of a message")]
    Cut,
    /// The peer announced a message that is longer than any connection can carry: it does not follow the framing.
    #[error("the peer announced a message of {0} bytes, more than any connection carries ({MESSAGE_BYTES_MAX})")]
    Announced(u32),
    /// The next message is a slice that was lent, of which the caller knows nothing; it is kept.
    #[error("the next message has {len} bytes, which are lent")]
    Lent {
        /// Bytes of the slice.
        len: u64,
    },
    /// A record about a loan that cannot be: the peer does not follow the framing.
    #[error("the peer sent a record about a loan that cannot be")]
    BadLoan,
}

/// What goes before a message of `len` bytes, of which `max` fit.
pub fn message_header(len: usize, max: usize) -> Result<[u8; MESSAGE_HEADER_BYTES], FramingError> {
    let fits = u32::try_from(len).ok().filter(|_| len <= max);
    fits.map(u32::to_le_bytes).ok_or(FramingError::TooLong { len, max })
}

/// Why nothing was received.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceiveError<E> {
    /// The framing.
    Framing(FramingError),
    /// The reading failed, or would have to wait; what was read so far is kept.
    Read(E),
}

/// The message that is being received.
#[derive(Debug, Default)]
pub struct Incoming {
    header: [u8; MESSAGE_HEADER_BYTES],
    header_bytes: usize,
    /// What was taken of it before a call had to return.
    body: Vec<u8>,
    /// The next message is a loan.
    loan: Option<LoanRecord>,
}

/// What comes next on a connection of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A message of so many bytes, for [`Incoming::receive`].
    Bytes(usize),
    /// A message by reference. It comes again until [`Incoming::take_loan`].
    Loan(LoanRecord),
    /// The other end has a lease for this one. It was taken.
    Lease(LeaseRecord),
    /// The bytes behind it come by the other way ([`Rx::change_way`](crate::Rx::change_way)).
    OtherWay,
}

impl Incoming {
    /// Receives by `read`, which reads some bytes, or 0 at the end, or fails: the length of a message that is in `buf`,
    /// or None at the end. What was taken before a failure is kept for the next call.
    pub fn receive<E>(
        &mut self,
        buf: &mut [u8],
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Option<usize>, ReceiveError<E>> {
        let len = match self.next(read)? {
            None => return Ok(None),
            Some(Next::Bytes(len)) => len,
            Some(Next::Loan(loan)) => return Err(ReceiveError::Framing(FramingError::Lent { len: loan.len })),
            Some(Next::Lease(_) | Next::OtherWay) => return Err(ReceiveError::Framing(FramingError::BadLoan)),
        };
        let buffer = buf.len();
        let Some(buf) = buf.get_mut(..len) else {
            return Err(ReceiveError::Framing(FramingError::BufferTooSmall { len, buffer }));
        };
        let mut have = self.body.len();
        buf[..have].copy_from_slice(&self.body);
        while have < len {
            let count = match read(&mut buf[have..]) {
                Ok(0) => Err(ReceiveError::Framing(FramingError::Cut)),
                Ok(count) => Ok(count),
                Err(e) => Err(ReceiveError::Read(e)),
            };
            match count {
                Ok(count) => have += count,
                Err(e) => {
                    self.body.clear();
                    self.body.extend_from_slice(&buf[..have]);
                    return Err(e);
                }
            }
        }
        *self = Self::default();
        Ok(Some(len))
    }

    /// What comes next, once its header or all of its record is there.
    pub fn next<E>(
        &mut self,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Option<Next>, ReceiveError<E>> {
        if let Some(loan) = self.loan {
            return Ok(Some(Next::Loan(loan)));
        }
        while self.header_bytes < MESSAGE_HEADER_BYTES {
            let count = read(&mut self.header[self.header_bytes..]).map_err(ReceiveError::Read)?;
            match (count, self.header_bytes) {
                (0, 0) => return Ok(None),
                (0, _) => return Err(ReceiveError::Framing(FramingError::Cut)),
                _ => self.header_bytes += count,
            }
        }
        let len = u32::from_le_bytes(self.header);
        if len == loans::OTHER_WAY {
            *self = Self::default();
            return Ok(Some(Next::OtherWay));
        }
        if loans::is_record(len) {
            return self.next_record(len, read).map(Some);
        }
        match usize::try_from(len) {
            Ok(len) if len <= MESSAGE_BYTES_MAX => Ok(Some(Next::Bytes(len))),
            _ => Err(ReceiveError::Framing(FramingError::Announced(len))),
        }
    }

    /// The record behind a header.
    fn next_record<E>(
        &mut self,
        header: u32,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Next, ReceiveError<E>> {
        let mut record = [0; loans::RECORD_BYTES];
        let mut have = self.body.len();
        record[..have].copy_from_slice(&self.body);
        while have < record.len() {
            match read(&mut record[have..]) {
                Ok(0) => return Err(ReceiveError::Framing(FramingError::Cut)),
                Ok(count) => have += count,
                Err(e) => {
                    self.body.clear();
                    self.body.extend_from_slice(&record[..have]);
                    return Err(ReceiveError::Read(e));
                }
            }
        }
        let Some(record) = loans::parse(header, &record) else {
            return Err(ReceiveError::Framing(FramingError::BadLoan));
        };
        *self = Self::default();
        Ok(match record {
            Record::Lease(lease) => Next::Lease(lease),
            Record::Loan(loan) => {
                self.loan = Some(loan);
                Next::Loan(loan)
            }
        })
    }

    /// The loan that came next is the caller's, and what comes behind it is next.
    pub fn take_loan(&mut self) {
        self.loan = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the bytes come, the messages are those that were sent, and a buffer that is too small loses none.
        #[test]
        fn messages_come_as_they_were_sent(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            pieces in prop::collection::vec(0usize..7, 1..200),
        ) {
            let mut wire = Vec::new();
            for message in &messages {
                wire.extend(message_header(message.len(), 40).unwrap());
                wire.extend(message);
            }
            let (mut at, mut turn) = (0, 0);
            let mut read = |buf: &mut [u8]| {
                turn += 1;
                let count = pieces[turn % pieces.len()].min(buf.len()).min(wire.len() - at);
                if count == 0 && at < wire.len() && turn < 100_000 {
                    return Err("later");
                }
                let count = if at < wire.len() { count.max(1) } else { 0 };
                buf[..count].copy_from_slice(&wire[at..at + count]);
                at += count;
                Ok(count)
            };
            let (mut incoming, mut got, mut buf) = (Incoming::default(), Vec::new(), vec![0; 3]);
            loop {
                match incoming.receive(&mut buf, &mut read) {
                    Ok(Some(len)) => got.push(buf[..len].to_vec()),
                    Ok(None) => break,
                    Err(ReceiveError::Read("later")) => {}
                    Err(ReceiveError::Framing(FramingError::BufferTooSmall { len, .. })) => buf.resize(len, 0),
                    Err(e) => panic!("{e:?}"),
                }
            }
            prop_assert_eq!(got, messages);
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        assert_eq!(message_header(5, 4), Err(FramingError::TooLong { len: 5, max: 4 }));
        let mut bytes = u32::MAX.to_le_bytes().into_iter();
        let mut read = |buf: &mut [u8]| {
            Ok::<_, ()>(bytes.next().map_or(0, |b| {
                buf[0] = b;
                1
            }))
        };
        let got = Incoming::default().receive(&mut [], &mut read);
        assert_eq!(got, Err(ReceiveError::Framing(FramingError::Announced(u32::MAX))));
        let mut bytes = [2, 0, 0, 0, 7].into_iter();
        let mut read = |buf: &mut [u8]| {
            Ok::<_, ()>(bytes.next().map_or(0, |b| {
                buf[0] = b;
                1
            }))
        };
        let got = Incoming::default().receive(&mut [0; 2], &mut read);
        assert_eq!(got, Err(ReceiveError::Framing(FramingError::Cut)));
    }
}
