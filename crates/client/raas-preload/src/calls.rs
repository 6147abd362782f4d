//! The names of the C library that this library exports.
//!
//! Each looks whether its descriptor is a TCP socket of the program's, and goes to the C library if it is not.

mod aio;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod by_number;
mod descriptors;
mod handlers;
mod life;
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

use std::ffi::{c_int, c_void};

use libc::iovec;

use crate::connection::Connection;
use crate::table;

/// A call that may wait, by `work` where the descriptor is a TCP socket of the program's, and as it is where not.
fn on_socket(
    fd: c_int,
    original: &mut dyn FnMut() -> isize,
    work: &mut dyn FnMut(&Connection, &mut dyn FnMut() -> isize) -> isize,
) -> isize {
    let mut is_socket = table::is_known(fd);
    if is_socket {
        let result = crate::handlers::restarting(|| match table::socket(fd) {
            Some(connection) => work(&connection, original),
            None => {
                is_socket = false;
                0
            }
        });
        if is_socket {
            return result;
        }
    }
    original()
}

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
