//! Mapped memory that others may write at any time.
//!
//! Owns mappings and the copies in and out of them. It must never make a Rust reference (`&[u8]`, `&u64`) to mapped
//! bytes: the compiler may assume that what a reference points to does not change, and may read it twice.
//!
//! **How bytes are copied.** `ptr::copy_nonoverlapping` between raw pointers, after a bounds check, with an empty
//! assembler block on both sides that takes the shared pointer and may, as far as the compiler knows, change all
//! memory. Three alternatives were rejected: a loop of volatile or relaxed atomic byte accesses is never vectorised and
//! costs a multiple of the time for 64 KiB; `rep movsb` is slow for short pieces and x86 only; a bare
//! `copy_nonoverlapping` is fast, but the optimiser may forward it, that is, read the *shared* bytes again where the
//! code reads its private copy, and so undo a check made in between. The blocks forbid that forwarding, so each copy
//! happens once and its result is stable. A peer that writes during the copy makes torn bytes, and nothing worse: they
//! are plain `u8`, valid in every state.
use std::arch::asm;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags};

mod atomic;
mod program;
mod word;

use crate::fault::Watched;
use crate::undertaker;

pub use atomic::AtomicOp;
pub(crate) use word::Row64;
pub use word::{Word32, Word64};

/// A bounds, alignment or access check failed; nothing was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The range does not lie in the region.
    #[error("range {offset}+{len} is outside of a region of {size} bytes")]
    OutOfBounds {
        /// Start of the range, bytes.
        offset: u64,
        /// Length of the range, bytes.
        len: u64,
        /// Size of the region, bytes.
        size: u64,
    },
    /// The offset is not a multiple of the word size.
    #[error("offset {offset} is not aligned to {align}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// What it must be a multiple of.
        align: u64,
    },
    /// The region is mapped read-only.
    #[error("region is mapped read-only: only its maker may store to it")]
    ReadOnly,
    /// The program has no such memory any more, or not for that use. A part of the range may have been copied.
    #[error("the program has no memory of {len} bytes at {address:#x} any more, or may not use it so")]
    Unmapped {
        /// Start of the range.
        address: u64,
        /// Length of the range, bytes.
        len: u64,
    },
    /// A count or size that the layout does not allow.
    #[error("{what} is {value}: must be a power of two from {min} to {max}")]
    Geometry {
        /// What is wrong.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
}

/// Whose pages a mapping shows; decides how they are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    Private,
    /// Of a file with pages of so many bytes: huge ones, or those of the system.
    Shared {
        page: usize,
    },
    /// The program's own, which it may unmap: nothing here touches them by a pointer.
    Program,
}

/// One mapping; unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Bytes that may be reached by pointers: all, or none of the program's own.
    reach: usize,
    writable: bool,
    backing: Backing,
    /// Of a shared one: device and number of its file.
    file: Option<(u64, u64)>,
    /// Of a shared one, in a process that survives faults.
    watched: Option<Watched>,
}

// SAFETY: a Mapping is an address range that it alone unmaps, on drop; the bytes are reached only by copies and
// atomics, which any thread may do.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes or changes the fields.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Another mapping may get the address at once.
        self.watched = None;
        if self.backing == Backing::Program {
            return;
        }
        // They are what mmap returned in `Region::map`, and the last handle to them goes away here.
        undertaker::unmap_pages(self.start.as_ptr().expose_provenance(), self.len);
    }
}

/// A piece of mapped memory, shared by reference count; unmapped when the last clone (or word of it) is dropped.
///
/// A clone is a second handle to the same bytes. An anonymous region is private: after `fork` parent and child each
/// have their own copy. A region of a [`crate::Segment`] stays shared.
#[derive(Debug, Clone)]
pub struct Region(Arc<Mapping>);

