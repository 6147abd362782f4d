//! Calls that make rings (`io_uring`), by the library that programs use for it; those by number are in `by_number`.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use raas::Reason;

use crate::say::Once;
use crate::{errno, fork, inside, real, rings, table};

static LOST: Once = Once::new();

macro_rules! of_liburing {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => { $(
        /// As liburing's. Who looks for it where liburing is not loaded learns that there are no rings.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let Some(found) = real::optional(&PLACE, NAME) else { return -libc::ENOSYS };
            before_ring();
            // SAFETY: the dynamic linker gave the address of liburing's function of this name, which has this type.
            let real: unsafe extern "C-unwind" fn($($ty),*) -> c_int = unsafe { std::mem::transmute(found) };
            // SAFETY: the program's own arguments.
            unsafe { real($($arg),*) }
        }
    )* };
}

of_liburing! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: usize);
    io_uring_setup(entries: c_uint, params: *mut c_void);
}

/// Connections go back before a ring may use them.
pub(super) fn before_ring() {
    let code = errno::get();
    if rings::note_ring() && fork::is_owner() && !inside::is_inside() {
        for fd in table::known(0, usize::MAX) {
            if table::socket(fd).is_some_and(|connection| !connection.keep_on_tcp(fd, Reason::UnseenCalls)) {
                LOST.say("a connection could not go back to kernel TCP, and is reset");
            }
        }
    }
    errno::set(code);
}
