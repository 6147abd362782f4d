//! A TAP device: a network interface whose frames a program sends and receives. Tests build links of two.
//!
//! Owns the one call that makes it. The interface ends with the file.
//!
//! It must never do more than make the interface. May use nothing of the house. Order of calls: none.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const CONTROL: &str = "/dev/net/tun";

/// Makes an interface of this name that is down and has no address. Each read of the file, which never blocks, takes one
/// Ethernet frame that the kernel sent over the interface, and each write gives it one.
pub fn open(name: &str) -> io::Result<File> {
    // The last byte of the name's place stays zero.
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of an interface")));
    }
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(CONTROL)?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        // Frames alone, without a header of the kernel's before each.
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request is a whole `ifreq`, which the kernel reads and whose name it may write, during the call alone.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        for name in ["", "sixteen-letters-", "zero\0"] {
            assert_eq!(super::open(name).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