impl Region {
    /// Private zeroed anonymous memory (page aligned), for the simulator, tests and the daemon's own buffers.
    ///
    /// Fails with `InvalidInput` if `len` is 0, else as mmap fails.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        Self::map(len, true, Backing::Private, None, |len| {
            // SAFETY: a new mapping at an address that the kernel chooses, so it replaces no other.
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE) }
        })
    }

    /// Has the kernel empty the region in a child made by `fork`. Only of a private one.
    pub(crate) fn wipe_on_fork(&self) -> io::Result<()> {
        let len = self.0.len.next_multiple_of(rustix::param::page_size());
        // SAFETY: whole pages of a mapping that `self` keeps, which mmap rounded up to them; nothing changes in this
        // process.
        unsafe { rustix::mm::madvise(self.as_ptr().cast::<c_void>(), len, Advice::LinuxWipeOnFork) }?;
        Ok(())
    }

    /// Maps the first `len` bytes of a descriptor, shared.
    ///
    /// The caller has checked that the object cannot shrink below `len` (else a later access raises SIGBUS).
    pub(crate) fn map_shared(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let file = rustix::fs::fstat(fd)?;
        // A file of huge pages says so by its blocks.
        let page = usize::try_from(file.st_blksize).unwrap_or_default().max(rustix::param::page_size());
        let backing = Backing::Shared { page };
        Self::map(len, writable, backing, Some((file.st_dev, file.st_ino)), |len| {
            // SAFETY: a new mapping at an address that the kernel chooses, so it replaces no other.
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }
        })
    }

    /// Shows the bytes of another descriptor in the place of this mapping, to all handles to it and words of it.
    ///
    /// The caller has checked that the object has as many bytes, and cannot shrink.
    pub(crate) fn show_instead(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let prot = if self.0.writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is this mapping's own, which lives as long as `self`, so no other mapping is replaced; its
        // bytes are reached by copies and atomics alone, for which any bytes are valid.
        unsafe { rustix::mm::mmap(self.as_ptr().cast::<c_void>(), self.0.len, prot, flags, fd, 0) }?;
        Ok(())
    }

    fn map(
        len: usize,
        writable: bool,
        backing: Backing,
        file: Option<(u64, u64)>,
        mmap: impl FnOnce(usize) -> rustix::io::Result<*mut c_void>,
    ) -> io::Result<Self> {
        if len == 0 || isize::try_from(len).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a region cannot have {len} bytes")));
        }
        let start = NonNull::new(mmap(len)?.cast::<u8>()).expect("mmap with no address given never returns page 0");
        let mut mapping = Mapping { start, len, reach: len, writable, backing, file, watched: None };
        if let Backing::Shared { page } = backing {
            mapping.watched = Watched::new(start, len, page)?;
        }
        Ok(Self(Arc::new(mapping)))
    }

    /// Memory without any page to be had: each access raises SIGBUS. It is for tests of code that survives that.
    #[doc(hidden)]
    pub fn without_pages(len: usize) -> io::Result<Self> {
        let empty = rustix::fs::memfd_create("raas-without-pages", rustix::fs::MemfdFlags::CLOEXEC)?;
        Self::map_shared(empty.as_fd(), len, true)
    }

    /// Whether an access to it could not be served, and was [survived](crate::survive_faults): from then on this
    /// mapping is no more that of its other holders, page by page.
    pub fn has_faulted(&self) -> bool {
        self.0.watched.as_ref().is_some_and(Watched::has_faulted)
    }

    /// Which memory it is: the same of all mappings of one file, and of clones. It names this memory as long as a handle
    /// to it lives.
    pub fn identity(&self) -> (u64, u64) {
        self.0.file.unwrap_or((u64::MAX, self.0.start.as_ptr().addr() as u64))
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.len as u64
    }

    /// Whether it has no bytes (never).
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether stores are allowed.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// Copies `dst.len()` bytes from `offset` out, exactly once each; a peer that writes meanwhile may tear them.
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), RegionError> {
        let src = match self.checked(offset, dst.len() as u64) {
            Ok(src) => src,
            Err(refused) => return self.read_program(offset, dst, refused),
        };
        opaque(src);
        // SAFETY: `checked` proved that dst.len() bytes from src are mapped; dst is a private exclusive slice, which
        // cannot overlap the mapping since nothing makes slices of it.
        unsafe { ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
        opaque(src);
        Ok(())
    }

    /// Copies `src` in at `offset`. [`RegionError::ReadOnly`] on a read-only mapping.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), RegionError> {
        let dst = match self.checked_writable(offset, src.len() as u64) {
            Ok(dst) => dst,
            Err(refused) => return self.write_program(offset, src, refused),
        };
        opaque(dst);
        // SAFETY: `checked_writable` proved that src.len() bytes from dst are mapped writable; src is a private slice,
        // which cannot overlap the mapping since nothing makes slices of it.
        unsafe { ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
        opaque(dst);
        Ok(())
    }

    /// Copies `len` bytes at `from` of another region in at `offset`. It may be another mapping of the same memory. What
    /// is looked at later is not older than the copy.
    pub fn copy_from(&self, offset: u64, source: &Self, from: u64, len: u64) -> Result<(), RegionError> {
        let (src, dst) = (source.checked(from, len)?, self.checked_writable(offset, len)?);
        // A region is no longer than what can be addressed.
        let count = usize::try_from(len).unwrap_or(0);
        opaque(dst);
        // SAFETY: `checked` proved that `len` bytes from src are mapped, `checked_writable` that as many from dst are
        // mapped writable; `copy` allows that they overlap.
        unsafe { ptr::copy(src, dst, count) };
        opaque(dst);
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// A checked handle to an aligned u64. On a read-only region it can only be loaded.
    pub fn word64(&self, offset: u64) -> Result<Word64, RegionError> {
        Ok(Word64::new(self.clone(), self.word_at(offset, 8)?.cast::<u64>()))
    }

    /// A checked handle to an aligned u32. On a read-only region it can only be loaded.
    pub fn word32(&self, offset: u64) -> Result<Word32, RegionError> {
        Ok(Word32::new(self.clone(), self.word_at(offset, 4)?.cast::<u32>()))
    }

    /// Makes the range read as zero and gives its whole pages back to the system where the kernel allows it.
    ///
    /// Not allowed is the maker's own mapping of a segment sealed against future writes: there the zeros are stored,
    /// and the pages stay. Fails with `PermissionDenied` on a read-only region, `InvalidInput` on a bad range. Memory
    /// that a device has pinned must be deregistered before, or the device keeps the old pages.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = self.checked_writable(offset, len).map_err(|refused| {
            let kind = match refused {
                RegionError::ReadOnly => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::InvalidInput,
            };
            io::Error::new(kind, refused)
        })?;
        let page = rustix::param::page_size();
        // A region is no longer than what can be addressed.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // Whole pages inside the range; the mapping itself starts on a page.
        let head = (start.addr().next_multiple_of(page) - start.addr()).min(len);
        let pages = (len - head) / page * page;
        zero(start, head);
        // SAFETY: head + pages <= len, and `checked_writable` proved len bytes from start.
        let middle = unsafe { start.add(head) };
        if pages > 0 {
            let advice = match self.0.backing {
                // Of the program's own, no byte passed the check above.
                Backing::Private | Backing::Program => Advice::LinuxDontNeed,
                Backing::Shared { .. } => Advice::LinuxRemove,
            };
            // SAFETY: whole pages of a mapping that `self` keeps; no reference to their bytes exists anywhere.
            match unsafe { rustix::mm::madvise(middle.cast::<c_void>(), pages, advice) } {
                Ok(()) => {}
                Err(rustix::io::Errno::PERM) => zero(middle, pages),
                Err(errno) => return Err(errno.into()),
            }
        }
        // SAFETY: as for `middle`: head + pages <= len.
        zero(unsafe { middle.add(pages) }, len - head - pages);
        Ok(())
    }

    /// Start of the mapping, for registration with a device. It stays valid while a clone of the region lives; stores
    /// through it are faults if the region is not writable.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The address of `offset`, if `len` bytes from there lie in the region.
    #[inline]
    fn checked(&self, offset: u64, len: u64) -> Result<*mut u8, RegionError> {
        let size = self.0.reach as u64;
        if len > size || offset > size - len {
            return Err(RegionError::OutOfBounds { offset, len, size });
        }
        let Ok(bytes) = usize::try_from(offset) else {
            return Err(RegionError::OutOfBounds { offset, len, size });
        };
        // SAFETY: offset <= size, just checked, and size is at most the length of the one mapping that start points to.
        Ok(unsafe { self.as_ptr().add(bytes) })
    }

    #[inline]
    fn checked_writable(&self, offset: u64, len: u64) -> Result<*mut u8, RegionError> {
        if !self.is_writable() {
            return Err(RegionError::ReadOnly);
        }
        self.checked(offset, len)
    }

    /// The address of `words` writable aligned u64 words.
    pub(crate) fn row_at(&self, offset: u64, words: u64) -> Result<NonNull<u64>, RegionError> {
        let first = self.word_at(offset, 8)?;
        self.checked_writable(offset, words.saturating_mul(8))?;
        Ok(first.cast::<u64>())
    }

    fn word_at(&self, offset: u64, align: u64) -> Result<NonNull<u8>, RegionError> {
        if !offset.is_multiple_of(align) {
            return Err(RegionError::Misaligned { offset, align });
        }
        let at = self.checked(offset, align)?;
        Ok(NonNull::new(at).expect("an address in a mapping is not null"))
    }
}

/// Stores zeros. `start..start + len` lies in a writable mapping (the callers checked the whole range).
fn zero(start: *mut u8, len: usize) {
    opaque(start);
    // SAFETY: see above.
    unsafe { ptr::write_bytes(start, 0, len) };
    opaque(start);
}

/// Makes the compiler assume that all memory, that behind `shared` included, is read and changed here. No instruction.
#[inline(always)]
fn opaque(shared: *const u8) {
    // SAFETY: an empty block: it changes no register, flag, stack or memory. It lacks `nomem` on purpose.
    unsafe { asm!("/* {0} */", in(reg) shared, options(nostack, preserves_flags)) };
}
