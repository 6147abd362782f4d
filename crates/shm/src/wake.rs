//! Wake descriptors: a socketpair with exactly two parties.
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a drained wake socket said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Nothing was there.
    Empty,
    /// Woken.
    Woken,
    /// The other end is gone.
    Hangup,
}

/// One end of a wake socket (AF_UNIX SEQPACKET, CLOEXEC, always used with MSG_DONTWAIT and MSG_NOSIGNAL).
#[derive(Debug)]
pub struct WakeSocket { _fd: OwnedFd }
impl WakeSocket {
    /// Two connected ends.
    pub fn pair() -> std::io::Result<(Self, Self)> { todo!() }
    /// From a received descriptor (checked to be a SEQPACKET socket).
    pub fn from_fd(fd: OwnedFd) -> std::io::Result<Self> { todo!() }
    /// Wakes the other side; a full buffer counts as success (it is awake then). Err: the other side is gone.
    pub fn wake(&self) -> std::io::Result<()> { todo!() }
    /// Sends a slot number (pair sockets). A full buffer gives Ok(false).
    pub fn wake_slot(&self, slot: u32) -> std::io::Result<bool> { todo!() }
    /// Takes everything that is queued; slot numbers go to `slots`.
    pub fn drain(&self, slots: &mut Vec<u32>) -> std::io::Result<Drained> { todo!() }
    /// The descriptor, for poll().
    pub fn fd(&self) -> BorrowedFd<'_> { self._fd.as_fd() }
    /// To be passed on.
    pub fn into_fd(self) -> OwnedFd { self._fd }
}
