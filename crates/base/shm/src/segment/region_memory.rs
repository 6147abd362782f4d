//! The memory of a region: a sealed memfd that one daemon makes and programs of its host map.
//!
//! Owns who may map it writable: a program that got a descriptor for reading cannot make one for writing of it. And that
//! nobody punches holes where the kernel lets us forbid it: whoever loads or stores meanwhile waits until all pages of
//! the hole are free.

use std::fs::Permissions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, OnceLock};

use rustix::fs::{
    FallocateFlags, FileType, IFlags, MemfdFlags, Mode, OFlags, SeekFrom, ioctl_getflags, ioctl_setflags,
};
use rustix::io::{Errno, FdFlags};

use super::{FIXED_SIZE, HUGETLBFS_MAGIC, SegmentError, TMPFS_MAGIC, mappable, memfd, os};
use crate::{Region, undertaker};

/// Smallest unit of a memfd of huge pages: the default size of x86-64 and AArch64.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Its maker may read it; nobody may open it for writing again.
const MODE: u32 = 0o400;

/// See the head of this file.
#[derive(Debug)]
pub struct RegionMemory {
    fd: Arc<OwnedFd>,
    /// Opened for reading, when somebody first asked for that.
    reader: OnceLock<Arc<OwnedFd>>,
    bytes: u64,
    /// Bytes of a mapping of it.
    mapped: u64,
    has_no_holes: bool,
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        // The last descriptor of a memfd takes its pages with it.
        [Some(&self.fd), self.reader.get()].into_iter().flatten().for_each(undertaker::close);
    }
}

impl RegionMemory {
    /// Makes the memory of a region of `bytes` bytes, all zero. Of huge pages all memory is taken at once, and an error
    /// of the call `fallocate` means that there is not enough. So it is where the system promises only memory that it
    /// has ([`crate::overcommit_is_strict`]); elsewhere a page comes when it is touched.
    pub fn create(bytes: u64, huge_pages: bool) -> Result<Self, SegmentError> {
        let (mut size, _) = mappable(bytes)?;
        let mut kind = MemfdFlags::empty();
        if huge_pages {
            kind = MemfdFlags::HUGETLB;
            let rounded = size.checked_next_multiple_of(HUGE_PAGE_BYTES).filter(|&size| i64::try_from(size).is_ok());
            size = rounded.ok_or_else(|| SegmentError::Refused(format!("a region cannot have {bytes} bytes")))?;
        }
        let fd = memfd("raas-region", kind)?;
        rustix::fs::ftruncate(&fd, size).map_err(os("ftruncate"))?;
        if huge_pages || crate::overcommit_is_strict() {
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, size).map_err(os("fallocate"))?;
        }
        rustix::fs::fcntl_add_seals(&fd, FIXED_SIZE).map_err(os("fcntl(F_ADD_SEALS)"))?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(Permissions::from_mode(MODE).mode())).map_err(os("fchmod"))?;
        // An immutable file can be mapped for writing by a descriptor that was open before. Linux 6.0, with
        // CAP_LINUX_IMMUTABLE.
        let immutable = ioctl_getflags(&fd).and_then(|flags| ioctl_setflags(&fd, flags | IFlags::IMMUTABLE));
        let (reader, mapped) = (OnceLock::new(), if huge_pages { size } else { bytes });
        Ok(Self { fd: Arc::new(fd), reader, bytes, mapped, has_no_holes: immutable.is_ok() })
    }

    /// Nobody can punch holes into it.
    pub fn has_no_holes(&self) -> bool {
        self.has_no_holes
    }

    /// The region's size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor for a program that may write. All callers get the same one: the daemon has no more descriptors of a
    /// region however many programs wait for one.
    pub fn writable_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// A descriptor for a program that may only read; the same one for all callers. It shows the same memory, and
    /// neither it nor a copy of it, opened again, can be mapped for writing, except by root and the maker's user.
    pub fn read_only_fd(&self) -> io::Result<Arc<OwnedFd>> {
        if let Some(reader) = self.reader.get() {
            return Ok(Arc::clone(reader));
        }
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Arc::clone(self.reader.get_or_init(|| Arc::new(opened))))
    }

    /// Maps it for reading and writing, for the daemon's own device.
    pub fn map(&self) -> Result<Region, SegmentError> {
        map(&self.fd, self.mapped, true)
    }

    /// Checks a descriptor that a daemon sent, and maps it. It must be a memfd, of huge pages or not, of at least
    /// `bytes` bytes, and sealed against another size. What comes out has `bytes` bytes, or all of the memfd's if it is
    /// of huge pages: only whole ones can be mapped.
    pub fn accept(fd: OwnedFd, bytes: u64, writable: bool) -> Result<Region, SegmentError> {
        Ok(Self::accept_with_extents(fd, bytes, writable)?.0)
    }

    /// As [`RegionMemory::accept`], for a caller that may have to copy it.
    pub fn accept_with_extents(fd: OwnedFd, bytes: u64, writable: bool) -> Result<(Region, Extents), SegmentError> {
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(os("fcntl(F_SETFD)"))?;
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(os("fcntl(F_GET_SEALS)"))?;
        if !seals.contains(FIXED_SIZE) {
            return Err(SegmentError::Refused(format!("seals missing: {:?}", FIXED_SIZE - seals)));
        }
        let stat = rustix::fs::fstat(&fd).map_err(os("fstat"))?;
        let filesystem = rustix::fs::fstatfs(&fd).map_err(os("fstatfs"))?.f_type.cast_unsigned();
        let is_memfd = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && matches!(filesystem, TMPFS_MAGIC | HUGETLBFS_MAGIC);
        if !is_memfd {
            return Err(SegmentError::Refused("not a memfd".into()));
        }
        let is_long_enough = u64::try_from(stat.st_size).is_ok_and(|size| size >= bytes);
        if bytes == 0 || !is_long_enough {
            let words = format!("it has {} bytes, the message said {bytes}", stat.st_size);
            return Err(SegmentError::Refused(words));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(bytes);
        let region = map(&fd, if filesystem == HUGETLBFS_MAGIC { size } else { bytes }, writable)?;
        Ok((region, Extents { fd: Arc::new(fd), file: (stat.st_dev, stat.st_ino) }))
    }
}

/// Where a memfd has pages: everything else of it is zero, and a load of it there would make a page.
///
/// It holds the descriptor.
#[derive(Debug, Clone)]
pub struct Extents {
    fd: Arc<OwnedFd>,
    /// Device and number: a program that closes all its descriptors may have another file under this one's.
    file: (u64, u64),
}

impl Extents {
    /// The first bytes from `from` on that have pages; to the end of numbers if the system does not say where a hole
    /// begins. Empty: there are none.
    pub fn next_data(&self, from: u64) -> Range<u64> {
        if !rustix::fs::fstat(&self.fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file) {
            return from..u64::MAX;
        }
        match rustix::fs::seek(&self.fd, SeekFrom::Data(from)) {
            Ok(start) => start..rustix::fs::seek(&self.fd, SeekFrom::Hole(start)).unwrap_or(u64::MAX),
            Err(Errno::NXIO) => u64::MAX..u64::MAX,
            Err(_) => from..u64::MAX,
        }
    }
}

fn map(fd: &OwnedFd, bytes: u64, writable: bool) -> Result<Region, SegmentError> {
    mappable(bytes)?;
    let len = usize::try_from(bytes).map_err(|_| SegmentError::Refused(format!("{bytes} bytes cannot be mapped")))?;
    Region::map_shared(fd.as_fd(), len, writable).map_err(|source| SegmentError::Os { call: "mmap", source })
}
