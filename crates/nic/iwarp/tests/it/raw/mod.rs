//! One queue pair and a peer that is a list of bytes: what a foreign or hostile stack sends, byte for byte.
#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use std::collections::VecDeque;

use iwarp::Gather;
use iwarp::ddp::{Header, Tagged, Untagged};
use iwarp::mpa::{CRC_BYTES, Enhanced, FrameKind, Revision, Startup, crc, fpdu_bytes};
use iwarp::rdmap::Opcode;
use iwarp::terminate::Terminate;

use crate::pair::{End, Setup};

/// A frame with a right CRC field.
pub fn frame(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((header.len() + payload.len()) as u16).to_be_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(payload);
    bytes.resize(fpdu_bytes(header.len() + payload.len()) - CRC_BYTES, 0);
    let field = crc(&bytes);
    bytes.extend(field);
    bytes
}

pub fn tagged(opcode: Opcode, is_last: bool, stag: u32, offset: u64) -> Vec<u8> {
    Tagged { is_last, ulp: opcode.control(), stag, offset }.to_bytes().to_vec()
}

pub fn untagged(opcode: Opcode, queue: u32, msn: u32, offset: u32) -> Vec<u8> {
    Untagged { is_last: true, ulp: opcode.control(), ulp_word: 0, queue, msn, offset }.to_bytes().to_vec()
}

/// A request as a peer that knows RFC 6581 sends it.
pub fn request() -> Startup {
    let enhanced = Enhanced { ird: 8, ord: 8, peer_to_peer: true, rtr_send: false, rtr_write: true, rtr_read: false };
    Startup {
        kind: FrameKind::Request,
        revision: Revision::Two,
        wants_markers: false,
        wants_crc: false,
        is_rejected: false,
        enhanced: Some(enhanced),
        private_data: Vec::new(),
    }
}

/// A queue pair whose peer the test plays.
pub struct Raw {
    pub end: End,
    to_end: VecDeque<u8>,
    from_end: VecDeque<u8>,
    gather: Gather,
}

impl Raw {
    /// Without a connection.
    pub fn idle(setup: &Setup) -> Self {
        let gather = Gather::new(64, 1 << 18);
        Self { end: End::new(0, setup), to_end: VecDeque::new(), from_end: VecDeque::new(), gather }
    }

    /// Accepted, with the reply taken off.
    pub fn accepted(setup: &Setup, request: &Startup) -> Self {
        let mut raw = Self::idle(setup);
        raw.end.qp.accept(request, b"").expect("idle");
        let reply = raw.output();
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        raw
    }

    /// Accepted, and the first frame, a Write without bytes, has come.
    pub fn open(setup: &Setup) -> Self {
        let mut raw = Self::accepted(setup, &request());
        raw.input(&frame(&tagged(Opcode::Write, true, 0, 0), &[]));
        assert_eq!(raw.output(), [0; 0]);
        raw
    }

    /// Gives bytes to the queue pair.
    pub fn input(&mut self, bytes: &[u8]) {
        self.to_end.extend(bytes);
        while !self.to_end.is_empty() {
            if self.end.receive(1 << 20, &mut self.to_end) == 0 {
                panic!("it does not read");
            }
        }
    }

    /// What the queue pair sends.
    pub fn output(&mut self) -> Vec<u8> {
        while self.end.transmit(&mut self.gather, 1 << 20, &mut self.from_end) > 0 {}
        self.from_end.drain(..).collect()
    }

    /// At most so many bytes of what it sends.
    pub fn output_some(&mut self, most: usize) -> Vec<u8> {
        self.end.transmit(&mut self.gather, most, &mut self.from_end);
        self.from_end.drain(..).collect()
    }

    /// The Terminate message that is all that it sends.
    pub fn terminate(&mut self) -> Terminate {
        let output = self.output();
        let frames = split(&output);
        assert_eq!(frames.len(), 1, "one frame");
        parse_terminate(&frames[0])
    }
}

/// Header and payload of each frame without markers.
pub fn split(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let ulpdu_bytes = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let (now, later) = bytes.split_at(fpdu_bytes(ulpdu_bytes));
        let header = Header::parse(&now[2..]).expect("a header");
        frames.push((header, now[2 + header.len()..2 + ulpdu_bytes].to_vec()));
        bytes = later;
    }
    frames
}

pub fn parse_terminate((header, payload): &(Header, Vec<u8>)) -> Terminate {
    let expected =
        Untagged { is_last: true, ulp: Opcode::Terminate.control(), ulp_word: 0, queue: 2, msn: 1, offset: 0 };
    assert_eq!(*header, Header::Untagged(expected));
    Terminate::parse(payload).expect("it can be read")
}
