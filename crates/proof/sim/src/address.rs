//! Where hosts are in the simulated network, and which of their engines is meant.

use std::net::IpAddr;

/// UDP port of all NICs, and TCP port of their other wire.
pub(crate) const UDP_PORT: u16 = 4791;

/// First byte of second addresses.
const STANDBY_NET: u8 = 11;
/// Paths between two hosts, at most.
pub(crate) const PATHS: usize = 2;

/// The address of a host: its number and one, below 10.0.0.0.
pub fn address(host: usize) -> IpAddr {
    let [_, a, b, c] = (host as u32 + 1).to_be_bytes();
    IpAddr::from([10, a, b, c])
}

/// The second address of a host, which those have whose plan says so.
pub(crate) fn standby(host: usize) -> IpAddr {
    let [_, a, b, c] = (host as u32 + 1).to_be_bytes();
    IpAddr::from([STANDBY_NET, a, b, c])
}

/// The address of a host on a path.
pub(crate) fn address_on(host: usize, path: usize) -> IpAddr {
    if path == 0 { address(host) } else { standby(host) }
}

/// The path on which an address of a host is.
pub(crate) fn path_of(ip: IpAddr) -> usize {
    usize::from(matches!(ip, IpAddr::V4(v4) if v4.octets()[0] == STANDBY_NET))
}

/// The host of an address, the first or the second one; far more than there are, if it is none of a host.
pub(crate) fn host_of(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(v4) => {
            let [_, a, b, c] = v4.octets();
            (u32::from_be_bytes([0, a, b, c]) as usize).wrapping_sub(1)
        }
        IpAddr::V6(_) => usize::MAX,
    }
}

/// An engine of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) host: usize,
    pub(crate) engine: u32,
}

impl At {
    /// For the trace.
    pub(crate) fn code(self) -> u64 {
        self.host as u64 + 1000 * u64::from(self.engine)
    }
}

/// Whether a lane is the one that all programs share, and not leased to one of them.
pub(crate) fn is_shared(lane: &control::LaneRow) -> bool {
    !lane.name.contains("leased")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_addresses_belong_together() {
        assert_eq!(address(0), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(address(255), IpAddr::from([10, 0, 1, 0]));
        assert!([0, 1, 254, 255, 256, 999, 65_535, 70_000].iter().all(|host| host_of(address(*host)) == *host));
        assert!([0, 999].iter().all(|host| host_of(standby(*host)) == *host && path_of(standby(*host)) == 1));
        assert_eq!((path_of(address(7)), address_on(7, 0), address_on(7, 1)), (0, address(7), standby(7)));
        assert_eq!(host_of(IpAddr::from([10, 0, 0, 0])), usize::MAX);
    }
}
