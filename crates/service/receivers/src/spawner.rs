//! The process that makes receivers, because a confined daemon may make none.
//!
//! Owns which of them lives. It never has a descriptor of a program.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

use crate::process::{self, child};
use crate::receiver;
use crate::words::{ORDER_BYTES, Order};

/// Receivers of one spawner, by number.
pub const RECEIVERS_MAX: u32 = 1024;
/// How long a spawner may take to end when its daemon has let it go, before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The daemon's hand on the process. Dropping it ends the process and all receivers.
#[derive(Debug)]
pub struct Spawner {
    socket: Option<OwnedFd>,
    pid: Pid,
}

impl Spawner {
    /// Makes the process. It has no descriptor of this one, and its memory as it is now.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let pid = child(theirs, serve)?;
        Ok(Self { socket: Some(ours), pid })
    }

    /// Makes a receiver with a number below [`RECEIVERS_MAX`] that none has which lives; says how to talk to it.
    pub fn receiver(&self, number: u32) -> io::Result<receiver::Receiver> {
        let (ours, theirs) = pair()?;
        self.say(Order::Spawn(number), Some(theirs.as_fd()))?;
        Ok(receiver::Receiver::new(ours))
    }

    /// Kills a receiver. One that waits for a program as no signal can end goes on waiting.
    pub fn kill(&self, number: u32) -> io::Result<()> {
        self.say(Order::Kill(number), None)
    }

    fn say(&self, order: Order, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket.as_fd(), order, with)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        drop(self.socket.take());
        let start = Instant::now();
        // Not for ever: a process that another one stops must not stop the daemon.
        while matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Two sockets for messages.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
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

/// The spawner's life.
fn serve(socket: OwnedFd) {
    let _ = rustix::thread::set_name(c"raas-spawner");
    let mut receivers: [Option<OwnedFd>; RECEIVERS_MAX as usize] = [const { None }; RECEIVERS_MAX as usize];
    while let Some((order, with)) = next_order(&socket) {
        match (order, with) {
            (Order::Spawn(number), Some(theirs)) => {
                let Some(place) = receivers.get_mut(number as usize) else { continue };
                let Ok(pid) = child(theirs, receiver::serve) else { continue };
                // If it has ended already, the number may be somebody else's; it has not, as long as its socket lives.
                *place = pidfd_open(pid, PidfdFlags::empty()).ok();
            }
            (Order::Kill(number), None) => {
                if let Some(pidfd) = receivers.get_mut(number as usize).and_then(Option::take) {
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                }
            }
            _ => break,
        }
    }
    // What is left ends with the daemon's ends of its sockets.
    process::end(0)
}
