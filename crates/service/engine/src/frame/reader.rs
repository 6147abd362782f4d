//! Takes a frame apart into records, and a record into what its mechanism reads.
//!
//! Owns the head of a record, and the bodies that several mechanisms share. It never panics, whatever the bytes are.

use std::marker::PhantomData;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FrameRecord;
use super::error::FrameError;

/// In front of each record.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WireRecord {
    pub(super) kind: u8,
    pub(super) reserved: u8,
    /// With this head.
    pub(super) bytes: U16,
    pub(super) route: U32,
}

/// One number of 32 bits.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WireNumber {
    pub(super) number: U32,
    pub(super) reserved: U32,
}

/// One offset in a stream, or count that grows as such.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WireOffset {
    pub(super) offset: U64,
}

/// A record as it came: which, about what, and its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRecord<'a> {
    pub(crate) kind: u8,
    bytes: u16,
    pub(crate) route: u32,
    body: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// The next record, and what follows it.
    fn take(from: &'a [u8]) -> Result<(Self, &'a [u8]), FrameError> {
        let (head, rest) = WireRecord::ref_from_prefix(from).map_err(|_| FrameError::Truncated("record"))?;
        let (kind, bytes) = (head.kind, head.bytes.get());
        let body_bytes = usize::from(bytes).checked_sub(size_of::<WireRecord>());
        let body_bytes = body_bytes.ok_or(FrameError::Length { kind, bytes })?;
        let (body, rest) = rest.split_at_checked(body_bytes).ok_or(FrameError::Truncated("record"))?;
        if head.reserved != 0 {
            return Err(FrameError::Reserved("record"));
        }
        Ok((Self { kind, bytes, route: head.route.get(), body }, rest))
    }

    fn wrong_length(&self) -> FrameError {
        FrameError::Length { kind: self.kind, bytes: self.bytes }
    }

    /// The whole body.
    pub(crate) fn body<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> Result<&'a T, FrameError> {
        T::ref_from_bytes(self.body).map_err(|_| self.wrong_length())
    }

    /// The front of the body, and what follows it.
    pub(crate) fn front<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
    ) -> Result<(&'a T, &'a [u8]), FrameError> {
        self.front_of(self.body)
    }

    /// The front of what is left of the body.
    pub(crate) fn front_of<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
        rest: &'a [u8],
    ) -> Result<(&'a T, &'a [u8]), FrameError> {
        T::ref_from_prefix(rest).map_err(|_| self.wrong_length())
    }

    /// There is no body.
    pub(crate) fn nothing(&self) -> Result<(), FrameError> {
        if self.body.is_empty() { Ok(()) } else { Err(self.wrong_length()) }
    }

    /// The body is one number.
    pub(crate) fn number(&self) -> Result<u32, FrameError> {
        Ok(self.body::<WireNumber>()?.number.get())
    }

    /// The body is one offset.
    pub(crate) fn offset(&self) -> Result<u64, FrameError> {
        Ok(self.body::<WireOffset>()?.offset.get())
    }

    /// It is about the lane, and names no route.
    pub(crate) fn no_route(&self) -> Result<(), FrameError> {
        if self.route == 0 { Ok(()) } else { Err(FrameError::Reserved("record")) }
    }
}

/// The records of a frame. Ends after the first error.
#[derive(Debug)]
pub(crate) struct Records<'a, R> {
    rest: &'a [u8],
    left: u16,
    of: PhantomData<R>,
}

impl<'a, R: FrameRecord> Records<'a, R> {
    /// So many follow each other in `bytes`, and nothing else.
    pub(super) fn new(bytes: &'a [u8], count: u16) -> Self {
        Self { rest: bytes, left: count, of: PhantomData }
    }

    fn take(&mut self) -> Result<R, FrameError> {
        let (raw, rest) = RawRecord::take(self.rest)?;
        let record = R::read(&raw)?.ok_or(FrameError::Kind(raw.kind))?;
        self.rest = rest;
        Ok(record)
    }
}

impl<R: FrameRecord> Iterator for Records<'_, R> {
    type Item = Result<R, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let trailing = std::mem::take(&mut self.rest).len();
            return (trailing > 0).then_some(Err(FrameError::Trailing(trailing)));
        }
        let record = self.take();
        self.left -= 1;
        if record.is_err() {
            self.left = 0;
            self.rest = &[];
        }
        Some(record)
    }
}
