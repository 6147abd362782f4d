//! Wake descriptors: a socketpair with exactly two parties.
//!
//! Owns the datagrams of a wake socket: one byte "wake up", four bytes "look at this slot" (little-endian). It must
//! never block, raise SIGPIPE, or believe the other side: datagrams of any other form are dropped, and one call takes a
//! bounded number of them.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// Most datagrams that one [`WakeSocket::drain`] takes.
pub const MAX_DRAIN: usize = 256;

/// A plain wake. Any one byte is accepted.
const WAKE: [u8; 1] = [0];
/// Receive buffer; one byte more than the longest datagram that means anything.
const DATAGRAM_BYTES: usize = 5;

/// What a drained wake socket said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Nothing was there.
    Empty,
    /// Woken. With an edge-triggered poller drain again until `Empty`.
    Woken,
    /// The other end is gone.
    Hangup,
}

/// One end of a wake socket (AF_UNIX SEQPACKET, CLOEXEC, always used with MSG_DONTWAIT and MSG_NOSIGNAL).
///
/// The other end closing (or its process dying) is seen as POLLHUP and [`Drained::Hangup`]. A child made by fork
/// without exec holds a copy of the end and hides the death of its parent.
#[derive(Debug)]
pub struct WakeSocket {
    fd: OwnedFd,
}

impl WakeSocket {
    /// Two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { fd: a }, Self { fd: b }))
    }

    /// From a received descriptor, which must be a connected AF_UNIX SEQPACKET socket, else `InvalidInput`. It is made
    /// close-on-exec.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let fd = crate::raised(fd);
        let refuse = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("not a wake socket: {what}"));
        let domain = sockopt::socket_domain(&fd).map_err(|_| refuse("not a socket"))?;
        if domain != AddressFamily::UNIX {
            return Err(refuse("not AF_UNIX"));
        }
        if sockopt::socket_type(&fd)? != SocketType::SEQPACKET {
            return Err(refuse("not SOCK_SEQPACKET"));
        }
        if sockopt::socket_acceptconn(&fd)? {
            return Err(refuse("it listens"));
        }
        rustix::net::getpeername(&fd).map_err(|_| refuse("not connected"))?;
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        Ok(Self { fd })
    }

    /// Wakes the other side; a full buffer counts as success (it has wakes to read then). Err: the other side is gone.
    pub fn wake(&self) -> io::Result<()> {
        self.send(&WAKE).map(|_| ())
    }

    /// Sends a slot number (pair sockets). A full buffer gives `Ok(false)`: nothing was sent. So the caller keeps the
    /// slot and sends it again when the socket is writable, or relies on the time limit of the peer's wait. Err: the
    /// other side is gone.
    pub fn wake_slot(&self, slot: u32) -> io::Result<bool> {
        self.send(&slot.to_le_bytes())
    }

    /// Takes what is queued, at most [`MAX_DRAIN`] datagrams; slot numbers are appended to `slots`. They are the peer's
    /// words: check them against the number of slots.
    pub fn drain(&self, slots: &mut Vec<u32>) -> io::Result<Drained> {
        let mut woken = false;
        for _ in 0..MAX_DRAIN {
            let mut datagram = [0; DATAGRAM_BYTES];
            // TRUNC: the real length comes back, so that a longer datagram does not pass for a short one.
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match rustix::net::recv(&self.fd, &mut datagram, flags) {
                // An empty datagram and the end of the stream look alike.
                Ok((_, 0)) if is_hung_up(self.fd())? => return Ok(Drained::Hangup),
                Ok((_, 1)) => woken = true,
                Ok((_, 4)) => {
                    let [a, b, c, d, _] = datagram;
                    slots.push(u32::from_le_bytes([a, b, c, d]));
                    woken = true;
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(if woken { Drained::Woken } else { Drained::Empty }),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET | Errno::NOTCONN | Errno::PIPE) => return Ok(Drained::Hangup),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Drained::Woken)
    }

    /// The descriptor, for poll().
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// To be passed on.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// False if the buffer is full.
    fn send(&self, datagram: &[u8]) -> io::Result<bool> {
        loop {
            match rustix::net::send(&self.fd, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Whether the other end closed, or promised to send nothing more.
fn is_hung_up(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut polled, Some(&now)) {
        Ok(_) => {}
        // A signal came first: not known yet, the caller asks again after its next receive.
        Err(Errno::INTR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    Ok(polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP))
}
