//! The running program's own file, as a path from which a child can start it again. A stage may build the workspace
//! while the test command runs, and Cargo then replaces the file: its old name no longer leads to this program.

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

/// A path to the program that runs, whatever became of its name. It works in this process and in every child that
/// inherits its descriptors, and in their children.
pub fn path() -> Result<PathBuf> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    let file = match FILE.get() {
        Some(file) => file,
        None => {
            // Without CLOEXEC: the child resolves the path by this very descriptor.
            let opened = rustix::fs::open("/proc/self/exe", OFlags::PATH, Mode::empty())
                .context("cannot open /proc/self/exe; is /proc mounted?")?;
            FILE.get_or_init(|| opened)
        }
    };
    Ok(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
}
