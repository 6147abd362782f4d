//! The Noise handshake of a control link, around `snow`. docs/inside/control-link.md has the bytes,
//! docs/operate/encryption.md the reasons.
//!
//! Owns the pattern, and that its random numbers are an argument. It must never take randomness from the system, so that
//! the simulator runs this very code, and never use the same secret for two handshakes.

use snow::{Builder, HandshakeState};

use crate::ClusterKey;
use crate::primitives::Given;
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

#[cfg(test)]
mod tests {
    use super::*;

    const DIALER: &str = "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7cd2dcd35ef7c3936db713cfad557fd181\
                          991e1d1ab95fe4e4b2ba870e4d9cf7";
    const ACCEPTOR: &str = "5714769d116bf76436ae74bc793d2c30ad1903c59ac5273805c7e2698b410c3618628bc40df2854b9705e38ef88425e1\
                            d77627ea1b364805335da849b5d5faae83";
    const FRAMES: [&str; 2] =
        ["96505361ab4106e325602b31a3004e2c7a483a59e1", "46f877ff4c3342af926c9154b003de257dfc12370aca"];
    const ANSWER: &str = "50998e8a0473c17e03056b43385a76bc3fa47c24ea5f";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The bytes are those of 40 lines of Python that follow the specification of Noise with the primitives of OpenSSL.
    #[test]
    fn a_handshake_has_the_bytes_of_another_implementation() {
        let key = ClusterKey::new(vec![7; 32]);
        let secret = |first: u8| std::array::from_fn(|i| first + i as u8);
        let mut dialer = Noise::new(Side::Dialer, &key, b"prologue", secret(1)).unwrap();
        let mut acceptor = Noise::new(Side::Acceptor, &key, b"prologue", secret(101)).unwrap();
        let first = dialer.write(b"from the dialer").unwrap();
        assert_eq!(hex(&first), DIALER);
        assert_eq!(acceptor.read(&first).unwrap(), b"from the dialer");
        let second = acceptor.write(b"from the acceptor").unwrap();
        assert_eq!(hex(&second), ACCEPTOR);
        assert_eq!(dialer.read(&second).unwrap(), b"from the acceptor");
        let (mut dialer, mut acceptor) = (dialer.into_seal().unwrap(), acceptor.into_seal().unwrap());
        for (message, frame) in [&b"first"[..], b"second"].into_iter().zip(FRAMES) {
            let sealed = dialer.seal(message).unwrap();
            assert_eq!(hex(&sealed), frame);
            assert_eq!(acceptor.open(&sealed).unwrap(), message);
        }
        assert_eq!(hex(&acceptor.seal(b"answer").unwrap()), ANSWER);
    }

    #[test]
    fn a_secret_serves_one_handshake() {
        let key = ClusterKey::new(vec![7; 32]);
        let mut dialer = Noise::new(Side::Dialer, &key, b"", [1; 32]).unwrap();
        let first = dialer.write(b"").unwrap();
        dialer.write(b"").unwrap_err();
        let mut other = Noise::new(Side::Acceptor, &ClusterKey::new(vec![8; 32]), b"", [2; 32]).unwrap();
        other.read(&first).unwrap_err();
        for cut in [0, 31, 32, 47] {
            let mut acceptor = Noise::new(Side::Acceptor, &key, b"", [2; 32]).unwrap();
            acceptor.read(&first[..cut]).unwrap_err();
        }
    }
}
