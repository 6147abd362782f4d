//! AES-128-GCM under the key of one direction.
//!
//! Two libraries do the same: `graviola`, where the processor has the instructions that it needs (x86-64 with AVX2, AES,
//! ADX and their like; 64-bit ARM with AES), and `aes-gcm` on every other processor. The bytes are equal.

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes128Gcm, KeyInit};

use crate::TAG_BYTES;

pub(crate) const KEY_BYTES: usize = 16;

/// Boxed, since a key with its tables has up to a kilobyte, and a connection has two.
pub(crate) enum Cipher {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Graviola(Box<graviola::aead::AesGcm>),
    AesGcm(Box<Aes128Gcm>),
}

impl Cipher {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if graviola::util::is_cpu_supported() {
            return Self::Graviola(Box::new(graviola::aead::AesGcm::new(key)));
        }
        Self::AesGcm(Box::new(Aes128Gcm::new(key.into())))
    }

    /// Encrypts `body` where it lies. None if it is too long for the cipher.
    pub(crate) fn seal(&self, nonce: [u8; 12], head: &[u8], body: &mut [u8]) -> Option<[u8; TAG_BYTES]> {
        match self {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Self::Graviola(key) => {
                let mut tag = [0; TAG_BYTES];
                key.encrypt(&nonce, head, body, &mut tag);
                Some(tag)
            }
            Self::AesGcm(key) => {
                key.encrypt_inout_detached(&nonce.into(), head, body.into()).ok().map(|tag| tag.into())
            }
        }
    }

    /// Decrypts `body` where it lies, if it and `head` are what was sealed. If not, `body` may be anything but plain.
    pub(crate) fn open(&self, nonce: [u8; 12], head: &[u8], body: &mut [u8], tag: [u8; TAG_BYTES]) -> bool {
        match self {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Self::Graviola(key) => key.decrypt(&nonce, head, body, &tag).is_ok(),
            Self::AesGcm(key) => key.decrypt_inout_detached(&nonce.into(), head, body.into(), &tag.into()).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RECORD_BYTES_MAX;

    /// All that this processor can run, so that a test says which it had.
    fn all(key: &[u8; KEY_BYTES]) -> Vec<(&'static str, Cipher)> {
        let mut all = vec![("aes-gcm", Cipher::AesGcm(Box::new(Aes128Gcm::new(key.into()))))];
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if graviola::util::is_cpu_supported() {
            all.push(("graviola", Cipher::Graviola(Box::new(graviola::aead::AesGcm::new(key)))));
        }
        println!("{} libraries run here", all.len());
        all
    }

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        let digits: Vec<u8> = hex.bytes().map(|c| (c as char).to_digit(16).unwrap() as u8).collect();
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        bytes.try_into().unwrap()
    }

    /// Test case 4 of "The Galois/Counter Mode of Operation (GCM)", McGrew and Viega, appendix B.
    #[test]
    fn the_authors_case_with_data_in_front() {
        let plain: [u8; 60] = bytes(concat!(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525",
            "b16aedf5aa0de657ba637b39",
        ));
        let sealed: [u8; 60] = bytes(concat!(
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa05",
            "1ba30b396a0aac973d58e091",
        ));
        let (nonce, head) =
            (bytes("cafebabefacedbaddecaf888"), bytes::<20>("feedfacedeadbeeffeedfacedeadbeefabaddad2"));
        let tag = bytes("5bc94fbc3221a5db94fae95ae7121a47");
        for (name, cipher) in all(&bytes("feffe9928665731c6d6a8f9467308308")) {
            let mut body = plain;
            assert_eq!((cipher.seal(nonce, &head, &mut body), body), (Some(tag), sealed), "{name}");
            assert!(cipher.open(nonce, &head, &mut body, tag), "{name}");
            assert_eq!(body, plain, "{name}");
        }
    }

    /// Hosts with different processors meet: what one library seals, each opens. Lengths are around all block sizes.
    #[test]
    fn the_libraries_are_one_cipher_at_every_length() {
        let all = all(&[7; KEY_BYTES]);
        let lengths = (1..600).chain([1023, 1024, 1025, 4096, 10_007, RECORD_BYTES_MAX - 1, RECORD_BYTES_MAX]);
        for length in lengths {
            let plain: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let (nonce, head) = ([length as u8; 12], (length as u16).to_be_bytes());
            for (by, sealer) in &all {
                let mut body = plain.clone();
                let tag = sealer.seal(nonce, &head, &mut body).unwrap();
                for (to, opener) in &all {
                    let case = format!("{length} bytes sealed by {by}, opened by {to}");
                    let mut opened = body.clone();
                    assert!(opener.open(nonce, &head, &mut opened, tag), "{case}");
                    assert!(opened == plain, "{case}");
                    let mut forged = body.clone();
                    forged[length / 2] ^= 1;
                    assert!(!opener.open(nonce, &head, &mut forged, tag), "{case}");
                    assert!(!opener.open(nonce, &[9, 9], &mut body.clone(), tag), "{case}: another head");
                    let mut other = tag;
                    other[15] ^= 0x80;
                    assert!(!opener.open(nonce, &head, &mut body.clone(), other), "{case}: another tag");
                }
            }
        }
    }
}
