//! Requests and responses as bytes, the same on every transport.
//!
//! Owns both headers and their checks. It must never take a request or a response for whole of which a part is missing:
//! what lies in shared memory is checked by CRC32C before anybody believes it.

use std::time::Duration;

/// Version of both headers.
pub(crate) const VERSION: u8 = 2;
/// Bytes before a request's payload.
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
/// Bytes before a response's payload.
pub(crate) const RESPONSE_HEADER_BYTES: usize = 32;
/// Sequences have 48 bits: with the attempt behind them they are one word, which is never torn.
pub(crate) const SEQUENCE_BITS: u32 = 48;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
/// Requests that lie behind each other begin at multiples of this.
pub(crate) const FRAME_ALIGN: usize = 8;
/// Where the checksum stands in a request's header.
const REQUEST_CRC_AT: usize = 36;
/// Where it stands in a response's.
const RESPONSE_CRC_AT: usize = 28;

/// What a request asks for besides.
pub(crate) mod request_flag {
    /// The response is to be sent by a datagram, and not left for a READ.
    pub(crate) const REPLY: u8 = 1;
    /// The call is given up: it is not begun if it was not yet.
    pub(crate) const CANCEL: u8 = 2;
}

/// The payload is not here: it lies in the slot of the response, for a READ.
pub(crate) const RESPONSE_IN_SLOT: u8 = 1;
/// The worker has many calls: for a while it looks at its slots [`BUSY_AWAKE`] times as long as the client was told.
pub(crate) const RESPONSE_BUSY: u8 = 4;
/// See [`RESPONSE_BUSY`].
pub(crate) const BUSY_AWAKE: u32 = 16;
/// Between header and payload it says where and how long the client may write.
const RESPONSE_TURN: u8 = 2;
/// Bytes of that.
const TURN_BYTES: usize = 8;
/// A wait is told in such units.
const WAITED_UNIT_US: u128 = 64;
/// A response says the number of clients in such units.
const CLIENTS_UNIT: u32 = 4;

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// The call's number; the client's calls have numbers from 1.
    pub(crate) sequence: u64,
    /// How often the request was sent before.
    pub(crate) attempt: u16,
    /// The client's lease of its slots.
    pub(crate) token: u64,
    /// All calls below have ended for the client.
    pub(crate) floor: u64,
    pub(crate) len: u32,
    /// What is left until the deadline; 0: there is none.
    pub(crate) timeout_us: u32,
    pub(crate) flags: u8,
}

/// The word at the head of a slot.
pub(crate) fn word(sequence: u64, attempt: u16) -> u64 {
    sequence & SEQUENCE_MASK | u64::from(attempt) << SEQUENCE_BITS
}

/// The sequence in such a word.
pub(crate) fn sequence_of(word: u64) -> u64 {
    word & SEQUENCE_MASK
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The checksum of a frame, whose own place counts as zeroes.
fn checksum(frame: &[u8], at: usize) -> u32 {
    let (before, rest) = frame.split_at(at);
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), &rest[4..])
}

fn seal(frame: &mut [u8], at: usize) {
    let sum = checksum(frame, at);
    frame[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

impl RequestHeader {
    /// Header and payload behind each other.
    pub(crate) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(REQUEST_HEADER_BYTES + payload.len());
        frame.extend(word(self.sequence, self.attempt).to_le_bytes());
        frame.extend(self.token.to_le_bytes());
        frame.extend(self.floor.to_le_bytes());
        frame.extend(self.len.to_le_bytes());
        frame.extend(self.timeout_us.to_le_bytes());
        frame.extend([self.flags, VERSION, 0, 0]);
        frame.extend([0; 4]);
        frame.extend(payload);
        seal(&mut frame, REQUEST_CRC_AT);
        frame
    }

    /// The header alone, as it claims to be; `None` if it is too short, of another version or empty.
    pub(crate) fn peek(frame: &[u8]) -> Option<Self> {
        if frame.len() < REQUEST_HEADER_BYTES || frame[33] != VERSION {
            return None;
        }
        let first = u64_at(frame, 0);
        let header = Self {
            sequence: sequence_of(first),
            attempt: (first >> SEQUENCE_BITS) as u16,
            token: u64_at(frame, 8),
            floor: u64_at(frame, 16),
            len: u32_at(frame, 24),
            timeout_us: u32_at(frame, 28),
            flags: frame[32],
        };
        (header.sequence != 0).then_some(header)
    }

    /// The header and the payload of a whole frame; `None` if it is not whole.
    pub(crate) fn decode(frame: &[u8]) -> Option<(Self, &[u8])> {
        let header = Self::peek(frame)?;
        let end = REQUEST_HEADER_BYTES.checked_add(usize::try_from(header.len).ok()?)?;
        let frame = frame.get(..end)?;
        let is_whole = checksum(frame, REQUEST_CRC_AT) == u32_at(frame, REQUEST_CRC_AT);
        is_whole.then(|| (header, &frame[REQUEST_HEADER_BYTES..]))
    }
}

/// How a call ended at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// The payload is the service's response.
    Done = 0,
    /// The payload is the text of the service's error.
    Failed = 1,
    /// It was not begun: its deadline had passed.
    Late = 2,
    /// The service panicked.
    Panicked = 3,
    /// The response is longer than the server sends.
    ResponseTooLong = 4,
    /// It was not begun: the client does not follow the protocol.
    BadRequest = 5,
}

