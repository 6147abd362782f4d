//! Where hosts are in the simulated network.

use std::net::IpAddr;

/// The address of a host.
pub fn address(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}
