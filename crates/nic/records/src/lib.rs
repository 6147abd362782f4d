//! Encrypts and authenticates what two software NICs send to each other: the keys of a connection, the records of its
//! stream over TCP, and single packets over RoCEv2.
//!
//! No I/O, clock or randomness: bytes go in, bytes come out. The bytes are in docs/wire.md, the reasons in
//! docs/encryption.md. AES-GCM is that of `graviola`, or of `aes-gcm` on processors that it cannot use.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cipher;
mod keys;
mod opener;
mod packets;
mod sealer;
mod window;

pub use keys::{Keys, SECRET_BYTES, Secret};
pub use opener::{Opener, RecordError};
pub use packets::{
    PACKET_HEAD_BYTES, PACKET_NUMBER_BYTES, PACKET_SEAL_BYTES, PACKETS_PER_KEY, PacketKeys, PacketOpener,
    PacketRefused, PacketSealer, Purpose,
};
pub use sealer::Sealer;
pub use window::REPLAY_WINDOW_PACKETS;

/// What seals records, for people.
pub const CIPHER: &str = "AES-128-GCM";
/// Bytes of the authentication tag of a record.
pub const TAG_BYTES: usize = 16;
/// Bytes in front of a record: its length, big-endian.
pub const LENGTH_BYTES: usize = 2;
/// Most bytes of the stream in one record: what the peer has to hold before it can look at them.
pub const RECORD_BYTES_MAX: usize = 32 * 1024;

/// The nonce of a record: its direction's salt and its number, which is never used twice.
fn nonce(salt: [u8; 4], number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}
