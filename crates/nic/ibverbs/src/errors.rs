//! Errors of the NIC as errno.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs::VerbsError;

/// Set to see on stderr why a call was refused: errno alone says little.
const SAY: &str = "RAAS_VERBS_LOG";

/// Sets errno, for functions that answer NULL or -1.
pub(crate) fn set(errno: c_int) {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// NULL with errno.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set(errno);
    null_mut()
}

/// Says why a call was refused, if somebody wants to know.
pub(crate) fn say(why: &dyn std::fmt::Display) {
    if std::env::var_os(SAY).is_some() {
        eprintln!("raas verbs: {why}");
    }
}

/// What a refusal is as errno.
pub(crate) fn number(error: &VerbsError) -> c_int {
    say(error);
    match error {
        VerbsError::Full { .. } => libc::ENOMEM,
        VerbsError::Busy(_) => libc::EBUSY,
        VerbsError::Unsupported { .. } => libc::EOPNOTSUPP,
        VerbsError::Os { errno, .. } => *errno,
        _ => libc::EINVAL,
    }
}

/// 0, or errno.
pub(crate) fn code(result: Result<(), VerbsError>) -> c_int {
    result.map_or_else(|error| number(&error), |()| 0)
}

/// Of a call in a child that was made by `fork` after the device was opened: the NIC is its parent's.
pub(crate) const FORKED: c_int = libc::EIO;
