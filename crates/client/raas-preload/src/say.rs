//! Words for the person who started the program, on stderr.

use std::sync::atomic::{AtomicBool, Ordering};

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
        let line = format!("raas run: {words}\n");
        // SAFETY: the pointer and the length are those of `line`. A stderr that takes nothing loses the line.
        unsafe { crate::real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
}
