//! What the kernel knows of the path of a TCP connection (`TCP_INFO`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes of `struct tcp_info` (`linux/tcp.h`) up to the last field that is read. Fields never move; newer kernels have
/// more behind.
const INFO_BYTES: usize = 104;
/// Offsets of its fields, each 32 bits in the machine's order.
const SND_MSS: usize = 16;
const RTT_US: usize = 68;
const TOTAL_RETRANS: usize = 100;

/// The path of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathState {
    /// Smoothed round-trip time.
    pub(crate) round_trip: Duration,
    /// Bytes of a segment.
    pub(crate) segment_bytes: u32,
    /// Segments that were sent again, since the connection began.
    pub(crate) retransmitted: u32,
}

/// Asks the kernel.
pub(crate) fn path_state(fd: BorrowedFd<'_>) -> io::Result<PathState> {
    let mut info = [0_u8; INFO_BYTES];
    let mut len = INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has as many and lives until the call returns.
    let done = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < INFO_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    Ok(PathState {
        round_trip: Duration::from_micros(word(RTT_US).into()),
        segment_bytes: word(SND_MSS),
        retransmitted: word(TOTAL_RETRANS),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_connection_on_loopback_is_near_and_loses_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        let state = path_state(near.as_fd()).unwrap();
        assert!((1..=65_536).contains(&state.segment_bytes), "{state:?}");
        assert!(!state.round_trip.is_zero() && state.round_trip < Duration::from_secs(10), "{state:?}");
        assert_eq!(state.retransmitted, 0);
        assert!(path_state(std::io::stdin().as_fd()).is_err());
    }
}
