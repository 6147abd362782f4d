//! Puts a frame together in a buffer that is used again and again.
//!
//! Owns the bound of the frame. A record that does not fit leaves it as it was.

use zerocopy::IntoBytes;

use super::FrameRecord;
use super::header::{HEADER_BYTES, Header};
use super::reader::{WireNumber, WireOffset, WireRecord};

/// Writes one frame.
#[derive(Debug)]
pub(crate) struct FrameWriter<'a> {
    buf: &'a mut Vec<u8>,
    max: usize,
    records: u16,
}

impl<'a> FrameWriter<'a> {
    /// Begins a frame of at most `max` bytes; what was in `buf` is gone.
    pub(crate) fn new(buf: &'a mut Vec<u8>, max: usize) -> Self {
        buf.clear();
        buf.resize(HEADER_BYTES, 0);
        Self { buf, max, records: 0 }
    }

    /// Bytes so far, with the header.
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u16 {
        self.records
    }

    /// Whether no record was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Appends a record; false if it does not fit.
    pub(crate) fn push<R: FrameRecord>(&mut self, record: &R) -> bool {
        record.write(self)
    }

    /// Appends a record whose body is one number.
    pub(crate) fn append_number(&mut self, kind: u8, route: u32, number: u32) -> bool {
        let body = WireNumber { number: number.into(), reserved: 0.into() };
        self.append(kind, route, &[body.as_bytes()])
    }

    /// Appends a record whose body is one offset.
    pub(crate) fn append_offset(&mut self, kind: u8, route: u32, offset: u64) -> bool {
        self.append(kind, route, &[WireOffset { offset: offset.into() }.as_bytes()])
    }

    /// Appends a record whose body has these parts.
    pub(crate) fn append(&mut self, kind: u8, route: u32, body: &[&[u8]]) -> bool {
        let bytes = size_of::<WireRecord>() + body.iter().map(|part| part.len()).sum::<usize>();
        if self.buf.len() + bytes > self.max || self.records == u16::MAX {
            return false;
        }
        let bytes = u16::try_from(bytes).expect("every body is a struct of a few bytes, or at most a frame");
        let head = WireRecord { kind, reserved: 0, bytes: bytes.into(), route: route.into() };
        self.buf.extend_from_slice(head.as_bytes());
        for part in body {
            self.buf.extend_from_slice(part);
        }
        self.records += 1;
        true
    }

    /// Fills in the header. The frame is what the buffer holds.
    pub(crate) fn finish(self, incarnation: u32, sequence: u64, credits: u64) {
        Header { records: self.records, incarnation, sequence, credits }.write(self.buf);
    }
}
