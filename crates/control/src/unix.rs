//! The Unix socket: one message and its descriptors in one datagram.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{FRAME_BYTES_MAX, FrameError, decode, encode};

/// Descriptors in one message at most.
pub const FDS_MAX: usize = 4;

/// A message could not be sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other side closed or died.
    #[error("the other side closed the control socket")]
    Closed,
    /// Nothing to read now, or no room to write now.
    #[error("the control socket is not ready")]
    WouldBlock,
    /// The bytes are no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// More descriptors, or a longer datagram, than allowed.
    #[error("a control message was truncated: too long or too many descriptors")]
    Truncated,
    /// A system call failed.
    #[error("control socket: {0}")]
    Io(io::Error),
}

impl From<rustix::io::Errno> for ChannelError {
    fn from(e: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match e {
            Errno::AGAIN => Self::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            other => Self::Io(other.into()),
        }
    }
}

/// Sends one message with its descriptors; never blocks (`WouldBlock` when the buffer is full), never raises SIGPIPE.
pub fn send_message<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    send_frame(socket, &encode(message)?, fds)
}

/// Sends an encoded message, as [`send_message`] does.
pub fn send_frame(socket: BorrowedFd<'_>, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
    if fds.len() > FDS_MAX {
        return Err(ChannelError::Truncated);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ChannelError::Truncated);
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &[IoSlice::new(frame)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives one message and its descriptors (CLOEXEC); never blocks.
pub fn recv_message<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> Result<(T, Vec<OwnedFd>), ChannelError> {
    let (len, fds) = recv_frame(socket, buffer)?;
    Ok((decode(&buffer[..len])?, fds))
}

/// Receives one datagram into `buffer`, as [`recv_message`] does; says its length.
pub fn recv_frame(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<(usize, Vec<OwnedFd>), ChannelError> {
    buffer.resize(FRAME_BYTES_MAX, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut was_reset = false;
    let received = loop {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(r) => break r,
            Err(rustix::io::Errno::INTR) => {}
            // Of a peer that closed with something unread the kernel tells this, once, before its last words.
            Err(rustix::io::Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(e) => return Err(e.into()),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(ChannelError::Truncated);
    }
    if received.bytes == 0 {
        return Err(ChannelError::Closed);
    }
    Ok((received.bytes, fds))
}

/// Process and user at the other end of `socket`: the kernel's word, not the client's. The process is 0 if it cannot be
/// seen from here, as from within a container.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<(u32, u32)> {
    // Not through rustix, whose process numbers are never 0: it reports such a peer as an error.
    let cred = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok((u32::try_from(cred.pid()).unwrap_or(0), cred.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn the_last_words_of_a_peer_that_did_not_listen_are_heard() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send_message(a.as_fd(), &1u32, &[]).unwrap();
        send_message(b.as_fd(), &7u32, &[]).unwrap();
        drop(b);
        let mut buffer = Vec::new();
        assert_eq!(recv_message::<u32>(a.as_fd(), &mut buffer).unwrap().0, 7);
        assert!(matches!(recv_message::<u32>(a.as_fd(), &mut buffer), Err(ChannelError::Closed)));
    }

    #[test]
    fn message_and_descriptors_travel_together() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send_message(a.as_fd(), &(7u32, "hello"), &[file.as_fd(), file.as_fd()]).unwrap();
        let mut buffer = Vec::new();
        let (message, fds) = recv_message::<(u32, String)>(b.as_fd(), &mut buffer).unwrap();
        assert_eq!(message, (7, "hello".to_string()));
        assert_eq!(fds.len(), 2);
        assert!(matches!(recv_message::<u32>(b.as_fd(), &mut buffer), Err(ChannelError::WouldBlock)));
        send_frame(a.as_fd(), &[0xff; 3], &[]).unwrap();
        assert!(matches!(recv_message::<(u32, String)>(b.as_fd(), &mut buffer), Err(ChannelError::Frame(_))));
        drop(a);
        assert!(matches!(recv_message::<u32>(b.as_fd(), &mut buffer), Err(ChannelError::Closed)));
    }
}
