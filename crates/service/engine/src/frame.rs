//! Control frames on a lane: the bytes of docs/inside/wire.md, section "Lane frames".
//!
//! Owns layout, syntax, and what can be said of a value alone ([`check_ring`], [`check_route`]). It must never judge
//! meaning: whether a route exists or a number is allowed is decided where the record is used. All integers are
//! big-endian; parsing never panics, whatever the bytes are.
//!
//! A frame is a `header` and records. Each mechanism has its records in a file of its own, with their layout, their
//! reading and their writing side by side: `streams`, `operations`, `unreliable`, and the `lane` itself. `reader` and
//! `writer` know none of them: who takes a frame apart says which records it may have.

mod error;
mod header;
mod lane;
mod operations;
mod reader;
mod streams;
mod unreliable;
mod writer;

pub(crate) use error::FrameError;
pub(crate) use header::Header;
pub(crate) use lane::LaneRecord;
pub(crate) use operations::{KERNEL_OVERHEAD_BYTES, OperationRecord, Run, RunRegion};
pub(crate) use reader::{RawRecord, Records};
pub(crate) use streams::{Back, Open, StreamRecord, WireRing, check_ring, check_route};
pub(crate) use unreliable::{UnreliableRecord, WritePlaces};
pub(crate) use writer::FrameWriter;

/// Version in the header.
const FRAME_VERSION: u8 = 1;

/// The records of one mechanism.
pub(crate) trait FrameRecord: Sized {
    /// Takes a record apart. `None`: it is not one of these.
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError>;

    /// Appends it to a frame; false if it does not fit.
    fn write(&self, frame: &mut FrameWriter<'_>) -> bool;
}

/// Takes a frame apart: header, then records.
pub(crate) fn parse<R: FrameRecord>(frame: &[u8]) -> Result<(Header, Records<'_, R>), FrameError> {
    let (header, rest) = Header::read(frame)?;
    Ok((header, Records::new(rest, header.records)))
}

/// Takes a frame apart; how many records it has, or a text that says what is wrong.
pub(crate) fn check_frame_of<R: FrameRecord>(frame: &[u8]) -> Result<usize, String> {
    let (_, records) = parse::<R>(frame).map_err(|e| e.to_string())?;
    records.map(|record| record.map(drop).map_err(|e| e.to_string())).try_fold(0, |n, record| record.map(|()| n + 1))
}

#[cfg(test)]
mod tests;
