//! Records about the UC queue pair beside the lane: the two ends' offers, and the places for WRITEs there.

use verbs::{ENDPOINT_BYTES_MAX, RemoteAddr, Rkey};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FrameRecord;
use super::error::FrameError;
use super::reader::RawRecord;
use super::writer::FrameWriter;
use crate::limits::{PIECE_BYTES_MIN, WRITE_PLACES_MAX};

const KIND_OFFER: u8 = 22;
const KIND_ANSWER: u8 = 23;
const KIND_PLACES_ASK: u8 = 24;
const KIND_PLACES: u8 = 25;
const KIND_PLACES_GRANT: u8 = 26;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireOffer {
    piece_bytes: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WirePlaces {
    addr: U64,
    rkey: U32,
    count: U32,
    bytes: U32,
    reserved: U32,
}

/// Memory into which the receiver of the record may WRITE pieces of messages on UC: docs/use/unreliable.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WritePlaces {
    pub(crate) first: RemoteAddr,
    /// 0: there are none.
    pub(crate) count: u32,
    /// Of each; they follow each other.
    pub(crate) bytes: u32,
}

impl WritePlaces {
    /// There are none.
    pub(crate) const NONE: Self = Self { first: RemoteAddr { addr: 0, rkey: Rkey(0) }, count: 0, bytes: 0 };

    fn fits(&self) -> bool {
        let all = u64::from(self.count) * u64::from(self.bytes);
        *self == Self::NONE
            || (1..=WRITE_PLACES_MAX).contains(&self.count)
                && self.bytes >= PIECE_BYTES_MIN
                && self.first.addr.checked_add(all).is_some()
    }

    fn read(raw: &RawRecord<'_>) -> Result<Self, FrameError> {
        let p = raw.body::<WirePlaces>()?;
        let first = RemoteAddr { addr: p.addr.get(), rkey: Rkey(p.rkey.get()) };
        let places = Self { first, count: p.count.get(), bytes: p.bytes.get() };
        if places.fits() { Ok(places) } else { Err(FrameError::Places { count: places.count, bytes: places.bytes }) }
    }

    fn to_wire(self) -> WirePlaces {
        WirePlaces {
            addr: self.first.addr.into(),
            rkey: self.first.rkey.0.into(),
            count: self.count.into(),
            bytes: self.bytes.into(),
            reserved: 0.into(),
        }
    }
}

/// One thing about the UC queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnreliableRecord {
    /// The sender's end of it, and the longest piece that it takes.
    Offer { piece_bytes: u32, endpoint: Vec<u8> },
    /// The sender took the receiver's end (0), and can receive; or the reason why there will be none.
    Answer { reason: u32 },
    /// The sender wants to WRITE on it.
    PlacesAsk,
    /// Where it may: numbers below the count.
    Places(WritePlaces),
    /// Numbers below this one are granted.
    PlacesGrant { end: u64 },
}

impl FrameRecord for UnreliableRecord {
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        if !(KIND_OFFER..=KIND_PLACES_GRANT).contains(&raw.kind) {
            return Ok(None);
        }
        raw.no_route()?;
        Ok(Some(match raw.kind {
            KIND_OFFER => read_offer(raw)?,
            KIND_ANSWER => Self::Answer { reason: raw.number()? },
            KIND_PLACES_ASK => {
                raw.nothing()?;
                Self::PlacesAsk
            }
            KIND_PLACES => Self::Places(WritePlaces::read(raw)?),
            _ => Self::PlacesGrant { end: raw.offset()? },
        }))
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        match self {
            Self::Offer { piece_bytes, endpoint } => {
                let front = WireOffer { piece_bytes: (*piece_bytes).into(), reserved: 0.into() };
                frame.append(KIND_OFFER, 0, &[front.as_bytes(), endpoint])
            }
            Self::Answer { reason } => frame.append_number(KIND_ANSWER, 0, *reason),
            Self::PlacesAsk => frame.append(KIND_PLACES_ASK, 0, &[]),
            Self::Places(places) => frame.append(KIND_PLACES, 0, &[places.to_wire().as_bytes()]),
            Self::PlacesGrant { end } => frame.append_offset(KIND_PLACES_GRANT, 0, *end),
        }
    }
}

fn read_offer(raw: &RawRecord<'_>) -> Result<UnreliableRecord, FrameError> {
    let (offer, endpoint) = raw.front::<WireOffer>()?;
    if !(1..=ENDPOINT_BYTES_MAX).contains(&endpoint.len()) {
        return Err(FrameError::Endpoint { found: endpoint.len() });
    }
    let piece_bytes = offer.piece_bytes.get();
    if piece_bytes < PIECE_BYTES_MIN {
        return Err(FrameError::Piece(piece_bytes));
    }
    Ok(UnreliableRecord::Offer { piece_bytes, endpoint: endpoint.to_vec() })
}
