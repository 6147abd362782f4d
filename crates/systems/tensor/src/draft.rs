//! A tensor that is being filled.
//!
//! Owns its block until it is put, and gives it back otherwise.

use std::fmt;
use std::sync::Arc;

use raas::{Mapped, RegionSlice};

use crate::error::Error;
use crate::header::Header;
use crate::layout::Layout;
use crate::limits::HEADER_BYTES;
use crate::shelf::{Shelf, lock};

/// A tensor of this program that has no name yet; nobody else reads it. [`Pool::make`](crate::Pool::make) makes it, and
/// [`Pool::put`](crate::Pool::put) gives it a name. Dropping it frees it.
pub struct Draft {
    pool: Arc<Shelf>,
    header: Header,
    at: u64,
    mapped: Mapped,
    is_put: bool,
}

impl Draft {
    pub(crate) fn new(pool: &Arc<Shelf>, header: Header, at: u64) -> Result<Self, Error> {
        let bytes = HEADER_BYTES + header.layout.bytes();
        let mapped = pool.region.map(at, bytes).and_then(|mapped| {
            mapped.write(0, &header.to_bytes())?;
            Ok(mapped)
        });
        match mapped {
            Ok(mapped) => Ok(Self { pool: Arc::clone(pool), header, at, mapped, is_put: false }),
            Err(error) => {
                lock(&pool.books).drop_filled(header.generation);
                Err(Error::of_region(error, pool.name()))
            }
        }
    }

    /// Type, shape, strides.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// Its generation, which it keeps when it is put.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.header.generation
    }

    /// The first byte of its payload, at a multiple of 256 in the pool. Valid while this lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapped.as_ptr().wrapping_add(HEADER_BYTES as usize)
    }

    /// Copies bytes in, from byte `at` of the payload on, which must be a multiple of the element's size.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_place(at, bytes.len() as u64)?;
        self.pool.counting.copied(bytes.len() as u64);
        self.mapped.write(HEADER_BYTES + at, bytes).map_err(|e| self.failed(e))
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.check_place(at, buf.len() as u64)?;
        self.pool.counting.copied(buf.len() as u64);
        self.mapped.read(HEADER_BYTES + at, buf).map_err(|e| self.failed(e))?;
        self.check()
    }

    /// [`Error::Revoked`] if the pool has moved since this was made: what was written to it since is lost.
    pub fn check(&self) -> Result<(), Error> {
        self.mapped.check().map_err(|e| self.failed(e))
    }

    /// A part of the pool's region: all of the payload, as the local end of operations of regions.
    pub fn slice(&self) -> Result<RegionSlice, Error> {
        let slice = self.pool.region.slice(self.payload_at(), self.header.layout.bytes());
        slice.map_err(|e| self.failed(e))
    }

    pub(crate) fn payload_at(&self) -> u64 {
        self.at + HEADER_BYTES
    }

    pub(crate) fn pool(&self) -> &Arc<Shelf> {
        &self.pool
    }

    pub(crate) fn put(mut self, pool: &Arc<Shelf>, name: &str) -> Result<u64, Error> {
        if !Arc::ptr_eq(&self.pool, pool) {
            let what = format!("a tensor of pool `{}` cannot be put into it: fetch it", self.pool.name());
            return Err(Error::Protocol { pool: pool.name().to_owned(), what });
        }
        self.check()?;
        lock(&pool.books).put(name, self.header.generation)?;
        self.is_put = true;
        Ok(self.header.generation)
    }

    fn check_place(&self, at: u64, given: u64) -> Result<(), Error> {
        check_place(&self.header.layout, at, given)
    }

    fn failed(&self, error: raas::RegionError) -> Error {
        Error::of_region(error, &format!("generation {} of {}", self.header.generation, self.pool.name()))
    }
}

/// Whether so many bytes from `at` on are elements of the tensor.
pub(crate) fn check_place(layout: &Layout, at: u64, given: u64) -> Result<(), Error> {
    let (bytes, dtype) = (layout.bytes(), layout.dtype());
    if !at.is_multiple_of(dtype.bytes()) {
        return Err(Error::Misaligned { offset: at, dtype: dtype.name(), bytes: dtype.bytes() });
    }
    if at.checked_add(given).is_none_or(|end| end > bytes) {
        return Err(Error::OutOfBounds { at, given, bytes });
    }
    Ok(())
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_put {
            lock(&self.pool.books).drop_filled(self.header.generation);
        }
    }
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("header", &self.header).finish_non_exhaustive()
    }
}
