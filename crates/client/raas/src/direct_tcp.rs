//! The socket of a stream's own TCP connection (docs/inside/kernel-tcp.md), in the session's epoll set.
//!
//! Owns the descriptor, and what of it the set is to tell. It must never tell what nobody waits for: a stream that
//! flows would wake the session's leader for each segment.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::Reason;
use raas_core::{Daemon, Direct, DirectBroken, DirectSocket, Side};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::attachment::Attachment;
use crate::descriptor::timespec;
use crate::driver::TOKEN_DIRECT;
use crate::park::lock;

/// Longest wait of a call that has to send all.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// See the head of this file.
#[derive(Debug)]
struct DirectTcp {
    socket: OwnedFd,
    epoll: Arc<OwnedFd>,
    token: u64,
    /// Bits of [`Side`] that the set is to tell.
    armed: Mutex<u32>,
    /// Knows whether this process is a forked child.
    daemon: Arc<Daemon>,
}

impl Attachment {
    /// The daemon has made a TCP connection for the stream in a slot. One that is not there any more, or has not been
    /// accepted, does not get it: closing it tells the peer that nothing comes.
    pub(crate) fn take_direct(&self, connection: u64, slot: u32, socket: OwnedFd) {
        let bell = lock(&self.bells).of_slots(&[slot]).pop();
        let Some(bell) = bell else { return };
        let Some(place) = bell.direct.get().filter(|place| place.connection() == connection) else { return };
        match DirectTcp::new(self, slot, socket) {
            Ok(socket) => {
                place.put(Direct::new(Box::new(socket), place.carries_messages()));
                bell.notify();
            }
            Err(error) => tracing::debug!(connection, %error, "a stream stays on the lane"),
        }
    }

    /// Something happened on the TCP connection of the stream in a slot, as was to be told.
    pub(crate) fn on_direct_event(&self, slot: u32) {
        let bell = lock(&self.bells).of_slots(&[slot]).pop();
        let Some(bell) = bell else { return };
        if let Some(direct) = bell.direct.get().and_then(|place| place.get()) {
            direct.handle_event();
        }
        bell.notify();
    }
}

impl DirectTcp {
    fn new(attachment: &Attachment, slot: u32, socket: OwnedFd) -> io::Result<Self> {
        let (token, epoll) = (TOKEN_DIRECT + u64::from(slot), Arc::clone(&attachment.epoll));
        let armed = Side::Read.bit();
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(token), events(armed))?;
        Ok(Self { socket, epoll, token, armed: Mutex::new(armed), daemon: Arc::clone(&attachment.daemon) })
    }

    /// Whether one of these holds, or an error does.
    fn shows(&self, what: PollFlags) -> bool {
        let mut fds = [PollFd::new(&self.socket, what)];
        matches!(poll(&mut fds, Some(&timespec(Duration::ZERO))), Ok(1..))
    }

    fn is_forked(&self) -> bool {
        self.daemon.life().check_fork().is_err()
    }
}

/// What the set tells, once.
fn events(armed: u32) -> epoll::EventFlags {
    let mut events = epoll::EventFlags::ONESHOT;
    if armed & Side::Read.bit() != 0 {
        events |= epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    }
    if armed & Side::Write.bit() != 0 {
        events |= epoll::EventFlags::OUT;
    }
    events
}

fn broken(errno: Errno) -> DirectBroken {
    DirectBroken(match errno {
        Errno::CONNRESET | Errno::PIPE => Reason::ResetByPeer,
        _ => Reason::DirectLost,
    })
}

impl DirectSocket for DirectTcp {
    fn recv(&self, buf: &mut [u8]) -> Result<Option<usize>, DirectBroken> {
        loop {
            match rustix::net::recv(&self.socket, &mut *buf, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Ok(Some(count)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(broken(errno)),
            }
        }
    }

    fn send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, DirectBroken> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let sent = match bufs {
                [one] => rustix::net::send(&self.socket, one, flags),
                all => rustix::net::sendmsg(&self.socket, all, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(broken(errno)),
            }
        }
    }

    fn end_sending(&self) {
        // A child would end its parent's stream.
        if !self.is_forked() {
            // It can only fail where the connection is broken.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
    }

    fn is_ready(&self, side: Side) -> bool {
        self.shows(match side {
            Side::Read => PollFlags::IN | PollFlags::RDHUP,
            Side::Write => PollFlags::OUT,
        })
    }

    fn has_end(&self) -> bool {
        self.shows(PollFlags::RDHUP)
    }

    fn arm(&self, side: Side) {
        if self.is_forked() {
            return;
        }
        let mut armed = lock(&self.armed);
        if *armed & side.bit() == 0 {
            *armed |= side.bit();
            // It can only fail if the set is gone, and with it everybody who waits on it.
            let data = epoll::EventData::new_u64(self.token);
            let _ = epoll::modify(&self.epoll, &self.socket, data, events(*armed));
        }
    }

    fn disarm(&self) {
        *lock(&self.armed) = 0;
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn wait_room(&self) {
        let fd: BorrowedFd<'_> = self.socket.as_fd();
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&timespec(ROOM_WAIT)));
    }
}

impl Drop for DirectTcp {
    fn drop(&mut self) {
        // Explicitly: a forked child may hold the descriptor open. The child itself shares the set with its parent.
        if !self.is_forked() {
            let _ = epoll::delete(&self.epoll, &self.socket);
        }
    }
}
