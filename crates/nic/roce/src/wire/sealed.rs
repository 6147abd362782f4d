//! Sealed packets, of our own (docs/inside/control-link.md, "Sealed packets"): a BTH in the clear, the packet's number,
//! the encrypted packet from its own BTH to its padding, and a tag. There is no ICRC: the tag finds every change that
//! it would find.
//!
//! Owns the clear header. The seal is that of `records`.

use records::{PACKET_HEAD_BYTES, PACKET_SEAL_BYTES};
use verbs::{Psn, Qpn};

use super::{Bth, DEFAULT_PKEY, ICRC_BYTES};

/// Opcode of a sealed packet, from those that the IBTA leaves to manufacturers (0xc0 to 0xff).
pub const SEALED_OPCODE: u8 = 0xd2;
/// Bytes in the clear in front of the number: a BTH.
pub const SEALED_HEAD_BYTES: usize = Bth::BYTES;
/// By how many bytes a sealed packet is longer than the same packet with its ICRC.
pub const SEALED_EXTRA_BYTES: usize = PACKET_HEAD_BYTES + PACKET_SEAL_BYTES - ICRC_BYTES;

const _: () = assert!(SEALED_HEAD_BYTES == PACKET_HEAD_BYTES, "records authenticates all of the BTH");

/// The clear header of a sealed packet to a QP. `psn`: the low bits of the packet's number, or for a datagram what
/// names its key at the receiver.
pub const fn sealed_head(to: Qpn, psn: Psn) -> [u8; SEALED_HEAD_BYTES] {
    let bth = Bth {
        opcode: SEALED_OPCODE,
        solicited: false,
        pad: 0,
        version: 0,
        pkey: DEFAULT_PKEY,
        dest_qpn: to,
        ack_request: false,
        psn,
    };
    bth.to_bytes()
}

/// The clear header of a UDP payload that says to be a sealed packet.
pub fn sealed_bth(datagram: &[u8]) -> Option<Bth> {
    let bth = Bth::parse(datagram.first_chunk()?);
    (bth.opcode == SEALED_OPCODE).then_some(bth)
}
