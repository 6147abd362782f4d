//! Tries whether TCP leads to a host: a connection to the peer's listener that shows no token, so that the peer's device
//! reads it and closes it. Its end proves that bytes go there and an answer comes back.
//!
//! Owns the sockets of tries; each is bounded in time, and there are so many.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use verbs::Time;

use super::Watched;
use super::elsewhere::question;
use super::socket::{self, SocketOptions};

/// Tries at a time.
const TRIES_MAX: usize = 16;
/// How long one may take.
const TRY_PATIENCE: Duration = Duration::from_secs(1);

/// A try.
#[derive(Debug)]
struct Try {
    number: u32,
    host: IpAddr,
    /// It was due; else the host's other wire is silent.
    in_turn: bool,
    fd: OwnedFd,
    has_asked: bool,
    until: Time,
}

/// How a try ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) host: IpAddr,
    pub(super) answered: bool,
    pub(super) in_turn: bool,
}

/// All of them, oldest first.
#[derive(Debug, Default)]
pub(super) struct Tries {
    list: Vec<Try>,
    last_number: u32,
}

impl Tries {
    /// Begins one, unless there is one to that host or there are as many as may be. An error: it failed at once.
    pub(super) fn begin(
        &mut self,
        now: Time,
        epoll: &OwnedFd,
        (local, peer): (SocketAddr, SocketAddr),
        options: SocketOptions,
        in_turn: bool,
    ) -> Result<(), Tried> {
        let host = peer.ip();
        if self.list.len() >= TRIES_MAX || self.has(host) {
            return Ok(());
        }
        let failed = Tried { host, answered: false, in_turn };
        let fd = socket::connect(local, peer, options).map_err(|_| failed)?;
        self.last_number = self.last_number.wrapping_add(1);
        let number = self.last_number;
        let data = EventData::new_u64(Watched::Try(number).to_u64());
        epoll::add(epoll, &fd, data, EventFlags::OUT).map_err(|_| failed)?;
        self.list.push(Try { number, host, in_turn, fd, has_asked: false, until: now + TRY_PATIENCE });
        Ok(())
    }

    /// Whether there is one to that host.
    pub(super) fn has(&self, host: IpAddr) -> bool {
        self.list.iter().any(|one| one.host == host)
    }

    /// What the epoll set says of one. What became of it, if it ended.
    pub(super) fn on_ready(&mut self, epoll: &OwnedFd, number: u32) -> Option<Tried> {
        let at = self.list.iter().position(|one| one.number == number)?;
        let one = self.list.get_mut(at)?;
        let answered = if one.has_asked { one.answered() } else { one.ask(epoll) }?;
        let Try { host, in_turn, .. } = self.list.remove(at);
        Some(Tried { host, answered, in_turn })
    }

    /// Takes one whose time is over.
    pub(super) fn take_expired(&mut self, now: Time) -> Option<Tried> {
        let at = self.list.iter().position(|one| one.until <= now)?;
        let Try { host, in_turn, .. } = self.list.remove(at);
        Some(Tried { host, answered: false, in_turn })
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.list.iter().map(|one| one.until).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl Try {
    /// The connection stands: says whom it does not mean. `None`: the answer is awaited.
    fn ask(&mut self, epoll: &OwnedFd) -> Option<bool> {
        if socket::connected(&self.fd)?.is_err() {
            return Some(false);
        }
        let bytes = question();
        let data = EventData::new_u64(Watched::Try(self.number).to_u64());
        let watched = epoll::modify(epoll, &self.fd, data, EventFlags::IN | EventFlags::RDHUP);
        let sent = rustix::net::send(self.fd.as_fd(), &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.has_asked = true;
        (watched.is_err() || sent != Ok(bytes.len())).then_some(false)
    }

    /// The peer closed it, or speaks: it has read what was sent. `None`: neither.
    fn answered(&self) -> Option<bool> {
        match rustix::net::recv(&self.fd, &mut [0; 64], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::CONNRESET) => Some(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => None,
            Err(_) => Some(false),
        }
    }
}
