//! Kernel AIO (`io_submit`): what it reads, writes and waits for is seen by nobody, so a connection that a program gives
//! to it is on kernel TCP from then on. A program that has it for files alone loses nothing.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use raas::Reason;

use crate::{errno, fork, inside, real, table};

/// `struct iocb` of the kernel (linux/aio_abi.h), as far as its descriptor.
#[repr(C)]
pub(super) struct Operation {
    _data: u64,
    _key: u64,
    _opcode: u16,
    _priority: i16,
    fd: u32,
}

/// # Safety
///
/// `list` points to `count` operations, as the program promises the kernel.
pub(super) unsafe fn before_submit(count: usize, list: *const *const Operation) {
    if list.is_null() || !fork::is_owner() || inside::is_inside() {
        return;
    }
    let code = errno::get();
    for n in 0..count {
        // SAFETY: the caller's promise.
        let Some(operation) = (unsafe { list.add(n).read_unaligned().as_ref() }) else { break };
        let fd = operation.fd as c_int;
        if let Some(connection) = table::socket(fd) {
            // What could not go back is reset, as the operation says.
            connection.keep_on_tcp(fd, Reason::UnseenCalls);
        }
    }
    errno::set(code);
}

/// As libaio's. Who looks for it where libaio is not loaded learns that there is no AIO.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn io_submit(context: *mut c_void, count: c_long, list: *const *const Operation) -> c_int {
    static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    const NAME: &CStr = c"io_submit";
    let Some(found) = real::optional(&PLACE, NAME) else { return -libc::ENOSYS };
    // SAFETY: the program's own arguments.
    unsafe { before_submit(usize::try_from(count).unwrap_or(0), list) };
    // SAFETY: the dynamic linker gave the address of libaio's function of this name, which has this type.
    let real: unsafe extern "C-unwind" fn(*mut c_void, c_long, *const *const Operation) -> c_int =
        unsafe { std::mem::transmute(found) };
    // SAFETY: the program's own arguments.
    unsafe { real(context, count, list) }
}
