//! Calls by which a process becomes another user.
//!
//! A server often begins as root and serves as somebody who may not open the daemon's socket. So a process attaches
//! before it gives root up, as it opens its other files. To the daemon it stays a program of root's.

use std::ffi::c_int;

use libc::uid_t;

use crate::desk::desk;
use crate::{errno, fork, inside, real};

/// The process is about to be somebody else.
fn attach_before() {
    // In this order: in a sandbox nothing is asked.
    // SAFETY: the call takes no pointers.
    if !fork::is_owner() || inside::is_inside() || unsafe { libc::geteuid() } != 0 {
        return;
    }
    let code = errno::get();
    let _inside = inside::enter();
    // Without a daemon there is nothing to attach to, and connections stay on TCP.
    let _ = desk().session();
    errno::set(code);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setuid(user: uid_t) -> c_int {
    attach_before();
    // SAFETY: the call takes no pointers.
    unsafe { real::setuid(user) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn seteuid(user: uid_t) -> c_int {
    attach_before();
    // SAFETY: the call takes no pointers.
    unsafe { real::seteuid(user) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setreuid(user: uid_t, effective: uid_t) -> c_int {
    attach_before();
    // SAFETY: the call takes no pointers.
    unsafe { real::setreuid(user, effective) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    attach_before();
    // SAFETY: the call takes no pointers.
    unsafe { real::setresuid(user, effective, saved) }
}
