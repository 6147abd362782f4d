//! Words for the person who started the program, on stderr.
//!
//! It must never say a word into a file or a connection of the program's: descriptor 2 may be one by now.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernel_tcp::number;
use crate::{errno, real};

/// The file that was at descriptor 2 when the program began; none if nothing is to be said there.
static START: OnceLock<Option<File>> = OnceLock::new();

/// A file by its device and its number there.
type File = (libc::dev_t, libc::ino_t);

/// To be called when the library is loaded.
pub(crate) fn keep_stderr() {
    let is_for_people = !is_of_internet(libc::STDERR_FILENO);
    let _is_first = START.set(file_of(libc::STDERR_FILENO).filter(|_| is_for_people));
}

fn file_of(fd: c_int) -> Option<File> {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for what the kernel says.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled `about`.
    let about = unsafe { about.assume_init() };
    Some((about.st_dev, about.st_ino))
}

/// Whether it is a socket of the internet: inetd and its like start programs so, with somebody else at the other end.
fn is_of_internet(fd: c_int) -> bool {
    matches!(number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6))
}

/// Whether descriptor 2 is what it was when the program began.
fn is_heard() -> bool {
    START.get().copied().flatten().is_some_and(|start| file_of(libc::STDERR_FILENO) == Some(start))
}

/// Something that is said once in a process.
#[derive(Debug)]
pub(crate) struct Once(AtomicBool);

/// Said when an upgraded connection goes to another program.
pub(crate) static HANDED: Once = Once::new();
/// Said when a child uses a connection that its parent upgraded.
pub(crate) static LOST: Once = Once::new();

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Says it, if it was not said before and the person did not ask for silence (`RAAS_RUN_QUIET`).
    pub(crate) fn say(&self, words: &str) {
        if self.0.swap(true, Ordering::Relaxed) || std::env::var_os("RAAS_RUN_QUIET").is_some() {
            return;
        }
        let code = errno::get();
        if is_heard() {
            let line = format!("raas run: {words}\n");
            // SAFETY: the pointer and the length are those of `line`. A stderr that takes nothing loses the line.
            unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        }
        errno::set(code);
    }
}
