//! How a call of the C library says that it failed.

use std::ffi::c_int;
use std::io;

/// `errno` of this thread.
pub(crate) fn get() -> c_int {
    // SAFETY: the C library gives this thread's own place, which lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub(crate) fn set(code: c_int) {
    // SAFETY: as in `get`.
    unsafe { *libc::__errno_location() = code }
}

/// A call fails with this code.
pub(crate) fn fail(code: c_int) -> isize {
    set(code);
    -1
}

/// What TCP would say where the client library says this.
pub(crate) fn of(error: &io::Error) -> c_int {
    match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::BrokenPipe => libc::EPIPE,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::Interrupted => libc::EINTR,
        _ => libc::ECONNRESET,
    }
}
