//! Rings of the kernel's (`io_uring`): nobody here sees what they read and write.
//!
//! Decides that a program which makes one stays on kernel TCP from then on. It must never leave a connection on a stream
//! that a ring may use.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::say::Once;
use crate::{errno, fork, inside, table};

/// How a person says that the program's rings are for files alone.
const FOR_FILES: (&str, &str) = ("RAAS_RUN_IO_URING", "files");

static IS_IN_USE: AtomicBool = AtomicBool::new(false);
static STAYS: Once = Once::new();
static LOST: Once = Once::new();

/// Whether the program has made a ring that may use sockets.
pub(crate) fn are_in_use() -> bool {
    IS_IN_USE.load(Ordering::SeqCst)
}

/// The program is about to make a ring: connections that were upgraded go back, and no other one is.
pub(crate) fn note_ring() {
    if are_in_use() || std::env::var_os(FOR_FILES.0).is_some_and(|value| value == FOR_FILES.1) {
        return;
    }
    let code = errno::get();
    // PAIRS WITH the look in `Connection::ask`: a connection that begins meanwhile sees it, or is seen below.
    if !IS_IN_USE.swap(true, Ordering::SeqCst) {
        STAYS.say(
            "the program uses io_uring, which `raas run` does not see: it stays on kernel TCP. If it uses io_uring for \
             files alone, set RAAS_RUN_IO_URING=files",
        );
        if fork::is_owner() && !inside::is_inside() {
            bring_back();
        }
    }
    errno::set(code);
}

fn bring_back() {
    for fd in table::known(0, usize::MAX) {
        if table::socket(fd).is_some_and(|connection| !connection.go_back(fd)) {
            LOST.say("a connection could not go back to kernel TCP, and is reset");
        }
    }
}
