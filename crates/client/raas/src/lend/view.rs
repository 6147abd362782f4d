//! A message as its receiver sees it: lent by the sender, or a copy.
//!
//! Owns the loan: it is given back once, when the view is dropped. It must never give out a reference to shared memory:
//! the lender, or another program that has the region open, may write to it at any time.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use super::borrowed::Borrowed;
use crate::region::{Mapped, Region, RegionError};

/// A message received by [`MessageStream::receive_view`](crate::MessageStream::receive_view): a slice that the sender
/// lent, or a copy if the sender sent bytes. Dropping it gives a slice back, and the sender may use it again.
///
/// A slice that was lent on this host is mapped, and stays mapped while the view is there, also when the sender or the
/// daemon has ended. One of another host stays there, and [`View::read`] and [`View::copy_into`] fetch from it. A sender
/// that breaks the rules can change bytes meanwhile, so a second look may show other bytes: copy once, and check and use
/// the copy.
pub struct View(Source);

enum Source {
    Copy(Vec<u8>),
    Lent { lease: Arc<Borrowed>, loan: u32, offset: u64, len: u64 },
}

impl View {
    pub(super) fn lent(lease: Arc<Borrowed>, loan: u32, offset: u64, len: u64) -> Self {
        Self(Source::Lent { lease, loan, offset, len })
    }

    pub(crate) fn copy(bytes: Vec<u8>) -> Self {
        Self(Source::Copy(bytes))
    }

    /// Bytes of the message.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Source::Copy(bytes) => bytes.len() as u64,
            Source::Lent { len, .. } => *len,
        }
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is a slice of the sender's region.
    pub fn is_lent(&self) -> bool {
        matches!(self.0, Source::Lent { .. })
    }

    /// Opens what is lent, as the first look does by itself. That asks the daemon, and waits for its answer.
    pub fn open(&self) -> Result<(), RegionError> {
        match &self.0 {
            Source::Copy(_) => Ok(()),
            Source::Lent { lease, .. } => lease.handle().map(drop),
        }
    }

    /// Copies `buf.len()` bytes from byte `at` of the message on. [`RegionError::Revoked`] if the lender's region was
    /// revoked meanwhile: the bytes in `buf` then mean nothing.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), RegionError> {
        self.check(at, buf.len() as u64)?;
        match &self.0 {
            Source::Copy(bytes) => {
                // Checked just before.
                let from = usize::try_from(at).unwrap_or(bytes.len());
                buf.copy_from_slice(&bytes[from..from + buf.len()]);
                Ok(())
            }
            Source::Lent { lease, offset, .. } => lease.handle()?.read_lent(offset + at, buf),
        }
    }

    /// Copies `len` bytes from byte `at` of the message on to `offset` of a region of this program: on one host from
    /// memory to memory, from another host straight there, if the region is of this host and of
    /// the same session.
    pub fn copy_into(&self, at: u64, len: u64, region: &Region, offset: u64) -> Result<(), RegionError> {
        self.check(at, len)?;
        match &self.0 {
            Source::Copy(bytes) => {
                let (from, len) = (usize::try_from(at).unwrap_or(0), usize::try_from(len).unwrap_or(0));
                region.write_vectored(offset, &[IoSlice::new(&bytes[from..from + len])])
            }
            Source::Lent { lease, offset: begin, .. } => {
                lease.handle()?.copy_lent(begin + at, len, &*region.handle()?, offset)
            }
        }
    }

    /// The message by its address, if it was lent on this host; none if it is a copy, or lies on another host. Keep the
    /// view as long as the bytes are looked at: then the sender does not use the slice for something else.
    pub fn map(&self) -> Result<Option<Mapped>, RegionError> {
        match &self.0 {
            Source::Copy(_) => Ok(None),
            Source::Lent { lease, offset, len, .. } => Mapped::of_lent(lease.handle()?, *offset, *len),
        }
    }

    /// The whole message, copied.
    pub fn to_vec(&self) -> Result<Vec<u8>, RegionError> {
        let mut all = vec![0; usize::try_from(self.len()).unwrap_or(usize::MAX)];
        self.read(0, &mut all)?;
        Ok(all)
    }

    /// Gives it back, as dropping it does.
    pub fn give_back(self) {}

    fn check(&self, at: u64, len: u64) -> Result<(), RegionError> {
        let bytes = self.len();
        if at.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(RegionError::OutOfBounds { name: "of a message".into(), offset: at, len, bytes });
        }
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Source::Lent { lease, loan, .. } = &self.0 {
            lease.give_back(*loan);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("len", &self.len()).field("is_lent", &self.is_lent()).finish()
    }
}
