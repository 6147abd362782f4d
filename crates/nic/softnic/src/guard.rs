//! The UDP port of a software NIC, held on all addresses of the host.
//!
//! Peers know the NIC by its address and source port. The port alone is no proof: a socket that is bound to the same
//! port of any other address, even one that no interface has, may name the NIC's address as the source of a datagram
//! (`IP_PKTINFO`, `IPV6_PKTINFO`), and Linux asks for no right to do so. So a second socket, which never sends and
//! never reads, holds the port at the wildcard addresses of both IP versions. Both sockets share the port
//! (`SO_REUSEPORT`), which Linux allows to sockets of one user only: NICs of the same user at other addresses still
//! open, other users get EADDRINUSE.
//!
//! Sharing would also let two NICs of one user bind the very same address and take each other's packets. A name in the
//! abstract namespace of Unix sockets, which belongs to the network namespace as ports do, keeps that out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::OpenError;

/// Receive buffer of the socket that nobody reads; the kernel raises it to its least.
const RCVBUF_BYTES: usize = 1;

/// The name of an address and port.
#[derive(Debug)]
pub(crate) struct Claim(#[allow(dead_code)] OwnedFd);

/// What holds the port.
#[derive(Debug)]
pub(crate) struct PortGuard {
    _name: Claim,
    wildcard: Option<OwnedFd>,
}

/// Whether lanes of this address leave the host. Then users of the host must be kept from sending in its name. On
/// loopback many NICs of several users exist side by side, and only users of this host can send there.
pub(crate) fn is_wanted(address: IpAddr) -> bool {
    !address.to_canonical().is_loopback()
}

/// Lets a socket share its port with others of the same user.
pub(crate) fn share(fd: impl AsFd) -> Result<(), OpenError> {
    sockopt::set_socket_reuseport(fd, true).map_err(|e| OpenError::os("setsockopt(SO_REUSEPORT)", e))
}

impl Claim {
    /// Of one NIC at a time: before its socket is bound, unless the system chooses the port.
    pub(crate) fn of(local: SocketAddr) -> Result<Self, OpenError> {
        let name = format!("raas softnic {}", SocketAddr::new(local.ip(), local.port()));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|e| OpenError::os("naming the claim of the port", e))?;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| OpenError::os("socket(AF_UNIX)", e))?;
        match rustix::net::bind(&fd, &address) {
            Ok(()) => Ok(Self(fd)),
            Err(Errno::ADDRINUSE) => Err(OpenError::AddressInUse(local)),
            Err(e) => Err(OpenError::os("bind(AF_UNIX)", e)),
        }
    }
}

impl PortGuard {
    /// Holds the port of `local`, whose socket shares it. Where a socket of another user has the port at some address,
    /// so that this user can send in the name of `local`, that is logged and nothing is held.
    pub(crate) fn hold(local: SocketAddr, name: Claim) -> Self {
        let wildcard = wildcard(local.port());
        if let Err(error) = &wildcard {
            tracing::warn!(
                %local, %error,
                "cannot hold the UDP port on all addresses of this host: who has it elsewhere on this host (`ss -lunp`) can \
                 forge packets of this NIC. Stop that program and start again"
            );
        }
        Self { _name: name, wildcard: wildcard.ok() }
    }

    /// Whether no other user can have the port.
    pub(crate) fn is_held(&self) -> bool {
        self.wildcard.is_some()
    }
}

/// A socket at the port of all addresses, of IPv4 alone where there is no IPv6.
fn wildcard(port: u16) -> Result<OwnedFd, Errno> {
    let open = |family, address: IpAddr| {
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&fd, false)?;
        }
        sockopt::set_socket_recv_buffer_size(&fd, RCVBUF_BYTES)?;
        sockopt::set_socket_reuseport(&fd, true)?;
        rustix::net::bind(&fd, &SocketAddr::new(address, port))?;
        Ok(fd)
    };
    match open(AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => open(AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// A socket that shares its port, at a free one of loopback.
    fn shared(address: &str) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind(address).unwrap();
        share(&socket).unwrap();
        let local = socket.local_addr().unwrap();
        (socket, local)
    }

    #[test]
    fn nobody_else_gets_the_port_at_any_address() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let (_socket, local) = shared(own);
            let elsewhere =
                ["127.0.0.9", "0.0.0.0", "::1", "::"].map(|ip| SocketAddr::new(ip.parse().unwrap(), local.port()));
            let free = |at: &SocketAddr| at.ip() != local.ip() && UdpSocket::bind(at).is_ok();
            assert!(elsewhere.iter().any(free), "without a guard the port of another address is free");
            let guard = PortGuard::hold(local, Claim::of(local).unwrap());
            assert!(guard.is_held(), "the port is free elsewhere");
            for at in elsewhere {
                let error = UdpSocket::bind(at).expect_err("the port is held");
                assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{at}");
            }
            drop(guard);
            assert!(elsewhere.iter().any(free), "the port is free again");
        }
    }

    #[test]
    fn two_of_one_user_hold_a_port_at_two_addresses_and_not_at_one() {
        let (_socket, local) = shared("127.0.0.1:0");
        let first = PortGuard::hold(local, Claim::of(local).unwrap());
        let other = SocketAddr::new("127.0.0.2".parse().unwrap(), local.port());
        let fd = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        share(&fd).unwrap();
        rustix::net::bind(&fd, &other).unwrap();
        let second = PortGuard::hold(other, Claim::of(other).unwrap());
        assert!(first.is_held() && second.is_held());
        assert!(matches!(Claim::of(local), Err(OpenError::AddressInUse(at)) if at == local));
    }

    #[test]
    fn a_port_that_somebody_has_elsewhere_is_told_and_not_fatal() {
        let (_socket, local) = shared("127.0.0.1:0");
        let _other = UdpSocket::bind(("127.0.0.9", local.port())).unwrap();
        assert!(!PortGuard::hold(local, Claim::of(local).unwrap()).is_held());
    }
}
