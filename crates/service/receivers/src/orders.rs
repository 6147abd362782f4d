//! Orders on their way, with at most one descriptor each.
//!
//! Owns the system calls. Nothing here allocates.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::words::{ORDER_BYTES, Order};

/// Two sockets for messages.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends an order, and never waits.
pub(crate) fn send(socket: BorrowedFd<'_>, order: Order, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let with = with.as_slice();
    if !with.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(with)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let bytes = order.bytes();
    loop {
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut rights, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The next order, and what came with it; none when the daemon has ended.
pub(crate) fn next_order(socket: &OwnedFd) -> Option<(Order, Option<OwnedFd>)> {
    loop {
        let mut bytes = [0; ORDER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => return Some((Order::read(bytes.get(..received.bytes)?)?, first(&mut rights))),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// The first descriptor of a message.
pub(crate) fn first(rights: &mut RecvAncillaryBuffer<'_>) -> Option<OwnedFd> {
    rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}
