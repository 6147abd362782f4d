//! The Noise handshake of a control link, around `snow`. docs/inside/control-link.md has the bytes,
//! docs/operate/encryption.md the reasons.
//!
//! Owns the pattern, and that its random numbers are an argument. It must never take randomness from the system, so that
//! the simulator runs this very code, and never use the same secret for two handshakes.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use crate::ClusterKey;
use crate::seal::Seal;
use crate::side::Side;

/// Neither side has a lasting key of its own; both have the pre-shared one, from the first message on.
pub(crate) const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Longest message of the handshake: 32 bytes of key, 16 of tag, and the payload.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The message is not one of a side that has the key, heard both Hellos as this side did, and means this handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoiseError(String);

impl From<snow::Error> for NoiseError {
    fn from(error: snow::Error) -> Self {
        Self(error.to_string())
    }
}

/// One side of a handshake. Boxed: it is large, and tasks that hold one for a moment keep its room for ever.
pub(crate) struct Noise(Box<HandshakeState>);

impl std::fmt::Debug for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Noise(..)")
    }
}

impl Noise {
    /// `secret`: 32 fresh random bytes, from which the ephemeral key is made. `prologue`: what both sides have heard.
    pub(crate) fn new(side: Side, key: &ClusterKey, prologue: &[u8], secret: [u8; 32]) -> Result<Self, NoiseError> {
        let resolver = Box::new(Given(secret));
        let psk = key.link_psk();
        let builder = Builder::with_resolver(PATTERN.parse()?, resolver).prologue(prologue)?.psk(0, &psk)?;
        Ok(Self(Box::new(match side {
            Side::Dialer => builder.build_initiator()?,
            Side::Acceptor => builder.build_responder()?,
        })))
    }

    /// This side's message.
    pub(crate) fn write(&mut self, payload: &[u8]) -> Result<Vec<u8>, NoiseError> {
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let bytes = self.0.write_message(payload, &mut message)?;
        message.truncate(bytes);
        Ok(message)
    }

    /// The payload of the other side's message.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, NoiseError> {
        let mut payload = vec![0; message.len()];
        let bytes = self.0.read_message(message, &mut payload)?;
        payload.truncate(bytes);
        Ok(payload)
    }

    /// What seals the frames that follow; once both messages have passed.
    pub(crate) fn into_seal(self) -> Result<Seal, NoiseError> {
        Ok(Seal::new(self.0.into_transport_mode()?))
    }
}

/// The primitives of `snow` with random numbers that were given.
struct Given([u8; 32]);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// The secret of the one key that a handshake makes. A second draw fails instead of repeating it.
struct Once(Option<[u8; 32]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(secret) if out.len() == secret.len() => {
                out.copy_from_slice(&secret);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}
