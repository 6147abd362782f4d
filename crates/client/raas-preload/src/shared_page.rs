//! Memory that a process shares with its forked children. Owns the mapping. It must never be used after it is dropped.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU32};

/// Bytes that a process and the children that it forks from now on share. They are zeros at first.
#[derive(Debug)]
pub(crate) struct SharedPage {
    at: *mut AtomicU8,
    len: usize,
}

// SAFETY: the memory is atomics, and is there until the page is dropped.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    pub(crate) fn new(len: usize) -> Option<Self> {
        let (how, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, anywhere.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, how, kind, -1, 0) };
        (at != libc::MAP_FAILED).then(|| Self { at: at.cast(), len })
    }

    /// The first `len` bytes of a file, as all have them who map it.
    pub(crate) fn of_file(fd: RawFd, len: usize) -> Option<Self> {
        let how = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, anywhere.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, how, libc::MAP_SHARED, fd, 0) };
        (at != libc::MAP_FAILED).then(|| Self { at: at.cast(), len })
    }

    /// The bytes as words.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        // SAFETY: a mapping begins at a page, has `len` bytes, of which any are a word, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len / size_of::<AtomicU32>()) }
    }

    pub(crate) fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the mapping has `len` bytes, which were zeros at first, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is this page's, and nobody has a reference into it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}
