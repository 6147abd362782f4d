//! Sealed memfds: making them, and accepting one from a peer that may lie.
//!
//! Owns the checks that make a received descriptor safe to map: nothing that passes them can shrink under a mapping
//! (which would turn the next load into SIGBUS). It must never map a descriptor that it did not check.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, FileType, MemfdFlags, SealFlags};
use rustix::io::{Errno, FdFlags};

use crate::Region;

mod region_memory;

pub use region_memory::{Extents, RegionMemory};

/// Filesystem of memfds without huge pages, as `statfs` names it.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Filesystem of memfds with huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Seals that every segment carries.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Seals that forbid a writable mapping.
const NO_WRITES: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);

/// Why a descriptor from a peer was not mapped, or a segment not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Not a memfd, on hugetlbfs, of the wrong size, or with the wrong seals. The text says which.
    #[error("descriptor refused: {0}")]
    Refused(String),
}

/// Who may map a segment writable after it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Both parties map it read-write.
    ReadWrite,
    /// Only the existing mapping of the maker writes (`F_SEAL_FUTURE_WRITE`).
    PeerReadOnly,
}

impl Sharing {
    fn seals(self) -> SealFlags {
        match self {
            Self::ReadWrite => FIXED_SIZE,
            Self::PeerReadOnly => FIXED_SIZE | SealFlags::FUTURE_WRITE,
        }
    }
}

/// A sealed memfd and its mapping.
#[derive(Debug)]
pub struct Segment {
    region: Region,
    fd: OwnedFd,
}

impl Segment {
    /// Makes, maps (read-write) and seals a memfd of `len` bytes (rounded up to pages), all zero. `name` shows in
    /// /proc/PID/maps.
    pub fn create(name: &str, len: u64, sharing: Sharing) -> Result<Self, SegmentError> {
        let (bytes, mapped) = mappable(len)?;
        let fd = memfd(name, MemfdFlags::empty())?;
        rustix::fs::ftruncate(&fd, bytes).map_err(os("ftruncate"))?;
        let region =
            Region::map_shared(fd.as_fd(), mapped, true).map_err(|source| SegmentError::Os { call: "mmap", source })?;
        // Only now: FUTURE_WRITE leaves the mapping made above writable, and forbids every later one.
        rustix::fs::fcntl_add_seals(&fd, sharing.seals()).map_err(os("fcntl(F_ADD_SEALS)"))?;
        Ok(Self { region, fd })
    }

    /// Checks a received descriptor, then maps it: read-write for `Sharing::ReadWrite`, read-only for
    /// `Sharing::PeerReadOnly`.
    ///
    /// It must be a memfd, not of huge pages, of exactly `len` bytes (rounded up to pages), with the seals
    /// `SHRINK|GROW|SEAL`; for `PeerReadOnly` also with `FUTURE_WRITE` or `WRITE`, for `ReadWrite` with neither. `len`
    /// comes from the control message that carried the descriptor. The descriptor is made close-on-exec.
    pub fn accept(fd: OwnedFd, len: u64, sharing: Sharing) -> Result<Self, SegmentError> {
        let (bytes, mapped) = mappable(len)?;
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(os("fcntl(F_SETFD)"))?;
        // Seals first: once GROW and SHRINK are seen (they cannot be taken away), the size below stays true.
        check_seals(fd.as_fd(), sharing)?;
        check_object(fd.as_fd(), bytes)?;
        let region = Region::map_shared(fd.as_fd(), mapped, sharing == Sharing::ReadWrite)
            .map_err(|source| SegmentError::Os { call: "mmap", source })?;
        Ok(Self { region, fd })
    }

    /// Gives the bytes before `len` (rounded up to pages) memory now: an error here instead of SIGBUS at the first
    /// access, on systems that promise only memory that they have (see [`crate::overcommit_is_strict`]). It holds until
    /// somebody with the descriptor punches a hole.
    pub fn allocate(&self, len: u64) -> Result<(), SegmentError> {
        let (bytes, _) = mappable(len)?;
        rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), 0, bytes.min(self.region.len()))
            .map_err(os("fallocate"))
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The descriptor, to be sent to the peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The mapping, and the descriptor.
    pub fn into_parts(self) -> (Region, OwnedFd) {
        (self.region, self.fd)
    }

    /// Closes the descriptor, keeps the mapping.
    pub fn into_region(self) -> Region {
        self.region
    }
}

/// `len` in whole pages, as the file and the mapping need it.
fn mappable(len: u64) -> Result<(u64, usize), SegmentError> {
    let page = rustix::param::page_size() as u64;
    len.checked_next_multiple_of(page)
        .filter(|&bytes| bytes > 0 && i64::try_from(bytes).is_ok())
        .and_then(|bytes| Some((bytes, usize::try_from(bytes).ok()?)))
        .ok_or_else(|| SegmentError::Refused(format!("a segment cannot have {len} bytes")))
}

fn memfd(name: &str, kind: MemfdFlags) -> Result<OwnedFd, SegmentError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
    // Hosts with vm.memfd_noexec=2 demand NOEXEC_SEAL, kernels before 6.3 do not know it.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }
    .map_err(os("memfd_create"))
}

fn check_seals(fd: BorrowedFd<'_>, sharing: Sharing) -> Result<(), SegmentError> {
    let seals = match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(Errno::INVAL) => return Err(SegmentError::Refused("not a memfd (it has no seals)".into())),
        Err(errno) => return Err(os("fcntl(F_GET_SEALS)")(errno)),
    };
    if !seals.contains(FIXED_SIZE) {
        let missing = FIXED_SIZE - seals;
        return Err(SegmentError::Refused(format!(
            "seals missing: {missing:?}; the maker must add them before sending"
        )));
    }
    match sharing {
        Sharing::PeerReadOnly if !seals.intersects(NO_WRITES) => {
            Err(SegmentError::Refused("seal FUTURE_WRITE missing: the maker must add it after mapping".into()))
        }
        Sharing::ReadWrite if seals.intersects(NO_WRITES) => {
            Err(SegmentError::Refused(format!("sealed against writes ({seals:?}), but both sides must write")))
        }
        _ => Ok(()),
    }
}

fn check_object(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), SegmentError> {
    let stat = rustix::fs::fstat(fd).map_err(os("fstat"))?;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    if file_type != FileType::RegularFile {
        return Err(SegmentError::Refused(format!("not a memfd, but a {file_type:?}")));
    }
    // Kept even though the seals say memfd: a memfd of huge pages has seals too, and faults on it may raise SIGBUS.
    let filesystem = rustix::fs::fstatfs(fd).map_err(os("fstatfs"))?.f_type.cast_unsigned();
    match filesystem {
        TMPFS_MAGIC => {}
        HUGETLBFS_MAGIC => {
            return Err(SegmentError::Refused("memfd of huge pages: make it without MFD_HUGETLB".into()));
        }
        other => return Err(SegmentError::Refused(format!("not a memfd (filesystem {other:#x})"))),
    }
    if u64::try_from(stat.st_size) != Ok(bytes) {
        return Err(SegmentError::Refused(format!("it has {} bytes, the message said {bytes}", stat.st_size)));
    }
    Ok(())
}

fn os(call: &'static str) -> impl FnOnce(Errno) -> SegmentError {
    move |errno| SegmentError::Os { call, source: errno.into() }
}
