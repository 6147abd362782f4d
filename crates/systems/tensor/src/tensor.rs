//! A tensor that is held: by the owner's program, or by a reader.
//!
//! Owns the look at the header behind the bytes. It must never return bytes of another generation as those of this one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use raas::{Mapped, RegionError, View};

use crate::books::Wanted;
use crate::counts::Counting;
use crate::draft::{Draft, check_place};
use crate::error::Error;
use crate::header::Header;
use crate::layout::Layout;
use crate::limits::HEADER_BYTES;
use crate::shelf::Shelf;

/// Bytes that are copied at a time from one pool of a host to another.
const PIECE_BYTES: u64 = 1 << 20;

/// Which tensor: it can be kept and sent, and is got by [`Reader::get_ref`](crate::Reader::get_ref) as long as the name has
/// this very generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorRef {
    /// Number of the pool.
    pub pool: u64,
    /// The name.
    pub name: String,
    /// The generation.
    pub generation: u64,
}

enum Source {
    /// Of a pool of this program, by a pin.
    Own { pool: Arc<Shelf>, pin: u64, mapped: Mapped },
    /// Lent, by memory of this host.
    Here { mapped: Mapped, _view: View, _held: Held },
    /// Lent, on another host.
    There { view: View, _held: Held },
}

/// Counts what a connection has lent.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A tensor as a reader holds it: its bytes stay those of its generation until this is dropped, or the pool is revoked,
/// which [`Tensor::check`] says. On the pool's host it is mapped, read-only, and no byte is copied.
pub struct Tensor {
    name: String,
    header: Header,
    source: Source,
    counting: Arc<Counting>,
}

impl Tensor {
    pub(crate) fn own(pool: &Arc<Shelf>, wanted: &Wanted) -> Result<Self, Error> {
        let (grant, header) = pool.pin(wanted, "this program")?;
        let mapped = pool.region.map(grant.at, HEADER_BYTES + header.layout.bytes());
        let mapped = mapped.map_err(|e| {
            pool.unpin(grant.pin);
            Error::of_region(e, &wanted.name)
        })?;
        pool.counting.got();
        let counting = Arc::clone(&pool.counting);
        let source = Source::Own { pool: Arc::clone(pool), pin: grant.pin, mapped };
        Ok(Self { name: wanted.name.clone(), header, source, counting })
    }

    /// What was lent, if it is what its owner says.
    pub(crate) fn lent(
        (name, header): (&str, Header),
        view: View,
        held: Held,
        counting: &Arc<Counting>,
    ) -> Result<Self, Error> {
        if view.len() != HEADER_BYTES + header.layout.bytes() {
            let what = format!("{} bytes were lent for a tensor of {}", view.len(), header.layout.bytes());
            return Err(Error::Protocol { pool: name.to_owned(), what });
        }
        let mapped = view.map().map_err(|e| Error::of_region(e, name))?;
        let source = match mapped {
            Some(mapped) => Source::Here { mapped, _view: view, _held: held },
            None => Source::There { view, _held: held },
        };
        counting.got();
        let tensor = Self { name: name.to_owned(), header, source, counting: Arc::clone(counting) };
        if tensor.is_here() {
            tensor.check()?;
        }
        Ok(tensor)
    }

