//! Encrypts and authenticates what two software NICs send to each other: the keys of a connection, the records of its
//! stream over TCP, and single packets over RoCEv2.
//!
//! No I/O, clock or randomness: bytes go in, bytes come out. The bytes are in docs/inside/control-link.md, the reasons
//! in docs/operate/encryption.md. Records are those of TLS 1.3 (RFC 8446, 5.2), so that one end may leave its own to a
//! kernel. AES-GCM is that of `graviola`, or of `aes-gcm` on processors that it cannot use.
//!
//! It must never use a number twice under one key, or show a byte that was not authenticated. May use nothing of the
//! house. Order of calls: each number once and in order; a key is changed before it is worn.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod cipher;
mod keys;
mod limit;
mod opener;
mod packets;
mod record_key;
#[cfg(test)]
mod rfc8448;
mod sealer;
mod window;

pub use keys::{Keys, SECRET_BYTES, Secret};
pub use limit::{RECORDS_PER_KEY, RECORDS_UNTIL_WORN, RecordLimit};
pub use opener::{Opener, RecordError};
pub use packets::{
    PACKET_HEAD_BYTES, PACKET_NUMBER_BYTES, PACKET_SEAL_BYTES, PACKETS_PER_KEY, PacketKeys, PacketOpener,
    PacketRefused, PacketSealer, Purpose,
};
pub use record_key::RecordKey;
pub use sealer::{SealError, Sealer};
pub use window::REPLAY_WINDOW_PACKETS;

/// What seals records, for people.
pub const CIPHER: &str = "AES-128-GCM";
/// Bytes of the authentication tag of a record.
pub const TAG_BYTES: usize = 16;
/// Bytes in front of a record: its type, a version, and its length.
pub const RECORD_HEAD_BYTES: usize = 5;
/// Bytes behind what a record carries: the type of its content, and the tag.
pub const RECORD_TAIL_BYTES: usize = 1 + TAG_BYTES;
/// Most bytes of the stream in one record (RFC 8446, 5.1): what the peer has to hold before it can look at them.
pub const RECORD_BYTES_MAX: usize = 16 * 1024;

/// The type of a record that carries the application's data, in its head in the clear and at the end of what is encrypted.
const APPLICATION_DATA: u8 = 23;
/// What a record of TLS 1.3 begins with: its type, and the version that all of them claim.
const RECORD_START: [u8; 3] = [APPLICATION_DATA, 3, 3];
