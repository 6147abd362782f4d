//! A process at its limit of open descriptors. Alone in its process, since the limit is one of the process.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use control::{ChannelError, FDS_MAX, Received, encode, receive, recv_message, send_message};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 64;

/// Opens descriptors until there are no more.
fn fill() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn a_message_without_room_for_its_descriptors_is_not_lost() {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (a, b): (OwnedFd, OwnedFd) = (a, b);
    let null = File::open("/dev/null").unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Nofile) }).unwrap();
    let mut buffer = Vec::new();
    let mut full = fill();
    send_message(a.as_fd(), &7u32, &[null.as_fd(), null.as_fd()]).unwrap();
    let Received { message, fds, lacks_fds } = receive::<u32>(b.as_fd(), &mut buffer).unwrap();
    assert_eq!((message, fds.len(), lacks_fds), (7, 0, true));
    // Room for one of two.
    full.pop();
    send_message(a.as_fd(), &8u32, &[null.as_fd(), null.as_fd()]).unwrap();
    let Received { message, fds, lacks_fds } = receive::<u32>(b.as_fd(), &mut buffer).unwrap();
    assert_eq!((message, fds.len(), lacks_fds), (8, 1, true));
    drop(fds);
    // A caller that needs them all learns whose limit it is.
    send_message(a.as_fd(), &9u32, &[null.as_fd(), null.as_fd()]).unwrap();
    let error = recv_message::<u32>(b.as_fd(), &mut buffer).unwrap_err();
    assert!(matches!(error, ChannelError::DescriptorLimit { limit: LIMIT }), "{error}");
    assert!(error.to_string().contains("64 open descriptors"), "{error}");
    // Too many is the sender's fault, and nobody's limit.
    drop(full);
    let rights = [null.as_fd(); FDS_MAX + 2];
    send_many(a.as_fd(), &rights);
    assert!(matches!(receive::<u32>(b.as_fd(), &mut buffer), Err(ChannelError::Truncated)));
    send_message(a.as_fd(), &10u32, &[null.as_fd(); FDS_MAX]).unwrap();
    let Received { message, fds, lacks_fds } = receive::<u32>(b.as_fd(), &mut buffer).unwrap();
    assert_eq!((message, fds.len(), lacks_fds), (10, FDS_MAX, false));
}

fn send_many(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(&encode(&1u32).unwrap())], &mut control, SendFlags::empty()).unwrap();
}
