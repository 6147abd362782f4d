//! The Unix socket: one message and its descriptors in one datagram.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{FRAME_BYTES_MAX, FrameError, decode, encode};

/// Descriptors in one message at most: a Welcome with the wake sockets of sixteen engines.
pub const FDS_MAX: usize = 18;

/// A message could not be sent or received.
#[derive(thiserror::Error)]
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
    /// More descriptors, or a longer datagram, than allowed: the sender's fault.
    #[error("a control message was truncated: too long or too many descriptors")]
    Truncated,
    /// Descriptors that came with a message are lost, because this process may open no more. It is not the sender's
    /// fault.
    #[error(
        "this process is at its limit of {limit} open descriptors (RLIMIT_NOFILE), so that one which was sent to it is \
         lost: close some, or raise the limit (`ulimit -n`)"
    )]
    DescriptorLimit {
        /// Descriptors that it may have open.
        limit: u64,
    },
    /// A system call failed.
    #[error("control socket: {0}")]
    Io(io::Error),
}

crate::debug_says_the_words!(ChannelError);

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

/// A message of somebody whose descriptors this process must not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bare<T> {
    /// It came without descriptors, and is taken.
    Taken(T),
    /// Descriptors came with it, so it is still in the socket.
    WithDescriptors(T),
}

/// Receives one message if it has no descriptors, and looks at it if it has; never blocks, and never opens or closes a
/// descriptor. Nobody else may receive from `socket` at the same time.
pub fn receive_bare<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Bare<T>, ChannelError> {
    // The kernel says that it cut descriptors off, and with PEEK it leaves them where they are.
    let seen = receive_datagram(socket, buffer, &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Bare::WithDescriptors(decode(whole(&seen, buffer)?)?));
    }
    let taken = receive_datagram(socket, buffer, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())?;
    Ok(Bare::Taken(decode(whole(&taken, buffer)?)?))
}

/// A message as it came.
#[derive(Debug)]
pub struct Received<T> {
    /// The message.
    pub message: T,
    /// Its descriptors (CLOEXEC), those that this process had room for.
    pub fds: Vec<OwnedFd>,
    /// This process had no room for all: it is at its limit of open descriptors, and the missing ones are lost.
    pub lacks_fds: bool,
}

/// Receives one message and its descriptors; never blocks. At the limit of open descriptors the message is still there,
/// and says what is lost. For a program, which trusts its daemon.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<Received<T>, ChannelError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = receive_datagram(socket, buffer, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // With as many as are allowed there were too many; with fewer the kernel could not give this process more.
    let were_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if fds.len() > FDS_MAX || (were_cut && fds.len() == FDS_MAX) {
        return Err(ChannelError::Truncated);
    }
    Ok(Received { message: decode(whole(&received, buffer)?)?, fds, lacks_fds: were_cut })
}

/// As [`receive`], for a caller that needs every descriptor: at the limit it fails with
/// [`ChannelError::DescriptorLimit`].
pub fn recv_message<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> Result<(T, Vec<OwnedFd>), ChannelError> {
    let Received { message, fds, lacks_fds } = receive(socket, buffer)?;
    if lacks_fds { Err(ChannelError::DescriptorLimit { limit: descriptor_limit() }) } else { Ok((message, fds)) }
}

/// Open descriptors that this process may have, for messages to people.
pub fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// One datagram into `buffer`.
fn receive_datagram(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    control: &mut RecvAncillaryBuffer<'_>,
    flags: RecvFlags,
) -> Result<RecvMsg, ChannelError> {
    buffer.resize(FRAME_BYTES_MAX, 0);
    let mut was_reset = false;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], control, flags | RecvFlags::DONTWAIT) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            // If a peer closed with something unread, the kernel reports this once, before the peer's last messages.
            Err(rustix::io::Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(e) => return Err(e.into()),
        }
    };
    if received.bytes == 0 { Err(ChannelError::Closed) } else { Ok(received) }
}

/// The datagram, if it had room.
fn whole<'a>(received: &RecvMsg, buffer: &'a [u8]) -> Result<&'a [u8], ChannelError> {
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(ChannelError::Truncated);
    }
    buffer.get(..received.bytes).ok_or(ChannelError::Truncated)
}

/// Who is at the other end of a Unix socket: the kernel's word, as it was when that end connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process; 0 if it cannot be seen from here, as from within a container.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Who is at the other end of `socket`.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    // Not through rustix, whose process numbers are never 0: it reports such a peer as an error.
    let cred = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(PeerCredentials { pid: u32::try_from(cred.pid()).unwrap_or(0), uid: cred.uid(), gid: cred.gid() })
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

    #[test]
    fn a_message_with_descriptors_is_seen_and_stays() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut buffer = Vec::new();
        send_message(a.as_fd(), &1_u32, &[]).unwrap();
        send_message(a.as_fd(), &2_u32, &[file.as_fd()]).unwrap();
        send_message(a.as_fd(), &3_u32, &[file.as_fd(); FDS_MAX]).unwrap();
        let mut bare = || receive_bare::<u32>(b.as_fd(), &mut buffer);
        assert_eq!(bare().unwrap(), Bare::Taken(1));
        assert_eq!((bare().unwrap(), bare().unwrap()), (Bare::WithDescriptors(2), Bare::WithDescriptors(2)));
        let (message, fds) = recv_message::<u32>(b.as_fd(), &mut Vec::new()).unwrap();
        assert_eq!((message, fds.len()), (2, 1));
        assert_eq!(receive_bare::<u32>(b.as_fd(), &mut Vec::new()).unwrap(), Bare::WithDescriptors(3));
        recv_message::<u32>(b.as_fd(), &mut Vec::new()).unwrap();
        // What is no message is taken: else its sender would hear of a reset, and not why.
        send_frame(a.as_fd(), &[0xff; 3], &[]).unwrap();
        send_frame(a.as_fd(), &[0xff; FRAME_BYTES_MAX + 1], &[]).unwrap();
        let bare = || receive_bare::<(u32, String)>(b.as_fd(), &mut Vec::new());
        assert!(matches!(bare(), Err(ChannelError::Frame(_))));
        assert!(matches!(bare(), Err(ChannelError::Truncated)));
        assert!(matches!(bare(), Err(ChannelError::WouldBlock)));
    }
}
