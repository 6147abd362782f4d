//! The names of the C library that this library exports.
//!
//! Each looks whether its descriptor is a TCP socket of the program's, and goes to the C library if it is not.

mod aio;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod by_number;
mod descriptors;
mod multiplexing;
mod programs;
mod receiving;
mod rings;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sandboxes;
mod sending;
mod sockets;
mod users;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod variadic;

use std::ffi::c_void;

use libc::iovec;

/// A buffer as the list that the kernel takes.
fn one(buffer: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: len }]
}

/// The parts of a list.
///
/// # Safety
///
/// `parts` must point to `count` parts, as the caller promised the C library.
unsafe fn all<'a>(parts: *const iovec, count: usize) -> &'a [iovec] {
    // An empty list may have any pointer.
    if count == 0 || parts.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(parts, count) }
}
