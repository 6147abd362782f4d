//! The process that takes descriptors of the programs of one user.
//!
//! Owns the only code that has such a descriptor before it is known. It may wait for a stranger for ever wherever it
//! closes one, so it answers first and closes then.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg, sockopt,
};

use crate::options::network_namespace;
use crate::orders::{first, next_order, send};
use crate::process;
use crate::words::{ANSWER_BYTES, Head, Kind, Order, SocketEnds, Taken, Verdict};

/// Programs that one receiver serves, by place.
pub const PLACES_MAX: u32 = 4096;

/// The daemon's hand on the process. Dropping it ends the process, unless it waits for a stranger.
#[derive(Debug)]
pub struct Receiver {
    socket: OwnedFd,
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Receiver {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Gives the receiver a second descriptor of a program's socket, in a place below [`PLACES_MAX`] that is empty.
    pub fn hold(&self, place: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        send(self.socket.as_fd(), Order::Hold(place), Some(socket))
    }

    /// The receiver closes what it has in a place.
    pub fn release(&self, place: u32) -> io::Result<()> {
        send(self.socket.as_fd(), Order::Release(place), None)
    }

    /// The receiver takes the next message of the program in a place, which [`Self::taken`] says.
    pub fn take(&self, place: u32, kind: Kind) -> io::Result<()> {
        send(self.socket.as_fd(), Order::Take(place, kind), None)
    }

    /// What the receiver took next; never waits. An error that is not `WouldBlock` says that it has ended.
    pub fn taken(&self) -> io::Result<Taken> {
        let mut bytes = [0; ANSWER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut rights, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let (place, head) = bytes.get(..received.bytes).and_then(Head::read).ok_or(io::ErrorKind::UnexpectedEof)?;
        let verdict = match (head, first(&mut rights)) {
            (Head::Memory, Some(fd)) => Verdict::Memory(fd),
            (Head::Memory | Head::NoRoom, None) => Verdict::NoRoom,
            (Head::Socket(ends), None) => Verdict::Socket(ends),
            (Head::TooMany, None) => Verdict::TooMany,
            (Head::Nothing, None) => Verdict::Nothing,
            (_, _) => Verdict::Other,
        };
        Ok(Taken { place, verdict })
    }
}

/// The receiver's life.
pub(crate) fn serve(daemon: OwnedFd) {
    let _ = rustix::thread::set_name(c"raas-receiver");
    let mut programs: [Option<OwnedFd>; PLACES_MAX as usize] = [const { None }; PLACES_MAX as usize];
    while let Some((order, with)) = next_order(&daemon) {
        let (Order::Hold(place) | Order::Release(place) | Order::Take(place, _)) = order else { break };
        let Some(program) = programs.get_mut(place as usize) else { break };
        match order {
            Order::Hold(_) => *program = with,
            Order::Take(_, kind) => take(&daemon, place, program.as_ref(), kind),
            _ => drop(program.take()),
        }
    }
    process::end(0)
}

/// Takes a message, of which the daemon knows the bytes, says what came with it, and only then closes what the daemon
/// does not get.
fn take(daemon: &OwnedFd, place: u32, program: Option<&OwnedFd>, kind: Kind) {
    // Room for two: how the kernel tells of one too many is the same as how it tells of one that it had no number for.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = program.and_then(|program| {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(program, &mut [IoSliceMut::new(&mut [0])], &mut rights, flags).ok()
    });
    let Some(received) = received else { return answer(daemon, Head::Nothing.bytes(place), None) };
    let mut fds = [const { None::<OwnedFd> }; 2];
    for (place, fd) in fds.iter_mut().zip(all(&mut rights)) {
        *place = Some(fd);
    }
    let cut = received.flags.contains(ReturnFlags::CTRUNC);
    let head = match (&fds, kind) {
        ([_, Some(_)], _) => Head::TooMany,
        (_, _) if cut => Head::NoRoom,
        ([Some(fd), None], Kind::Memory) if rustix::fs::fcntl_get_seals(fd).is_ok() => Head::Memory,
        ([Some(fd), None], Kind::Socket) => ends(fd).map_or(Head::Other, Head::Socket),
        _ => Head::Other,
    };
    let passed = (head == Head::Memory).then(|| fds[0].as_ref().map(AsFd::as_fd)).flatten();
    answer(daemon, head.bytes(place), passed);
}

/// Every descriptor of a message.
fn all(rights: &mut RecvAncillaryBuffer<'_>) -> impl Iterator<Item = OwnedFd> {
    let each = |message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    };
    rights.drain().filter_map(each).flatten()
}

/// Waits for room: the daemon reads, or ends.
fn answer(daemon: &OwnedFd, head: [u8; ANSWER_BYTES], with: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let with = with.as_slice();
    if !with.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(with));
    }
    loop {
        match sendmsg(daemon, &[IoSlice::new(&head)], &mut rights, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// The ends of a connected TCP socket.
fn ends(socket: &OwnedFd) -> Option<SocketEnds> {
    let family = sockopt::socket_domain(socket).ok()?;
    let is_tcp = matches!(family, AddressFamily::INET | AddressFamily::INET6)
        && sockopt::socket_type(socket).ok()? == SocketType::STREAM
        && sockopt::socket_protocol(socket).ok()? == Some(rustix::net::ipproto::TCP);
    if !is_tcp {
        return None;
    }
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    Some(SocketEnds { local, peer, namespace: network_namespace(socket).ok() })
}
