//! What can go wrong with a message.
//!
//! Owns the words and kinds. It must never say that a message was lost that is kept.

use std::io;

use control::debug_says_the_words;
use raas_core::{FramingError, LOAN_BYTES_MAX, MESSAGE_BYTES_MAX, ReceiveError};

/// What is inside the [`io::Error`] of a message that could not be sent or received.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Longer than the connection carries; nothing was sent. Kind: `InvalidInput`.
    #[error(
        "a message of {len} bytes is longer than the {max} that this connection carries: send less, or connect with larger `ring_bytes`"
    )]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that would fit.
        max: usize,
    },
    /// The buffer is too small; the message waits for the next call. Kind: `InvalidInput`.
    #[error("the next message has {len} bytes, the buffer {buffer}: it was kept, receive it with a larger one")]
    BufferTooSmall {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the buffer.
        buffer: usize,
    },
    /// The peer ended before it answered a [`MessageStream::call`](crate::MessageStream::call). Kind: `UnexpectedEof`.
    #[error("the connection ended before the reply came")]
    NoReply,
    /// A call on this connection has had no reply yet, so the next message may be that reply. Nothing was sent. Kind:
    /// `NotConnected`.
    #[error("an earlier call on this connection got no reply, which may still come: connect anew to call again")]
    OutOfStep,
    /// The peer ended in the middle of a message. Kind: `UnexpectedEof`.
    #[error("the connection ended in the middle of a message")]
    Cut,
    /// The peer announced a message that is longer than any connection can carry: it does not follow the framing. Kind:
    /// `InvalidData`.
    #[error("the peer announced a message of {0} bytes, more than any connection carries ({MESSAGE_BYTES_MAX})")]
    Announced(u32),
    /// The connection is on UC, where a message may be lost; nothing was sent. Kind: `Unsupported`.
    #[error(
        "{what} need messages that are not lost, and this connection is on UC: use `send` and `receive`, or connect without UC"
    )]
    MayBeLost {
        /// What was asked for.
        what: &'static str,
    },
    /// As many slices are lent to the peer as may be, and it has given none back; nothing was sent. Kind:
    /// `QuotaExceeded`.
    #[error("{max} slices are lent on this connection and were not given back: wait for one of them (`Lent::wait`)")]
    TooManyLent {
        /// How many may be lent.
        max: u32,
    },
    /// Slices of as many regions as may be are lent to the peer; nothing was sent. Kind: `QuotaExceeded`.
    #[error("slices of {max} regions are lent on this connection: lend from fewer regions, or on another connection")]
    TooManyRegionsLent {
        /// How many there may be.
        max: u32,
    },
    /// A slice is longer than one that is lent may be; nothing was sent. Kind: `InvalidInput`.
    #[error("a slice of {len} bytes is longer than the {LOAN_BYTES_MAX} that may be lent as one message")]
    SliceTooLong {
        /// Bytes of the slice.
        len: u64,
    },
    /// The next message is lent, and longer than this call takes, or its lender is on another host and the call must
    /// not wait; it was kept. Kind: `InvalidInput`.
    #[error("the next message is lent, with {len} bytes: it was kept, take it with `receive_view`")]
    Lent {
        /// Bytes of the message.
        len: u64,
    },
    /// The peer lent what it has no lease for, or what cannot be: it does not follow the framing. Kind: `InvalidData`.
    #[error("the peer lent a slice that it has no lease for, or that cannot be")]
    BadLoan,
}

impl MessageError {
    /// The buffer that would have been large enough, if it was that.
    pub(crate) fn len_wanted(error: io::Error) -> io::Result<usize> {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(&Self::BufferTooSmall { len, .. }) if len <= MESSAGE_BYTES_MAX => Ok(len),
            // Only a message that is lent can be so long: who sends it does not say how much memory is taken here.
            Some(&Self::BufferTooSmall { len, .. }) => Err(Self::Lent { len: len as u64 }.into()),
            _ => Err(error),
        }
    }
}

debug_says_the_words!(MessageError);

impl From<MessageError> for io::Error {
    fn from(e: MessageError) -> Self {
        let kind = match e {
            MessageError::TooLong { .. }
            | MessageError::BufferTooSmall { .. }
            | MessageError::SliceTooLong { .. }
            | MessageError::Lent { .. } => io::ErrorKind::InvalidInput,
            MessageError::TooManyLent { .. } | MessageError::TooManyRegionsLent { .. } => io::ErrorKind::QuotaExceeded,
            MessageError::Cut | MessageError::NoReply => io::ErrorKind::UnexpectedEof,
            MessageError::MayBeLost { .. } => io::ErrorKind::Unsupported,
            MessageError::OutOfStep => io::ErrorKind::NotConnected,
            MessageError::Announced(_) | MessageError::BadLoan => io::ErrorKind::InvalidData,
        };
        Self::new(kind, e)
    }
}

impl From<FramingError> for MessageError {
    fn from(e: FramingError) -> Self {
        match e {
            FramingError::TooLong { len, max } => Self::TooLong { len, max },
            FramingError::BufferTooSmall { len, buffer } => Self::BufferTooSmall { len, buffer },
            FramingError::Announced(len) => Self::Announced(len),
            FramingError::Lent { len } => Self::Lent { len },
            FramingError::BadLoan => Self::BadLoan,
            // `Cut`, and what a later core may find: the framing ended where it should not.
            _ => Self::Cut,
        }
    }
}

/// What a receive fails with.
pub(crate) fn receive_error(e: ReceiveError<io::Error>) -> io::Error {
    match e {
        ReceiveError::Framing(e) => MessageError::from(e).into(),
        ReceiveError::Read(e) => e,
    }
}
