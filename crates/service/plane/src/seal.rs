//! The frames of a control link that is up: each is encrypted, authenticated and counted.
//!
//! Owns the keys of both directions. It must never hand on a frame that it cannot open, and after one it is of no more
//! use: the caller ends the link.

use snow::TransportState;

/// Bytes by which a sealed frame is longer than its message.
pub const SEAL_BYTES: usize = 16;
/// Longest message that can be sealed, in bytes: Noise has messages of 65,535 bytes.
pub const SEALED_MESSAGE_BYTES_MAX: usize = 65_535 - SEAL_BYTES;

/// A frame cannot be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The message is too long.
    #[error("a message of {bytes} bytes is longer than a sealed frame holds, which is {SEALED_MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// It was changed, cut, repeated, reordered, sent back to its sender, or one before it is missing.
    #[error(
        "frame {number} of the control link ({bytes} bytes) is not what the peer's daemon sent: somebody between the hosts \
         changed, repeated, left out or reordered frames"
    )]
    Forged {
        /// Which frame of its direction was due.
        number: u64,
        /// Bytes of what came.
        bytes: usize,
    },
    /// One could not be opened before, or the frames of the link are used up.
    #[error("the seal of the control link is broken")]
    Broken,
}

/// Seals and opens. Both ends of a link have one each.
pub struct Seal {
    state: Box<TransportState>,
    opened: u64,
    is_broken: bool,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").field("opened", &self.opened).finish_non_exhaustive()
    }
}

impl Seal {
    pub(crate) fn new(state: TransportState) -> Self {
        Self { state: Box::new(state), opened: 0, is_broken: false }
    }

    /// A message as the next frame to the peer.
    pub fn seal(&mut self, message: &[u8]) -> Result<Vec<u8>, SealError> {
        if message.len() > SEALED_MESSAGE_BYTES_MAX {
            return Err(SealError::TooLong { bytes: message.len() });
        }
        let mut frame = vec![0; message.len() + SEAL_BYTES];
        let bytes = self.state.write_message(message, &mut frame).map_err(|_| SealError::Broken)?;
        frame.truncate(bytes);
        Ok(frame)
    }

    /// The message of the next frame from the peer.
    pub fn open(&mut self, frame: &[u8]) -> Result<Vec<u8>, SealError> {
        if self.is_broken {
            return Err(SealError::Broken);
        }
        let mut message = vec![0; frame.len()];
        let opened = self.state.read_message(frame, &mut message);
        let Ok(bytes) = opened else {
            self.is_broken = true;
            return Err(SealError::Forged { number: self.opened, bytes: frame.len() });
        };
        self.opened += 1;
        message.truncate(bytes);
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::{ClusterKey, Side};

    /// Both ends of one link.
    fn ends() -> (Seal, Seal) {
        let key = ClusterKey::new(vec![9; 32]);
        let mut dialer = Noise::new(Side::Dialer, &key, b"both", [1; 32]).unwrap();
        let mut acceptor = Noise::new(Side::Acceptor, &key, b"both", [2; 32]).unwrap();
        acceptor.read(&dialer.write(b"a").unwrap()).unwrap();
        dialer.read(&acceptor.write(b"b").unwrap()).unwrap();
        (dialer.into_seal().unwrap(), acceptor.into_seal().unwrap())
    }

    #[test]
    fn messages_of_all_lengths_pass_both_ways_and_are_not_to_be_seen() {
        let (mut a, mut b) = ends();
        for bytes in [0, 1, 100, SEALED_MESSAGE_BYTES_MAX] {
            let message = vec![7; bytes];
            let frame = a.seal(&message).unwrap();
            assert_eq!(frame.len(), bytes + SEAL_BYTES);
            assert!(bytes < 100 || !frame.windows(16).any(|w| w == [7; 16]));
            assert_eq!(b.open(&frame).unwrap(), message);
            let back = b.seal(&message).unwrap();
            assert_eq!(a.open(&back).unwrap(), message);
        }
        let bytes = SEALED_MESSAGE_BYTES_MAX + 1;
        assert_eq!(a.seal(&vec![0; bytes]), Err(SealError::TooLong { bytes }));
    }

    #[test]
    fn what_is_changed_cut_repeated_left_out_or_sent_back_is_told_and_ends_it() {
        type Attack = fn(&mut Seal) -> Vec<u8>;
        let attacks: [(&str, Attack); 6] = [
            ("changed", |a| {
                let mut frame = a.seal(b"hello").unwrap();
                frame[2] ^= 1;
                frame
            }),
            ("cut", |a| a.seal(b"hello").unwrap()[..20].to_vec()),
            ("cut below its tag", |a| a.seal(b"hello").unwrap()[..3].to_vec()),
            ("left out", |a| {
                a.seal(b"hello").unwrap();
                a.seal(b"hello").unwrap()
            }),
            ("empty", |_| Vec::new()),
            ("garbage", |_| vec![0; 64]),
        ];
        for (what, attack) in attacks {
            let (mut a, mut b) = ends();
            let first = a.seal(b"first").unwrap();
            b.open(&first).unwrap();
            let forged = attack(&mut a);
            let told = SealError::Forged { number: 1, bytes: forged.len() };
            assert_eq!(b.open(&forged), Err(told), "{what}");
            assert!(told.to_string().contains("frame 1"), "{told}");
            // The true one comes too late.
            assert_eq!(b.open(&a.seal(b"next").unwrap()), Err(SealError::Broken), "{what}");
        }
        let (mut a, mut b) = ends();
        let frame = a.seal(b"once").unwrap();
        b.open(&frame).unwrap();
        assert!(matches!(b.open(&frame), Err(SealError::Forged { number: 1, .. })), "repeated");
        let (mut a, _) = ends();
        let own = a.seal(b"mine").unwrap();
        assert!(matches!(a.open(&own), Err(SealError::Forged { number: 0, .. })), "sent back");
    }
}
