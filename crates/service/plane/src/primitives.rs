//! What Noise computes with: X25519, ChaCha20-Poly1305 and SHA-256, of the crates that the rest of the daemon has, for
//! `snow`, which has others.
//!
//! Owns their names and sizes. It must never compute anything itself, and never draw a random number but the one that
//! it was given.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, Tag};
use curve25519_dalek::montgomery::MontgomeryPoint;
use sha2::{Digest, Sha256};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};

/// Bytes of keys, public, secret and of the cipher.
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
const BLOCK_BYTES: usize = 64;

/// The primitives of one handshake, with the secret of its one ephemeral key.
pub(crate) struct Given(pub(crate) [u8; KEY_BYTES]);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<X25519>::default() as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::<Hasher>::default() as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::new(ChaChaPoly(None)) as _)
    }
}

/// The secret of the one key that a handshake makes. A second draw fails instead of repeating it.
struct Once(Option<[u8; KEY_BYTES]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        match self.0.take() {
            Some(secret) if out.len() == secret.len() => {
                out.copy_from_slice(&secret);
                Ok(())
            }
            _ => Err(Error::Rng),
        }
    }
}

/// A pair of keys.
#[derive(Default)]
struct X25519 {
    secret: [u8; KEY_BYTES],
    public: [u8; KEY_BYTES],
}

impl X25519 {
    fn hold(&mut self, secret: [u8; KEY_BYTES]) {
        self.secret = secret;
        self.public = MontgomeryPoint::mul_base_clamped(secret).to_bytes();
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, privkey: &[u8]) {
        let mut secret = [0; KEY_BYTES];
        secret.copy_from_slice(privkey);
        self.hold(secret);
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut secret = [0; KEY_BYTES];
        rng.try_fill_bytes(&mut secret)?;
        self.hold(secret);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.secret
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = pubkey.first_chunk().ok_or(Error::Dh)?;
        let shared = MontgomeryPoint(*public).mul_clamped(self.secret).to_bytes();
        out.get_mut(..KEY_BYTES).ok_or(Error::Dh)?.copy_from_slice(&shared);
        Ok(())
    }
}

/// None before it has a key; `snow` gives it one before it uses it.
struct ChaChaPoly(Option<ChaCha20Poly1305>);

/// Noise's counter in the place that its specification gives it.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    bytes.into()
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.0 = Some(ChaCha20Poly1305::new(&Key::from(*key)));
    }

    fn encrypt(&self, number: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let cipher = self.0.as_ref().expect("a cipher has its key before it is used");
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let tag = cipher.encrypt_inout_detached(&nonce(number), authtext, text.into());
        let tag = tag.expect("Noise has no messages of gigabytes");
        rest[..TAG_BYTES].copy_from_slice(&tag);
        plaintext.len() + TAG_BYTES
    }

    fn decrypt(&self, number: u64, authtext: &[u8], ciphertext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let (sealed, tag) = ciphertext.split_last_chunk::<TAG_BYTES>().ok_or(Error::Decrypt)?;
        let text = out.get_mut(..sealed.len()).ok_or(Error::Decrypt)?;
        text.copy_from_slice(sealed);
        let cipher = self.0.as_ref().ok_or(Error::Decrypt)?;
        let opened = cipher.decrypt_inout_detached(&nonce(number), authtext, text.into(), &Tag::from(*tag));
        opened.map_err(|_| Error::Decrypt)?;
        Ok(sealed.len())
    }
}

#[derive(Default)]
struct Hasher(Sha256);

impl Hash for Hasher {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        BLOCK_BYTES
    }

    fn hash_len(&self) -> usize {
        HASH_BYTES
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..HASH_BYTES].copy_from_slice(&self.0.finalize_reset());
    }
}
