//! The sockets of one address: one for each slot, in the order of the slots.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use super::SLOT_BITS;
use crate::OpenError;
use crate::guard::{self, Claim, PortGuard};
use crate::sys;

/// Datagrams that are dropped from a socket before it is lent again: more than its buffer holds.
const DROPPED_MAX: usize = 1 << 20;

/// The group.
#[derive(Debug)]
pub(super) struct Group {
    at: SocketAddr,
    /// By slot.
    sockets: Vec<OwnedFd>,
    /// Keeps others from the port.
    _guard: Option<PortGuard>,
}

impl Group {
    /// Takes the port of an address.
    pub(super) fn new(address: IpAddr, port: u16) -> Result<Self, OpenError> {
        let at = SocketAddr::new(address, port);
        // As a NIC that is there alone does: the same user's could share the port, and would take packets.
        let claim = guard::is_wanted(address).then(|| Claim::of(at)).transpose()?;
        // Without `SO_REUSEPORT` nobody has the port beside others: so who has it says so.
        drop(bound(at, false)?);
        let mut group = Self { at, sockets: Vec::new(), _guard: None };
        group.extend(1)?;
        let first = group.sockets.first().map(AsFd::as_fd);
        first
            .map(|first| sys::steer_by_byte(first, STEERING_BYTE, 8 - SLOT_BITS))
            .transpose()
            .map_err(|error| OpenError::os("setsockopt(SO_ATTACH_REUSEPORT_CBPF)", error))?;
        group._guard = claim.map(|claim| PortGuard::hold(at, claim));
        Ok(group)
    }

    /// Makes sockets until there are so many.
    pub(super) fn extend(&mut self, slots: usize) -> Result<(), OpenError> {
        while self.sockets.len() < slots {
            self.sockets.push(bound(self.at, true)?);
        }
        Ok(())
    }

    /// The socket of a slot.
    pub(super) fn of(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        self.sockets.get(slot).map(AsFd::as_fd)
    }

    /// Drops what waits in the socket of a slot.
    pub(super) fn empty(&self, slot: usize) {
        let Some(socket) = self.of(slot) else { return };
        for _ in 0..DROPPED_MAX {
            if rustix::net::recv(socket, &mut [0_u8; 1][..], RecvFlags::DONTWAIT | RecvFlags::TRUNC).is_err() {
                return;
            }
        }
    }
}

/// The highest byte of the destination's queue pair number in a RoCEv2 packet (IBTA 9.2).
const STEERING_BYTE: u32 = 5;

fn bound(at: SocketAddr, shares: bool) -> Result<OwnedFd, OpenError> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
        .map_err(|e| OpenError::os("socket(SOCK_DGRAM)", e))?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true).map_err(|e| OpenError::os("setsockopt(IPV6_V6ONLY)", e))?;
    }
    if shares || guard::is_wanted(at.ip()) {
        guard::share(&fd)?;
    }
    rustix::net::bind(&fd, &at).map_err(|e| OpenError::binding(e, at))?;
    Ok(fd)
}
