//! One descriptor: a stream, a listener or a datagram socket, and waiting for it.
//!
//! Decides when the descriptor is readable: while bytes (a datagram, a connection) are there, or the end or an error,
//! and after a send that found no room, while there is room. The library below signals changes; a call that finds
//! nothing makes the descriptor unreadable and looks again. It must never leave the descriptor unreadable when there is
//! something that the program was not told of.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use raas::{DatagramSocket, Listener, MessageListener, MessageStream, Readiness, Stream, WithFd};
use rustix::event::{PollFd, PollFlags, poll};

use crate::failure::Failure;

/// Looks with a yield between, before a thread sleeps: about as long as waking it would take.
const YIELDS: u32 = 100;
/// Pause of a thread whose descriptor is readable for the other direction's sake.
const PAUSE: Duration = Duration::from_micros(200);

/// What a descriptor stands for. All of them are non-blocking below; waiting is done here.
#[derive(Debug)]
pub(crate) enum Kind {
    Stream(WithFd<Stream>),
    Listener(WithFd<Listener>),
    /// On UC.
    Messages(WithFd<MessageStream>),
    MessageListener(WithFd<MessageListener>),
    Datagram(WithFd<DatagramSocket>),
}

/// The two directions, and accepting, which is as reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) kind: Kind,
    /// Memory that came with `raas_accept_buffer`.
    pub(crate) memory: Mutex<Option<Memory>>,
    room_wanted: AtomicBool,
    closed: AtomicBool,
}

/// Memory of the program, of which it promised that it stays until the descriptor is closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

// SAFETY: the pointer is only used by a call that holds the mutex around it, and the program promised that the memory
// stays and that no other code of its touches it during a receive (`raas_accept_buffer`).
unsafe impl Send for Memory {}

impl Socket {
    pub(crate) fn stream(stream: Stream, memory: Option<Memory>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::new(Kind::Stream(WithFd::new(stream)?), memory)
    }

    pub(crate) fn listener(listener: Listener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::new(Kind::Listener(WithFd::new(listener)?), None)
    }

    pub(crate) fn messages(stream: MessageStream, memory: Option<Memory>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::new(Kind::Messages(WithFd::new(stream)?), memory)
    }

    pub(crate) fn message_listener(listener: MessageListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::new(Kind::MessageListener(WithFd::new(listener)?), None)
    }

    pub(crate) fn datagram(socket: DatagramSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Self::new(Kind::Datagram(WithFd::new(socket)?), None)
    }

    fn new(kind: Kind, memory: Option<Memory>) -> io::Result<Self> {
        let (room_wanted, closed) = Default::default();
        let socket = Self { kind, memory: Mutex::new(memory), room_wanted, closed };
        socket.settle()?;
        Ok(socket)
    }

    /// The descriptor for the program: a number of its own, so that a close(2) of it closes nothing of the library's.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.as_fd(), 0)?)
    }

    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        match &self.kind {
            Kind::Stream(stream) => stream.get_ref().local_addr(),
            Kind::Listener(listener) => listener.get_ref().local_addr(),
            Kind::Messages(stream) => stream.get_ref().local_addr(),
            Kind::MessageListener(listener) => listener.get_ref().local_addr(),
            Kind::Datagram(socket) => socket.get_ref().local_addr(),
        }
    }

    pub(crate) fn peer(&self) -> io::Result<SocketAddr> {
        match &self.kind {
            Kind::Stream(stream) => stream.get_ref().peer_addr(),
            Kind::Messages(stream) => stream.get_ref().peer_addr(),
            Kind::Listener(_) | Kind::MessageListener(_) => Err(io::ErrorKind::NotConnected.into()),
            Kind::Datagram(socket) => socket.get_ref().peer_addr(),
        }
    }

    /// Calls of other threads that wait here fail from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // An error means a forked child, or a session that is over: nobody waits then.
        let _ = self.signal();
    }

    /// Does `attempt` until it has an outcome other than that it would have to wait. Without `waits` that is an outcome
    /// too, EAGAIN, and the descriptor says when to try again.
    pub(crate) fn attempt<T>(
        &self,
        side: Side,
        waits: bool,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Result<T, Failure> {
        let mut yields = if waits { YIELDS } else { 0 };
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Failure::new(libc::EBADF, "another thread closed the descriptor"));
            }
            if let Some(outcome) = self.once(side, &mut attempt) {
                return outcome;
            }
            if yields > 0 {
                yields -= 1;
                thread::yield_now();
                continue;
            }
            self.want(side);
            let is_readable = self.settle()?;
            if let Some(outcome) = self.once(side, &mut attempt) {
                return outcome;
            }
            if !waits {
                return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
            }
            if is_readable {
                thread::sleep(PAUSE);
            } else {
                self.sleep()?;
            }
        }
    }

    fn once<T>(&self, side: Side, attempt: &mut dyn FnMut() -> io::Result<T>) -> Option<Result<T, Failure>> {
        let outcome = attempt();
        if matches!(&outcome, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
            return None;
        }
        if side == Side::Write {
            self.room_wanted.store(false, Ordering::SeqCst);
        }
        Some(outcome.map_err(Failure::from))
    }

    fn want(&self, side: Side) {
        if side == Side::Write {
            self.room_wanted.store(true, Ordering::SeqCst);
        }
    }

    /// Makes the descriptor say how things are: readable or not.
    fn settle(&self) -> io::Result<bool> {
        let ready = match &self.kind {
            Kind::Stream(stream) => stream.get_ref().readiness()?,
            Kind::Listener(listener) => listener.get_ref().readiness()?,
            Kind::Messages(stream) => stream.get_ref().readiness()?,
            Kind::MessageListener(listener) => listener.get_ref().readiness()?,
            Kind::Datagram(socket) => socket.get_ref().readiness()?,
        };
        let has_room = self.room_wanted.load(Ordering::SeqCst) && ready.contains(Readiness::WRITE);
        let is_ready = has_room || ready.contains(Readiness::READ) || ready.contains(Readiness::ERR);
        let is_readable = is_ready || self.closed.load(Ordering::SeqCst);
        if is_readable {
            self.signal()?;
        }
        Ok(is_readable)
    }

    /// Makes the descriptor readable.
    fn signal(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Stream(stream) => stream.get_ref().ready_fd().map(drop),
            Kind::Listener(listener) => listener.get_ref().ready_fd().map(drop),
            Kind::Messages(stream) => stream.get_ref().ready_fd().map(drop),
            Kind::MessageListener(listener) => listener.get_ref().ready_fd().map(drop),
            Kind::Datagram(socket) => socket.get_ref().ready_fd().map(drop),
        }
    }

    /// Until the descriptor is readable; a signal to the program ends it with EINTR.
    fn sleep(&self) -> io::Result<()> {
        poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], None)?;
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Stream(stream) => stream.as_fd(),
            Kind::Listener(listener) => listener.as_fd(),
            Kind::Messages(stream) => stream.as_fd(),
            Kind::MessageListener(listener) => listener.as_fd(),
            Kind::Datagram(socket) => socket.as_fd(),
        }
    }
}
