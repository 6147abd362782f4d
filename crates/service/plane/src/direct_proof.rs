//! Proves that both ends of a TCP connection for a stream of bulk know its token, which went over the encrypted control
//! link. docs/inside/control-link.md has the bytes.
//!
//! Owns what is proven and how it is compared, and what the side that connects says first and waits for. It must never
//! put the token into what is sent.

use control::{CHALLENGE_BYTES, PeerMessage, Reason};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::{Refusal, Side};

/// First bytes of what is proven.
const DOMAIN: &[u8] = b"raas direct 2\0";

/// What both ends know of one such connection.
#[derive(Clone)]
pub struct DirectProof {
    /// Number of the offer.
    pub number: u64,
    /// What the offering daemon sent over the control link.
    pub token: [u8; CHALLENGE_BYTES],
    /// What the connecting daemon sends with its proof.
    pub nonce: [u8; CHALLENGE_BYTES],
}

/// What somebody says first who comes for an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectHello {
    /// The offer.
    pub number: u64,
    /// Its random bytes.
    pub nonce: [u8; CHALLENGE_BYTES],
    /// Its proof.
    pub mac: [u8; 32],
}

impl From<DirectHello> for PeerMessage {
    fn from(DirectHello { number, nonce, mac }: DirectHello) -> Self {
        Self::DirectHello { number, nonce, mac }
    }
}

impl DirectProof {
    /// What the side that connected says first.
    pub fn hello(&self) -> DirectHello {
        DirectHello { number: self.number, nonce: self.nonce, mac: self.mac(Side::Dialer) }
    }

    /// Judges the answer to it: the side that accepted proves the token, or says why it does not.
    pub fn judge(&self, answer: PeerMessage) -> Result<(), Refusal> {
        match answer {
            PeerMessage::DirectProof { mac } if self.is_proven(Side::Acceptor, &mac) => Ok(()),
            PeerMessage::Bye { reason, detail } => Err(Refusal::new(reason, detail)),
            _ => Err(Refusal::new(Reason::PeerAuth, "the peer's daemon did not prove the token")),
        }
    }

    /// The proof of the side that connected, or of the side that accepted.
    pub(crate) fn mac(&self, prover: Side) -> [u8; 32] {
        // A key of HMAC may have any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.token) else { return [0; 32] };
        mac.update(DOMAIN);
        mac.update(match prover {
            Side::Dialer => b"D",
            Side::Acceptor => b"A",
        });
        mac.update(&self.number.to_be_bytes());
        mac.update(&self.nonce);
        mac.finalize().into_bytes().into()
    }

    /// Whether `mac` is that side's proof.
    pub(crate) fn is_proven(&self, prover: Side, mac: &[u8; 32]) -> bool {
        bool::from(self.mac(prover).ct_eq(mac))
    }
}

impl std::fmt::Debug for DirectProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectProof").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_covers_the_documented_bytes_and_each_of_them() {
        let proof = DirectProof { number: 7, token: [1; 32], nonce: [2; 32] };
        let mut bytes = b"raas direct 2\0D".to_vec();
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 7]);
        bytes.extend([2; 32]);
        let mut mac = Hmac::<Sha256>::new_from_slice(&[1; 32]).unwrap();
        mac.update(&bytes);
        let mac: [u8; 32] = mac.finalize().into_bytes().into();
        assert_eq!(proof.mac(Side::Dialer), mac);
        assert!(proof.is_proven(Side::Dialer, &mac));
        assert!(!proof.is_proven(Side::Acceptor, &mac), "sent back to its sender");
        let others = [
            DirectProof { number: 8, ..proof.clone() },
            DirectProof { token: [3; 32], ..proof.clone() },
            DirectProof { nonce: [3; 32], ..proof.clone() },
        ];
        assert!(others.iter().all(|other| !other.is_proven(Side::Dialer, &mac)));
        assert!(!format!("{proof:?}").contains("1, 1"), "the token is in no log");
    }
}
