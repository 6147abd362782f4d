//! Each opcode as literal bytes, truncated at every place.

use super::*;
use crate::wire::{CREDITS_UNLIMITED, NakCode, Syndrome};
use verbs::{Psn, Qkey, Qpn};

const BTH_REST: [u8; 11] = [0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1];
const RETH: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 7, 0, 0, 0, 8];

fn packet(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![opcode];
    bytes.extend_from_slice(&BTH_REST);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.extend_from_slice(&[0; ICRC_BYTES]);
    bytes
}

fn body(bytes: &[u8]) -> Body<'_> {
    let packet = Packet::parse(bytes).expect("a packet");
    assert_eq!((packet.bth.dest_qpn, packet.bth.psn), (Qpn(9), Psn::new(1)));
    packet.body
}

fn reth() -> Reth {
    Reth { addr: 0x1000, rkey: Rkey(7), dma_len: 8 }
}

#[test]
fn sends() {
    let imm = [0, 0, 1, 2];
    let cases = [
        (0x00, true, false, None, None),
        (0x01, false, false, None, None),
        (0x02, false, true, None, None),
        (0x03, false, true, Some(0x102), None),
        (0x04, true, true, None, None),
        (0x05, true, true, Some(0x102), None),
        (0x16, false, true, None, Some(Rkey(0x102))),
        (0x17, true, true, None, Some(Rkey(0x102))),
    ];
    for (opcode, start, end, with_imm, invalidate) in cases {
        let extension = if with_imm.is_some() || invalidate.is_some() { &imm[..] } else { &[] };
        let bytes = packet(opcode, &[extension, b"data"]);
        let expected = Request::Send { start, end, imm: with_imm, invalidate, payload: b"data" };
        assert_eq!(body(&bytes), Body::Request(expected), "{opcode:#x}");
        if invalidate.is_none() {
            assert_eq!(Opcode::send(start, end, with_imm.is_some()).byte(), opcode);
        }
    }
}

#[test]
fn writes() {
    let imm = [0xff, 0, 0, 1];
    let cases = [
        (0x06, true, false, None),
        (0x07, false, false, None),
        (0x08, false, true, None),
        (0x09, false, true, Some(0xff00_0001)),
        (0x0a, true, true, None),
        (0x0b, true, true, Some(0xff00_0001)),
    ];
    for (opcode, start, end, with_imm) in cases {
        let reth_bytes = if start { &RETH[..] } else { &[] };
        let imm_bytes = if with_imm.is_some() { &imm[..] } else { &[] };
        let bytes = packet(opcode, &[reth_bytes, imm_bytes, b"12345678"]);
        let expected = Request::Write { reth: start.then(reth), end, imm: with_imm, payload: b"12345678" };
        assert_eq!(body(&bytes), Body::Request(expected), "{opcode:#x}");
        assert_eq!(Opcode::write(start, end, with_imm.is_some()).byte(), opcode);
    }
}

#[test]
fn reads_and_atomics() {
    assert_eq!(body(&packet(0x0c, &[&RETH])), Body::Request(Request::Read(reth())));
    let mut eth = [0; 28];
    (eth[7], eth[11], eth[19], eth[27]) = (8, 7, 1, 2);
    let atomic = AtomicEth { addr: 8, rkey: Rkey(7), swap_or_add: 1, compare: 2 };
    assert_eq!(body(&packet(0x13, &[&eth])), Body::Request(Request::CompareSwap(atomic)));
    assert_eq!(body(&packet(0x14, &[&eth])), Body::Request(Request::FetchAdd(atomic)));
}

#[test]
fn responses() {
    let aeth_bytes = [0x1f, 0, 0, 3];
    let aeth = Aeth { syndrome: Syndrome::Ack(CREDITS_UNLIMITED), msn: 3 };
    for (opcode, start, end) in [(0x0d, true, false), (0x0e, false, false), (0x0f, false, true), (0x10, true, true)] {
        let with = start || end;
        let bytes = packet(opcode, &[if with { &aeth_bytes[..] } else { &[] }, b"abcd"]);
        let expected = Response::Read { start, end, aeth: with.then_some(aeth), payload: b"abcd" };
        assert_eq!(body(&bytes), Body::Response(expected), "{opcode:#x}");
        assert_eq!(Opcode::read_response(start, end).byte(), opcode);
    }
    assert_eq!(body(&packet(0x11, &[&aeth_bytes])), Body::Response(Response::Acknowledge(aeth)));
    let nak = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 3 };
    assert_eq!(body(&packet(0x11, &[&[0x62, 0, 0, 3]])), Body::Response(Response::Acknowledge(nak)));
    let bytes = packet(0x12, &[&aeth_bytes, &[0, 0, 0, 0, 0, 0, 1, 0]]);
    assert_eq!(body(&bytes), Body::Response(Response::Atomic(aeth, 256)));
}