    /// The name by which it was got.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type, shape, strides.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// Its generation.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.header.generation
    }

    /// What leads to this very tensor again.
    #[must_use]
    pub fn reference(&self) -> TensorRef {
        TensorRef { pool: self.header.pool, name: self.name.clone(), generation: self.header.generation }
    }

    /// Whether its bytes are in memory of this host, and mapped.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.mapped().is_some()
    }

    fn mapped(&self) -> Option<&Mapped> {
        match &self.source {
            Source::Own { mapped, .. } | Source::Here { mapped, .. } => Some(mapped),
            Source::There { .. } => None,
        }
    }

    /// The first byte of its payload, which may be read while this lives. [`Error::NotHere`] if it is another host's.
    pub fn as_ptr(&self) -> Result<*const u8, Error> {
        let mapped = self.mapped().ok_or_else(|| Error::NotHere { name: self.name.clone() })?;
        Ok(mapped.as_ptr().wrapping_add(HEADER_BYTES as usize).cast_const())
    }

    /// Whether all that was read until here was of this tensor. [`Error::Revoked`] if the pool was revoked or has moved:
    /// what is mapped is then a copy of before.
    pub fn check(&self) -> Result<(), Error> {
        // Behind the reads that are asked about.
        fence(Ordering::SeqCst);
        let mut bytes = [0; HEADER_BYTES as usize];
        match &self.source {
            Source::Own { mapped, .. } | Source::Here { mapped, .. } => {
                mapped.read(0, &mut bytes).and_then(|()| mapped.check()).map_err(|e| self.failed(e))?;
            }
            Source::There { view, .. } => view.read(0, &mut bytes).map_err(|e| self.failed(e))?,
        }
        confirm(&self.name, &self.header, &bytes)
    }

    /// Copies bytes out, from byte `at` of the payload on.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Error> {
        check_place(self.layout(), at, buf.len() as u64)?;
        self.counting.copied(buf.len() as u64);
        let read = match &self.source {
            Source::Own { mapped, .. } | Source::Here { mapped, .. } => mapped.read(HEADER_BYTES + at, buf),
            Source::There { view, .. } => view.read(HEADER_BYTES + at, buf),
        };
        read.map_err(|e| self.failed(e))?;
        self.check()
    }

    /// All of its payload, copied.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut all = vec![0; usize::try_from(self.layout().bytes()).unwrap_or(usize::MAX)];
        self.read(0, &mut all)?;
        Ok(all)
    }

    /// Brings its bytes into a tensor of a pool of this program: from another host by one READ, straight to their place; on
    /// one host by a copy, which nobody needs who can read them where they are. [`Error::WrongType`],
    /// [`Error::WrongShape`] if it is another kind of tensor. After an error the bytes in `draft` mean nothing.
    pub fn fetch_into(&self, draft: &Draft) -> Result<(), Error> {
        draft.layout().check_same(self.layout())?;
        let bytes = self.layout().bytes();
        let moved = match &self.source {
            Source::There { view, .. } => {
                self.counting.read(bytes);
                view.copy_into(HEADER_BYTES, bytes, &draft.pool().region, draft.payload_at())
            }
            Source::Here { mapped, .. } | Source::Own { mapped, .. } => {
                self.counting.copied(bytes);
                copy(mapped, bytes, draft)
            }
        };
        moved.map_err(|e| self.failed(e))?;
        self.check()?;
        draft.check()
    }

    fn failed(&self, error: RegionError) -> Error {
        Error::of_region(error, &self.name)
    }
}

/// Whether the bytes of a header, which were read behind others, say that those were of the tensor that was granted.
pub fn confirm(name: &str, granted: &Header, found: &[u8]) -> Result<(), Error> {
    let word = |at: usize| found.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
    let (generation, pool) = (word(0), word(16));
    if (generation, pool) == (granted.generation, granted.pool) {
        return Ok(());
    }
    Err(Error::Stale { name: name.to_owned(), held: granted.generation, current: generation })
}

fn copy(from: &Mapped, bytes: u64, draft: &Draft) -> Result<(), RegionError> {
    let mut piece = vec![0; usize::try_from(PIECE_BYTES.min(bytes)).unwrap_or(0)];
    let mut done = 0;
    while done < bytes {
        let count = (bytes - done).min(PIECE_BYTES);
        let part = &mut piece[..usize::try_from(count).unwrap_or(0)];
        from.read(HEADER_BYTES + done, part)?;
        draft.pool().region.write(draft.payload_at() + done, part)?;
        done += count;
    }
    Ok(())
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Source::Own { pool, pin, .. } = &self.source {
            pool.unpin(*pin);
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("name", &self.name).field("header", &self.header).finish_non_exhaustive()
    }
}
