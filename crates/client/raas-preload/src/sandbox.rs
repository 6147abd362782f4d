//! The process enters a sandbox: of seccomp, which may end it for any call that its program does not make; or one of so
//! few descriptors that the kernel polls none of the library's. So the library makes no call in it: connections are on
//! kernel TCP from then on, epoll sets are the kernel's again, and the library's threads have ended, as a filter may
//! hold for all threads.
//!
//! Decides whether the library is out of the way. Once it is, every call of the program goes through untouched.

use std::mem::forget;
use std::sync::Arc;

use raas::Reason;

use crate::connection::Connection;
use crate::say::Once;
use crate::table::{self, Entry};
use crate::{answers, desk, errno, heirs, inside, owner};

static LOST: Once = Once::new();

/// The process is about to enter one.
pub(crate) fn enter() {
    if owner::is_in_sandbox() || !owner::is_owner() || inside::is_inside() {
        return;
    }
    let code = errno::get();
    // PAIRS WITH the look in `Connection::ask`: a connection that begins meanwhile sees it, or is seen here.
    owner::note_sandbox_due();
    for fd in table::known(0, usize::MAX) {
        if let Some(connection) = table::socket(fd)
            && !connection.keep_on_tcp(fd, Reason::Sandbox)
        {
            LOST.say("a connection could not go back to kernel TCP before a sandbox, and is reset");
        }
    }
    heirs::end_service();
    answers::end();
    owner::note_sandbox();
    let mut left: Vec<Arc<Connection>> = Vec::new();
    for fd in table::known(0, usize::MAX) {
        match table::take(fd) {
            Some(Entry::Epoll(set)) => {
                if set.fd() == fd {
                    set.leave_to_kernel();
                }
                forget(set);
            }
            Some(Entry::Socket(connection)) => left.push(connection),
            None => {}
        }
    }
    left.iter().for_each(|connection| connection.have_waits_end());
    // What they have with the daemon ends with the process: its end would be calls within the sandbox.
    left.into_iter().for_each(forget);
    desk::leave();
    errno::set(code);
}
