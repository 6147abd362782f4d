//! Calls that make threads and copies of the process.

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t};

use super::programs;
use crate::life::{OwnThread, makes_own, with_room};
use crate::{fork, real};

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// What a thread of the library's begins with.
struct Begin {
    start: Start,
    argument: *mut c_void,
}

extern "C-unwind" fn begin(given: *mut c_void) -> *mut c_void {
    let _own = OwnThread::begin();
    // SAFETY: made below, for this thread alone.
    let Begin { start, argument } = *unsafe { Box::from_raw(given.cast::<Begin>()) };
    start(argument)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program's own attributes, or none.
    let more = unsafe { with_room(attributes) };
    let attributes = more.as_ref().map_or(attributes, |more| more);
    if !makes_own() {
        // SAFETY: the program's own arguments.
        return unsafe { real::pthread_create(thread, attributes, start, argument) };
    }
    let given = Box::into_raw(Box::new(Begin { start, argument }));
    // SAFETY: the arguments of the library's own caller; the new thread takes what is given.
    let result = unsafe { real::pthread_create(thread, attributes, begin, given.cast()) };
    if result != 0 {
        // SAFETY: there is no thread that takes it.
        drop(unsafe { Box::from_raw(given) });
    }
    result
}

/// The process goes on in its child, and the C library ends the parent where nobody sees it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn daemon(keeps_directory: c_int, keeps_output: c_int) -> c_int {
    programs::become_another();
    // SAFETY: the call takes no pointers.
    unsafe { real::daemon(keeps_directory, keeps_output) }
}

type Function = extern "C-unwind" fn(*mut c_void) -> c_int;

/// What a child begins with.
struct Child {
    function: Function,
    argument: *mut c_void,
}

extern "C-unwind" fn begin_child(given: *mut c_void) -> c_int {
    fork::in_child();
    // SAFETY: the parent's, of which this process has a copy.
    let Child { function, argument } = unsafe { given.cast::<Child>().read() };
    function(argument)
}

/// As the C library's, which has the last three arguments only where the flags want them.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn clone(
    function: Function,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    local: *mut c_void,
    child: *mut c_void,
) -> c_int {
    if flags & libc::CLONE_VM != 0 || !fork::is_owner() {
        // SAFETY: the program's own arguments.
        return unsafe { real::clone(function, stack, flags, argument, parent, local, child) };
    }
    fork::before();
    let mut given = Child { function, argument };
    let at = (&raw mut given).cast();
    // SAFETY: the program's own arguments; the child has a copy of what is given.
    let result = unsafe { real::clone(begin_child, stack, flags, at, parent, local, child) };
    fork::in_parent();
    result
}

/// `fork` and `clone` by number, where the child goes on at the same place with memory of its own.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn forked(work: impl FnOnce() -> std::ffi::c_long) -> std::ffi::c_long {
    if !fork::is_owner() {
        return work();
    }
    fork::before();
    let result = work();
    if result == 0 {
        fork::in_child()
    } else {
        fork::in_parent()
    }
    result
}
