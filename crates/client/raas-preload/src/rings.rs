//! Rings of the kernel's (`io_uring`): nobody here sees what they read and write.
//!
//! Decides that a program which makes one stays on kernel TCP from then on.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::say::Once;

/// How a person says that the program's rings are for files alone.
const FOR_FILES: (&str, &str) = ("RAAS_RUN_IO_URING", "files");

static IS_IN_USE: AtomicBool = AtomicBool::new(false);
static STAYS: Once = Once::new();

/// Whether the program has made a ring that may use sockets.
pub(crate) fn are_in_use() -> bool {
    IS_IN_USE.load(Ordering::SeqCst)
}

/// The program is about to make a ring. True, once: connections that were upgraded are to go back.
pub(crate) fn note_ring() -> bool {
    if are_in_use() || std::env::var_os(FOR_FILES.0).is_some_and(|value| value == FOR_FILES.1) {
        return false;
    }
    // PAIRS WITH the look in `Connection::ask`: a connection that begins meanwhile sees it, or is seen by the caller.
    let is_first = !IS_IN_USE.swap(true, Ordering::SeqCst);
    if is_first {
        STAYS.say(
            "the program uses io_uring, which `raas run` does not see: it stays on kernel TCP. If it uses io_uring for \
             files alone, set RAAS_RUN_IO_URING=files",
        );
    }
    is_first
}
