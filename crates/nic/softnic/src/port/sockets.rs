//! The UDP sockets of a port: one for each address of the NIC.
//!
//! Owns which socket a packet leaves through: the one that is bound to its source address, because ICRC, guard and the
//! numbering of segments all rest on that address. A NIC with one address has one socket, and nothing here costs it
//! more than that.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use verbs::{Counters, Gid, PathMtu, Time};

use crate::OpenError;
use crate::socket::Socket;

/// How long sockets beside the first wait for a look while nothing goes there.
const LOOK_PAUSE: Duration = Duration::from_micros(200);
/// How long after the last packet through one of them all are looked at in each round.
const IN_USE: Duration = Duration::from_secs(1);

/// The socket of one address.
#[derive(Debug)]
pub(crate) struct At {
    pub(crate) socket: Socket,
    /// Largest path MTU of its interface, in the clear and sealed; none: as the device's.
    pub(crate) mtu: Option<[PathMtu; 2]>,
    /// Batches that the next receive call takes at most: more after each call that was full.
    pub(crate) recv_depth: usize,
    /// The kernel cannot segment on its way out.
    pub(crate) offload_failed: bool,
}

impl At {
    pub(crate) fn new(socket: Socket, mtu: Option<[PathMtu; 2]>) -> Self {
        Self { socket, mtu, recv_depth: 1, offload_failed: false }
    }
}

/// The sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) first: At,
    /// Of further addresses.
    pub(crate) standby: Vec<At>,
    look_at: Time,
    used_at: Option<Time>,
}

impl Sockets {
    pub(crate) fn new(first: Socket, standby: Vec<At>) -> Self {
        Self { first: At::new(first, None), standby, look_at: Time::ZERO, used_at: None }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.first).chain(&self.standby).map(|at| &at.socket)
    }

    /// That of packets from `source`.
    pub(crate) fn of(&mut self, source: SocketAddr) -> &mut At {
        let is_there = |at: &&mut At| at.socket.local() == source;
        // A source is one of the addresses that the NIC was made with.
        self.standby.iter_mut().find(is_there).unwrap_or(&mut self.first)
    }

    /// Whether packets from there leave through the first one.
    pub(crate) fn is_first(&self, source: SocketAddr) -> bool {
        self.standby.is_empty() || self.first.socket.local() == source
    }

    /// Largest path MTU, in the clear and sealed, of the interface of a further address; none: as the device's.
    pub(crate) fn mtu_at(&self, gid: Gid) -> Option<[PathMtu; 2]> {
        self.standby.iter().find(|at| Gid::from(at.socket.local().ip()) == gid)?.mtu
    }

    /// Something left or came through one beside the first.
    pub(crate) fn note_use(&mut self, now: Time) {
        self.used_at = Some(now);
    }

    /// Whether those beside the first are to be looked at in this round.
    pub(crate) fn look_aside(&mut self, now: Time) -> bool {
        let is_used = self.used_at.is_some_and(|at| now.saturating_since(at) < IN_USE);
        if self.standby.is_empty() || !(is_used || self.look_at <= now) {
            return false;
        }
        self.look_at = now + LOOK_PAUSE;
        true
    }

    /// A descriptor that is readable when one of them is, if there are several.
    pub(crate) fn wait_set(&self) -> Result<Option<OwnedFd>, OpenError> {
        if self.standby.is_empty() {
            return Ok(None);
        }
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(|e| OpenError::os("epoll_create1", e))?;
        for socket in self.all() {
            epoll::add(&set, socket.as_fd(), EventData::new_u64(0), EventFlags::IN)
                .map_err(|e| OpenError::os("epoll_ctl", e))?;
        }
        Ok(Some(set))
    }

    /// What all of them did, by name.
    pub(crate) fn append_counters(&self, out: &mut Counters) {
        let sum = |of: fn(&Socket) -> u64| self.all().map(of).sum::<u64>();
        out.extend([
            ("rx_socket_overflow", sum(Socket::drops)),
            ("rx_socket_errors", sum(|s| s.counters.rx_socket_errors)),
            ("tx_socket_errors", sum(|s| s.counters.tx_socket_errors)),
            ("tx_too_long", sum(|s| s.counters.tx_too_long)),
            ("rx_syscalls", sum(|s| s.counters.rx_syscalls)),
            ("tx_syscalls", sum(|s| s.counters.tx_syscalls)),
            ("tx_would_block", sum(|s| s.counters.tx_would_block)),
            ("gso_batches", sum(|s| s.counters.gso_batches)),
            ("gro_batches", sum(|s| s.counters.gro_batches)),
        ]);
    }

    /// Whether users of this host other than its owner's can send in the name of one of its addresses.
    pub(crate) fn is_port_open(&self) -> bool {
        self.all().any(Socket::is_port_open)
    }
}