#[test]
fn datagrams() {
    let deth_bytes = [0x11, 0x22, 0x33, 0x44, 0, 0x0a, 0x0b, 0x0c];
    let deth = Deth { qkey: Qkey(0x1122_3344), src_qpn: Qpn(0x0a_0b0c) };
    let plain = packet(0x64, &[&deth_bytes, b"data"]);
    assert_eq!(body(&plain), Body::Datagram(Datagram { deth, imm: None, payload: b"data" }));
    let with_imm = packet(0x65, &[&deth_bytes, &[0, 0, 1, 2], b"data"]);
    assert_eq!(body(&with_imm), Body::Datagram(Datagram { deth, imm: Some(0x102), payload: b"data" }));
    let empty = packet(0x64, &[&deth_bytes]);
    assert_eq!(body(&empty), Body::Datagram(Datagram { deth, imm: None, payload: b"" }));
}

#[test]
fn padding_is_removed() {
    let mut bytes = packet(0x04, &[b"abc\0"]);
    bytes[1] |= 1 << 4;
    let expected = Request::Send { start: true, end: true, imm: None, invalidate: None, payload: b"abc" };
    assert_eq!(body(&bytes), Body::Request(expected));
    let mut bytes = packet(0x04, &[]);
    bytes[1] |= 3 << 4;
    assert_eq!(Packet::parse(&bytes), Err(PacketFault::Truncated(16)));
    assert!((0..9).all(|n| usize::from(pad_field(n)) == pad_bytes(n)));
    assert_eq!([pad_bytes(0), pad_bytes(1), pad_bytes(2), pad_bytes(3), pad_bytes(4)], [0, 3, 2, 1, 0]);
}

#[test]
fn every_truncation_is_a_fault() {
    for opcode in Opcode::ALL {
        let full = packet(opcode.byte(), &[&vec![0; opcode.extension_bytes()]]);
        assert!(Packet::parse(&full).is_ok(), "{opcode:?}");
        for len in 0..full.len() {
            let fault = Packet::parse(&full[..len]).expect_err("too short");
            let expected =
                if len >= 16 && len % 4 != 0 { PacketFault::Misshapen(len) } else { PacketFault::Truncated(len) };
            assert_eq!(fault, expected, "{opcode:?} cut to {len}");
        }
    }
}

#[test]
fn headers_are_judged() {
    let mut bytes = packet(0x04, &[]);
    bytes[1] |= 1;
    assert_eq!(Packet::parse(&bytes), Err(PacketFault::Version(1)));
    let mut bytes = packet(0x04, &[]);
    bytes[3] = 0x12;
    assert_eq!(Packet::parse(&bytes), Err(PacketFault::Pkey(0xff12)));
    assert_eq!(Packet::parse(&packet(0x2c, &[])), Err(PacketFault::Opcode(0x2c)), "UC has no READ");
}

/// The two connected services differ in the highest bits of the opcode alone.
#[test]
fn requests_of_unreliable_connections_are_those_of_reliable_ones() {
    let rest = [&RETH[..], &[0, 0, 1, 2], b"data"].concat();
    for byte in 0x00..=0x0b {
        let (reliable, unreliable) = (packet(byte, &[&rest]), packet(byte | 0x20, &[&rest]));
        assert_eq!(body(&unreliable), body(&reliable), "{byte:#x}");
    }
}

#[test]
fn built_headers_are_parsed_again() {
    let bth = Bth {
        opcode: Opcode::WriteOnlyImm.byte(),
        solicited: true,
        pad: 0,
        version: 0,
        pkey: crate::wire::DEFAULT_PKEY,
        dest_qpn: Qpn(9),
        ack_request: true,
        psn: Psn::new(1),
    };
    let mut bytes = Header::new(&bth).with_reth(reth()).with_imm(5).as_bytes().to_vec();
    bytes.extend_from_slice(b"12345678\0\0\0\0");
    let packet = Packet::parse(&bytes).expect("a packet");
    assert_eq!(packet.bth, bth);
    let expected = Request::Write { reth: Some(reth()), end: true, imm: Some(5), payload: b"12345678" };
    assert_eq!(packet.body, Body::Request(expected));
}
