//! What the pointers of a program lead to.
//!
//! Owns the refusal of null, and of lengths that no message has. It must never look behind a pointer before it was
//! checked.

use std::ffi::{CStr, c_char};
use std::io;

use crate::failure::Failure;

/// The longest message of RC and UC: table I of the paper.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 30;

fn null(name: &str) -> Failure {
    Failure::new(libc::EFAULT, format!("{name} is a null pointer"))
}

/// Refuses a length beyond table I.
pub(crate) fn check_len(len: u32) -> Result<usize, Failure> {
    let too_long = || {
        let text = format!("{len} bytes are more than the {MESSAGE_BYTES_MAX} of the longest message: pass less");
        Failure::new(libc::EMSGSIZE, text)
    };
    if len > MESSAGE_BYTES_MAX { Err(too_long()) } else { usize::try_from(len).map_err(|_| too_long()) }
}

/// What is behind a pointer, if it is not null.
///
/// # Safety
/// A pointer that is not null leads to a `T` that nothing else changes while the reference lives.
pub(crate) unsafe fn read<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller promises that it leads to a `T`, and `as_ref` checks for null.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// The place behind a pointer, if it is not null.
///
/// # Safety
/// A pointer that is not null leads to a `T` that nothing else uses while the reference lives.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller promises that it leads to a `T` of its own, and `as_mut` checks for null.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// `len` bytes to send; none need no memory.
///
/// # Safety
/// A pointer that is not null leads to `len` bytes that nothing changes while the reference lives.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, len: u32, name: &str) -> Result<&'a [u8], Failure> {
    match (check_len(len)?, pointer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(null(name)),
        // SAFETY: it is not null, the length is within `isize`, and the caller promises the bytes.
        (len, false) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// `len` bytes to receive into, which need not be initialised before.
///
/// # Safety
/// A pointer that is not null leads to `len` bytes that nothing else uses while the reference lives.
pub(crate) unsafe fn room<'a>(pointer: *mut u8, len: u32, name: &str) -> Result<&'a mut [u8], Failure> {
    match (check_len(len)?, pointer.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(null(name)),
        // SAFETY: it is not null, the length is within `isize`, and the caller promises the bytes. Any bytes are
        // valid `u8`s: what the program did not write yet comes from outside of Rust.
        (len, false) => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
    }
}

/// A text that ends with a zero byte.
///
/// # Safety
/// A pointer that is not null leads to bytes up to a zero byte that nothing changes while the reference lives.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: it is not null, and the caller promises the zero byte.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|e| Failure::from(io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: {e}"))))
}
