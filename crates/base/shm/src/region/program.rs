//! Memory of the program around this library, which it may unmap at any time.
//!
//! Owns the copies in and out of such memory. They are made by the kernel (`process_vm_readv`, `process_vm_writev` on
//! the own process), which answers EFAULT where the program has no such memory any more, or not for that use. So
//! nothing that a program does to its memory raises a signal here. It must never touch such memory by a pointer.
//!
//! What that costs, beside a copy by the processor: about 0.7 us for 2 bytes and 1 us for 4 KiB; 4.5 us instead of
//! 0.5 us for 64 KiB. Two other ways were rejected. A handler for SIGSEGV belongs to the program, which may bring its
//! own. To look before a copy by the processor leaves a moment in which the program can unmap the memory.
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{AtomicOp, Backing, Mapping, Region, RegionError};

/// The bytes of a copy that are stored last: a program that waits for the last byte of a message must not see it before
/// the others, and the kernel may copy one piece in any order.
const LAST_BYTES: usize = 8;

impl Region {
    /// `len` bytes of the own program's memory from address `start`, which stays the program's: it is not unmapped when
    /// the last handle goes, and the program may write to it, or unmap it, at any time. A copy in or out then fails with
    /// [`RegionError::Unmapped`]. There are no words of it; [`Region::atomic64`] is atomic towards other calls of it
    /// that a lock of the caller keeps apart, and not towards the program.
    ///
    /// Fails with `InvalidInput` if `len` is 0 or the range ends beyond the address space, and as
    /// `process_vm_readv(2)` fails where what confines this process refuses that call.
    ///
    /// # Safety
    ///
    /// The program has given these bytes to be read, and written if `writable`: no Rust reference to them lives while a
    /// copy is made.
    pub unsafe fn of_program(start: usize, len: usize, writable: bool) -> io::Result<Self> {
        let refused =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("no memory has {len} bytes at {start:#x}"));
        if len == 0 || isize::try_from(len).is_err() || start.checked_add(len).is_none() {
            return Err(refused());
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start)).ok_or_else(refused)?;
        may_copy()?;
        let mapping = Mapping { start, len, reach: 0, writable, backing: Backing::Program, file: None, watched: None };
        Ok(Self(Arc::new(mapping)))
    }

    /// What [`Region::read`] does where nothing is mapped for it.
    #[cold]
    pub(super) fn read_program(&self, offset: u64, dst: &mut [u8], refused: RegionError) -> Result<(), RegionError> {
        let from = self.in_program(offset, dst.len(), refused)?;
        fence(Ordering::Acquire);
        copy(Direction::Out, from, &[(dst.as_mut_ptr(), dst.len())])
    }

    /// What [`Region::write`] does where nothing is mapped for it. The last bytes are stored last.
    #[cold]
    pub(super) fn write_program(&self, offset: u64, src: &[u8], refused: RegionError) -> Result<(), RegionError> {
        let to = self.in_program(offset, src.len(), refused)?;
        if !self.is_writable() {
            return Err(RegionError::ReadOnly);
        }
        fence(Ordering::Release);
        let (body, last) = src.split_at(src.len().saturating_sub(LAST_BYTES));
        let piece = |bytes: &[u8]| (bytes.as_ptr().cast_mut(), bytes.len());
        if cfg!(target_arch = "x86_64") {
            // Stores of one processor are seen in their order, and the pieces of one call are copied one by one.
            return copy(Direction::In, to, &[piece(body), piece(last)]);
        }
        copy(Direction::In, to, &[piece(body)])?;
        fence(Ordering::SeqCst);
        copy(Direction::In, to + body.len(), &[piece(last)])
    }

    /// What [`Region::atomic64`] does where nothing is mapped for it.
    #[cold]
    pub(super) fn atomic64_program(&self, offset: u64, op: AtomicOp, refused: RegionError) -> Result<u64, RegionError> {
        let mut old = [0; 8];
        self.read_program(offset, &mut old, refused)?;
        let found = u64::from_ne_bytes(old);
        // Stored also if it is the same: the right to store is part of the operation.
        self.write_program(offset, &op.apply(found).to_ne_bytes(), refused)?;
        Ok(found)
    }

    /// The address of `len` bytes from `offset` of the program's memory; `refused` is the answer for other regions.
    fn in_program(&self, offset: u64, len: usize, refused: RegionError) -> Result<usize, RegionError> {
        if self.0.backing != Backing::Program || !matches!(refused, RegionError::OutOfBounds { .. }) {
            return Err(refused);
        }
        let (size, wanted) = (self.0.len as u64, len as u64);
        if wanted > size || offset > size - wanted {
            return Err(RegionError::OutOfBounds { offset, len: wanted, size });
        }
        // It is at most the length of the region.
        Ok(self.0.start.as_ptr().addr() + usize::try_from(offset).unwrap_or(usize::MAX))
    }
}

#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// Copies between own pieces, in their order, and the program's memory from `at`.
fn copy(direction: Direction, at: usize, own: &[(*mut u8, usize)]) -> Result<(), RegionError> {
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
    let mut total = 0;
    for (piece, (base, len)) in pieces.iter_mut().zip(own) {
        *piece = libc::iovec { iov_base: base.cast(), iov_len: *len };
        total += len;
    }
    if total == 0 {
        return Ok(());
    }
    let there = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: total };
    let (pieces, count) = (pieces.as_ptr(), own.len() as libc::c_ulong);
    // SAFETY: `getpid` has no precondition. The own pieces are slices that the callers borrow for this call, exclusively
    // where they are stored to; the kernel checks the other range, which `Region::of_program` was given by the program.
    let moved = unsafe {
        let own_process = libc::getpid();
        match direction {
            Direction::In => libc::process_vm_writev(own_process, pieces, count, &raw const there, 1, 0),
            Direction::Out => libc::process_vm_readv(own_process, pieces, count, &raw const there, 1, 0),
        }
    };
    // A range that is there in part is copied up to its end.
    if usize::try_from(moved).is_ok_and(|moved| moved == total) {
        return Ok(());
    }
    Err(RegionError::Unmapped { address: at as u64, len: total as u64 })
}

/// Whether this process may have the kernel copy its own memory, which some confinements forbid.
fn may_copy() -> io::Result<()> {
    let (from, mut to) = ([7_u8; 1], [0_u8; 1]);
    let at = from.as_ptr().expose_provenance();
    match copy(Direction::Out, at, &[(to.as_mut_ptr(), 1)]) {
        Ok(()) => Ok(()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