impl Status {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Done, Self::Failed, Self::Late, Self::Panicked, Self::ResponseTooLong, Self::BadRequest]
            .into_iter()
            .find(|status| *status as u8 == byte)
    }
}

/// The client has no turn.
pub(crate) const NO_SEAT: u16 = u16::MAX;

/// A client's turn: until its end it may write requests into that seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Its number, or [`NO_SEAT`].
    pub(crate) seat: u16,
    /// How long the request lay at the server before it was answered, in units of 64 us.
    pub(crate) waited: u16,
    /// Its end, in microseconds from when the request arrived. The client counts them from when it sent the request,
    /// which was earlier; so no two clocks are compared, and a client never believes that it has more time.
    pub(crate) ends_us: u32,
}

/// The header of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseHeader {
    pub(crate) sequence: u64,
    pub(crate) token: u64,
    pub(crate) len: u32,
    /// How long the service took, in microseconds.
    pub(crate) run_us: u32,
    pub(crate) status: Status,
    pub(crate) flags: u8,
    /// How many clients the server has, roughly ([`clients_word`]).
    pub(crate) clients: u8,
    pub(crate) turn: Option<Turn>,
}

/// A number of clients in a byte, rounded up.
pub(crate) fn clients_word(clients: u64) -> u8 {
    u8::try_from(clients.div_ceil(CLIENTS_UNIT.into())).unwrap_or(u8::MAX)
}

/// And back.
pub(crate) fn clients_of(word: u8) -> u32 {
    u32::from(word) * CLIENTS_UNIT
}

impl Turn {
    /// For a request that was answered after so long.
    pub(crate) fn new(seat: Option<u16>, waited: Duration, ends: Duration) -> Self {
        let waited = u16::try_from(waited.as_micros() / WAITED_UNIT_US).unwrap_or(u16::MAX);
        let ends_us = u32::try_from(ends.as_micros()).unwrap_or(u32::MAX);
        Self { seat: seat.unwrap_or(NO_SEAT), waited, ends_us }
    }

    /// How long the request lay at the server, or less.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_micros(u64::from(self.waited) * WAITED_UNIT_US as u64)
    }
}

