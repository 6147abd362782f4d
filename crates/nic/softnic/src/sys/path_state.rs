//! What the kernel knows of the path of a TCP connection (`TCP_INFO`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes of `struct tcp_info` (`linux/tcp.h`) up to the last field that is read. Fields never move; newer kernels have
/// more behind.
const INFO_BYTES: usize = 104;
/// Likewise of Linux 4.10.
const INFO_BYTES_MAX: usize = 184;
/// Offsets of fields of 32 bits, in the machine's order.
const SND_MSS: usize = 16;
const RTT_US: usize = 68;
const SND_CWND: usize = 80;
const TOTAL_RETRANS: usize = 100;
/// Since Linux 4.10; the lower half of 64 bits.
const RWND_LIMITED_US: usize = if cfg!(target_endian = "big") { 180 } else { 176 };

/// The path of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathState {
    /// Smoothed round-trip time.
    pub(crate) round_trip: Duration,
    /// Bytes of a segment.
    pub(crate) segment_bytes: u32,
    /// Segments that may be under way: the congestion window.
    pub(crate) window_segments: u32,
    /// Segments that were sent again, since the connection began.
    pub(crate) retransmitted: u32,
    /// How long sending was held up because the receiver had no room, since the connection began: microseconds, modulo
    /// 2^32.
    pub(crate) held_up_us: u32,
}

/// The kernel's words about a connection.
struct Info {
    bytes: [u8; INFO_BYTES_MAX],
    len: usize,
}

impl Info {
    /// Asks the kernel.
    fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut bytes = [0_u8; INFO_BYTES_MAX];
        let mut len = INFO_BYTES_MAX as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has as many and lives until the call returns.
        let done = unsafe {
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let len = len as usize;
        if len < INFO_BYTES { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Self { bytes, len }) }
    }

    /// A field; 0 if this kernel has none there.
    fn word(&self, at: usize) -> u32 {
        let field = self.bytes.get(..self.len.min(INFO_BYTES_MAX)).and_then(|known| known.get(at..)?.first_chunk());
        field.copied().map_or(0, u32::from_ne_bytes)
    }

    fn round_trip(&self) -> Duration {
        Duration::from_micros(self.word(RTT_US).into())
    }
}

/// Asks the kernel.
pub(crate) fn path_state(fd: BorrowedFd<'_>) -> io::Result<PathState> {
    let info = Info::of(fd)?;
    Ok(PathState {
        round_trip: info.round_trip(),
        segment_bytes: info.word(SND_MSS),
        window_segments: info.word(SND_CWND),
        retransmitted: info.word(TOTAL_RETRANS),
        held_up_us: info.word(RWND_LIMITED_US),
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
        assert!((1..=65_536).contains(&state.window_segments), "{state:?}");
        assert!(path_state(std::io::stdin().as_fd()).is_err());
    }
}
