//! Bytes of RoCEv2 packets: the UDP payload from the BTH to the ICRC (IBTA chapter 9, annex A17).
//!
//! Owns encoding and decoding. It knows no QP, and keeps no state except a cache of CRC constants. Every function takes
//! any byte sequence and returns a typed error instead of panicking.

mod bth;
mod eth;
mod icrc;
mod opcode;
mod packet;
mod sealed;

pub use bth::{Bth, DEFAULT_PKEY};
pub use eth::{Aeth, AtomicEth, CREDITS_UNLIMITED, Deth, NakCode, Reth, Syndrome};
pub use eth::{ack_timeout, credit_code, credits_of, rnr_delay};
pub use icrc::{Checked, ICRC_BYTES, IcrcChecker, IdGuess, PseudoHeader};
pub use opcode::{Opcode, UnknownOpcode};
pub use packet::{Body, Datagram, Header, Packet, PacketFault, Request, Response, Unchecked};
pub use packet::{has_right_length, pad_bytes, pad_field};
pub use sealed::{SEALED_EXTRA_BYTES, SEALED_HEAD_BYTES, SEALED_OPCODE, sealed_bth, sealed_head};

/// Bytes of a packet, or of a path MTU, as lengths on the wire. No such length is near the largest number of this type.
pub fn wire_len(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
