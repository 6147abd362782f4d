//! What can go wrong with a datagram.
//!
//! Owns the words and kinds. It must never say that a datagram was lost that is kept.

use std::io;
use std::net::{IpAddr, SocketAddr};

use control::{Reason, debug_says_the_words};

use crate::error::reason_kind;

/// What is inside the [`io::Error`] of a datagram that could not be sent or received.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// Longer than a packet to that host; nothing was sent. Kind: `InvalidInput`.
    #[error(
        "a datagram of {len} bytes to {to} is longer than the {max} that one packet there carries: send less at a time"
    )]
    TooLong {
        /// Bytes of the datagram.
        len: usize,
        /// Bytes that would fit: [`DatagramSocket::max_payload`](crate::DatagramSocket::max_payload).
        max: usize,
        /// Where to.
        to: SocketAddr,
    },
    /// The buffer is too small; the datagram waits for the next call. Kind: `InvalidInput`.
    #[error("the next datagram has {len} bytes, the buffer {buffer}: it was kept, receive it with a larger one")]
    BufferTooSmall {
        /// Bytes of the datagram.
        len: usize,
        /// Bytes of the buffer.
        buffer: usize,
    },
    /// There is no way to the host. Kind: as that of a failed connect for the same reason.
    #[error("no datagram can be sent to {host}: {reason}")]
    Unreachable {
        /// The host.
        host: IpAddr,
        /// Why.
        reason: Reason,
    },
    /// [`DatagramSocket::send`](crate::DatagramSocket::send) without
    /// [`DatagramSocket::connect`](crate::DatagramSocket::connect). Kind: `NotConnected`.
    #[error("the socket has no address to send to: call `connect`, or use `send_to`")]
    NotConnected,
}

debug_says_the_words!(DatagramError);

impl From<DatagramError> for io::Error {
    fn from(e: DatagramError) -> Self {
        let kind = match e {
            DatagramError::TooLong { .. } | DatagramError::BufferTooSmall { .. } => io::ErrorKind::InvalidInput,
            DatagramError::Unreachable { reason, .. } => reason_kind(reason),
            DatagramError::NotConnected => io::ErrorKind::NotConnected,
        };
        Self::new(kind, e)
    }
}
