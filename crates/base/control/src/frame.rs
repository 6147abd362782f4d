//! Encoding: a message is one postcard value. On the Unix socket a SEQPACKET datagram is one frame; on TCP a frame is a
//! 32-bit big-endian length, then the value.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest frame on either socket, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// A frame could not be made or understood.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than [`FRAME_BYTES_MAX`].
    #[error("frame of {0} bytes is longer than {FRAME_BYTES_MAX}")]
    TooLong(usize),
    /// Not a message of this protocol version.
    #[error("frame is not a valid message: {0}")]
    Malformed(postcard::Error),
    /// Bytes follow the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
}

crate::debug_says_the_words!(FrameError);

/// One message as bytes.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let bytes = postcard::to_stdvec(message).map_err(FrameError::Malformed)?;
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(bytes.len()));
    }
    Ok(bytes)
}

/// The message that `bytes` are, all of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(FrameError::Malformed)?;
    if rest.is_empty() { Ok(message) } else { Err(FrameError::Trailing(rest.len())) }
}

/// Prefixes a frame with its length, for TCP.
pub fn with_length(frame: &[u8]) -> Vec<u8> {
    let len = u32::try_from(frame.len()).expect("encode() bounds the frame");
    let mut out = Vec::with_capacity(4 + frame.len());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(frame);
    out
}

/// Reads a length prefix and checks it against [`FRAME_BYTES_MAX`].
pub fn frame_length(prefix: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_be_bytes(prefix) as usize;
    if len > FRAME_BYTES_MAX { Err(FrameError::TooLong(len)) } else { Ok(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_bytes_and_length_are_refused() {
        let mut bytes = encode(&(1u32, "x".to_string())).unwrap();
        assert_eq!(decode::<(u32, String)>(&bytes).unwrap(), (1, "x".to_string()));
        bytes.push(0);
        assert_eq!(decode::<(u32, String)>(&bytes), Err(FrameError::Trailing(1)));
        assert_eq!(frame_length([0, 1, 0, 0]), Ok(65536));
        assert_eq!(frame_length([0, 1, 0, 1]), Err(FrameError::TooLong(65537)));
        assert!(matches!(encode(&vec![0u8; FRAME_BYTES_MAX]), Err(FrameError::TooLong(_))));
    }
}
