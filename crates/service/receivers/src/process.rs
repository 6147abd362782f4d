//! A process that has nothing of its parent but one socket.
//!
//! Owns `fork` and what a child does before anything else. The parent may have many threads, so a child's code must
//! allocate nothing, take no lock and never return.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Signals that end a whole group of processes, or that a daemon has a meaning for: the daemon decides, and its children
/// end with it.
const NOT_FOR_CHILDREN: &[libc::c_int] =
    &[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE, libc::SIGQUIT];
/// Highest number of a signal.
const SIGNAL_MAX: libc::c_int = 64;

/// Runs `code` in a child, with `socket` as its only descriptor beside three to nowhere. Children of the child need not
/// be waited for.
pub(crate) fn child(socket: OwnedFd, code: fn(OwnedFd)) -> io::Result<Pid> {
    let nowhere = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    // SAFETY: the child runs `begin`, `code` and `_exit`, which make system calls alone: no lock of another thread, and
    // no allocator, is waited for.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            begin(&nowhere, &socket);
            code(socket);
            end(0)
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork() said 0 in the parent")),
    }
}

/// Ends this process at once.
pub(crate) fn end(code: libc::c_int) -> ! {
    // SAFETY: ends the process without the destructors and handlers that belong to the parent.
    unsafe { libc::_exit(code) }
}

fn begin(nowhere: &OwnedFd, socket: &OwnedFd) {
    for signal in 1..=SIGNAL_MAX {
        let ignored = NOT_FOR_CHILDREN.contains(&signal) || signal == libc::SIGCHLD;
        let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: neither is code of this process. Numbers that cannot be set are refused.
        unsafe { libc::signal(signal, action) };
    }
    for standard in 0..3 {
        // SAFETY: the parent's copies stay; nothing of this process owns the child's.
        unsafe { libc::dup2(nowhere.as_raw_fd(), standard) };
    }
    let kept = socket.as_raw_fd();
    close_between(3, kept - 1);
    close_between(kept + 1, RawFd::MAX);
}

/// Closes descriptors by their numbers.
fn close_between(first: RawFd, last: RawFd) {
    let (Ok(from), Ok(to)) = (u32::try_from(first), u32::try_from(last)) else { return };
    if from > to {
        return;
    }
    // SAFETY: what they belonged to is the parent's, whose copies stay; the child uses none of it.
    if unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } == 0 {
        return;
    }
    // A kernel before 5.9.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    for number in first..=last.min(RawFd::try_from(limit).unwrap_or(RawFd::MAX)) {
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
}