impl ResponseHeader {
    /// Header and payload behind each other; without the payload if it lies in the slot.
    pub(crate) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(RESPONSE_HEADER_BYTES + payload.len());
        frame.extend(word(self.sequence, 0).to_le_bytes());
        frame.extend(self.token.to_le_bytes());
        frame.extend(self.len.to_le_bytes());
        frame.extend(self.run_us.to_le_bytes());
        let flags = self.flags | if self.turn.is_some() { RESPONSE_TURN } else { 0 };
        frame.extend([self.status as u8, flags, VERSION, self.clients]);
        frame.extend([0; 4]);
        if let Some(Turn { seat, waited, ends_us }) = self.turn {
            frame.extend(seat.to_le_bytes());
            frame.extend(waited.to_le_bytes());
            frame.extend(ends_us.to_le_bytes());
        }
        frame.extend(payload);
        seal(&mut frame, RESPONSE_CRC_AT);
        frame
    }

    /// The header as it claims to be.
    pub(crate) fn peek(frame: &[u8]) -> Option<Self> {
        if frame.len() < RESPONSE_HEADER_BYTES || frame[26] != VERSION {
            return None;
        }
        let sequence = sequence_of(u64_at(frame, 0));
        let status = Status::from_byte(frame[24])?;
        let (len, run_us) = (u32_at(frame, 16), u32_at(frame, 20));
        let (token, flags, clients) = (u64_at(frame, 8), frame[25] & !RESPONSE_TURN, frame[27]);
        let header = Self { sequence, token, len, run_us, status, flags, clients, turn: None };
        (sequence != 0).then_some(header)
    }

    /// Whether its payload is elsewhere.
    pub(crate) fn is_in_slot(&self) -> bool {
        self.flags & RESPONSE_IN_SLOT != 0
    }

    /// Whether the worker has many calls.
    pub(crate) fn is_busy(&self) -> bool {
        self.flags & RESPONSE_BUSY != 0
    }

    /// The header and the payload of a whole frame.
    pub(crate) fn decode(frame: &[u8]) -> Option<(Self, &[u8])> {
        let mut header = Self::peek(frame)?;
        let len = if header.is_in_slot() { 0 } else { usize::try_from(header.len).ok()? };
        let has_turn = frame[25] & RESPONSE_TURN != 0;
        let begin = RESPONSE_HEADER_BYTES + if has_turn { TURN_BYTES } else { 0 };
        let frame = frame.get(..begin.checked_add(len)?)?;
        let is_whole = checksum(frame, RESPONSE_CRC_AT) == u32_at(frame, RESPONSE_CRC_AT);
        if has_turn {
            let (first, ends_us) = (u32_at(frame, RESPONSE_HEADER_BYTES), u32_at(frame, RESPONSE_HEADER_BYTES + 4));
            header.turn = Some(Turn { seat: first as u16, waited: (first >> 16) as u16, ends_us });
        }
        is_whole.then(|| (header, &frame[begin..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestHeader =
        RequestHeader { sequence: 7, attempt: 3, token: 9, floor: 5, len: 5, timeout_us: 80, flags: 1 };
    const RESPONSE: ResponseHeader = ResponseHeader {
        sequence: 7,
        token: 9,
        len: 5,
        run_us: 1,
        status: Status::Failed,
        flags: 0,
        clients: 10,
        turn: None,
    };

    #[test]
    fn the_number_of_clients_is_told_roughly_and_never_too_low() {
        for clients in [0, 1, 4, 5, 40, 41, 400, 1000] {
            let told = u64::from(clients_of(clients_word(clients)));
            assert!(told >= clients && told < clients + 4, "{clients}: {told}");
        }
        assert_eq!(clients_of(clients_word(1 << 40)), 1020);
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let frame = REQUEST.encode(b"hello");
        assert_eq!(RequestHeader::decode(&frame), Some((REQUEST, &b"hello"[..])));
        // What lies behind it in its slot does not matter.
        let mut slot = frame.clone();
        slot.extend(b"older bytes");
        assert_eq!(RequestHeader::decode(&slot), Some((REQUEST, &b"hello"[..])));
    }

    #[test]
    fn no_frame_with_another_byte_or_a_part_missing_is_taken() {
        let turned = ResponseHeader { turn: Some(Turn { seat: 3, waited: 700, ends_us: 900 }), ..RESPONSE };
        assert_eq!(ResponseHeader::decode(&turned.encode(b"hello")), Some((turned, &b"hello"[..])));
        let frames = [REQUEST.encode(b"hello"), RESPONSE.encode(b"hello"), turned.encode(b"hello")];
        let taken = |which: usize, frame: &[u8]| match which {
            0 => RequestHeader::decode(frame).is_some(),
            _ => ResponseHeader::decode(frame).is_some(),
        };
        for (which, frame) in frames.iter().enumerate() {
            assert!(taken(which, frame));
            for at in 0..frame.len() {
                assert!(!taken(which, &frame[..at]), "cut at {at}");
                let mut other = frame.clone();
                other[at] ^= 0x10;
                assert!(!taken(which, &other), "byte {at} of frame {which}");
            }
        }
    }

    #[test]
    fn a_response_in_its_slot_has_no_payload_beside_it() {
        let flags = RESPONSE_IN_SLOT;
        let header =
            ResponseHeader { len: 4000, flags, turn: Some(Turn { seat: NO_SEAT, waited: 0, ends_us: 1 }), ..RESPONSE };
        assert_eq!(ResponseHeader::decode(&header.encode(&[])), Some((header, &[][..])));
    }
}
