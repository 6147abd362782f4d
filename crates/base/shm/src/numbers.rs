//! Numbers of descriptors: a library within a program of somebody else keeps away from the low ones.
//!
//! Programs count on getting the lowest free number, as daemons do when they close 0, 1 and 2 and open them again. It
//! must never fail: a descriptor that cannot be moved stays where it is.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The lowest number that this process's descriptors of the service have; 0: as the kernel gives them.
static LOWEST: AtomicI32 = AtomicI32::new(0);

/// From now on descriptors of the service in this process have this number or a higher one, as far as the limit on open
/// descriptors (`RLIMIT_NOFILE`) has room there.
pub fn keep_numbers_above(lowest: RawFd) {
    LOWEST.store(lowest, Ordering::Relaxed);
}

/// Moves a descriptor to where [`keep_numbers_above`] wants it. It is close-on-exec afterwards if it is moved.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    let lowest = LOWEST.load(Ordering::Relaxed);
    if fd.as_raw_fd() >= lowest {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_goes_where_it_is_wanted_or_stays() {
        let made = || rustix::fs::memfd_create("raas-numbers", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // Other tests of this process may make descriptors meanwhile, which is well.
        keep_numbers_above(300);
        assert!(raised(made()).as_raw_fd() >= 300);
        keep_numbers_above(RawFd::MAX);
        let fd = made();
        let number = fd.as_raw_fd();
        assert_eq!(raised(fd).as_raw_fd(), number);
        keep_numbers_above(0);
        let fd = made();
        let number = fd.as_raw_fd();
        assert_eq!(raised(fd).as_raw_fd(), number);
    }
}
