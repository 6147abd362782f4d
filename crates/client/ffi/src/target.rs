//! Addresses as C has them: the Target of the paper.
//!
//! Owns the translation. It must never take bytes behind a null pointer.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::failure::Failure;

/// A host address and a port: the paper's Target. Fill it with raas_target_set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// IPv6 address in network byte order; an IPv4 address in its mapped form, ::ffff:a.b.c.d.
    pub address: [u8; 16],
    /// Port in the byte order of the host. 0 asks raas_listen for any free one.
    pub port: u16,
}

impl From<SocketAddr> for Target {
    fn from(addr: SocketAddr) -> Self {
        let address = match addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self { address: address.octets(), port: addr.port() }
    }
}

impl From<Target> for SocketAddr {
    fn from(target: Target) -> Self {
        Self::new(IpAddr::V6(Ipv6Addr::from(target.address)).to_canonical(), target.port)
    }
}

/// The first address of a host.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Target, Failure> {
    let unknown = |why: String| Failure::new(libc::EADDRNOTAVAIL, format!("the host {host:?} has no address: {why}"));
    let mut addresses = (host, port).to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
    Ok(addresses.next().ok_or_else(|| unknown("the name is empty of addresses".to_owned()))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_go_there_and_back() {
        for text in ["127.0.0.1:7000", "0.0.0.0:0", "[::1]:65535", "[2001:db8::7]:1", "[::]:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketAddr::from(Target::from(addr)), addr);
        }
        assert_eq!(SocketAddr::from(resolve("::1", 9).unwrap()), "[::1]:9".parse().unwrap());
        assert_eq!(resolve("no such host!", 9).unwrap_err().errno, libc::EADDRNOTAVAIL);
    }
}
