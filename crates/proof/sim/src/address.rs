//! Where hosts are in the simulated network, and which of their engines is meant.

use std::net::IpAddr;

/// UDP port of all NICs, and TCP port of their other wire.
pub(crate) const UDP_PORT: u16 = 4791;

/// The address of a host: its number and one, below 10.0.0.0.
pub fn address(host: usize) -> IpAddr {
    let [_, a, b, c] = (host as u32 + 1).to_be_bytes();
    IpAddr::from([10, a, b, c])
}

/// The host of an address; far more than there are, if it is none of a host.
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
        assert_eq!(host_of(IpAddr::from([10, 0, 0, 0])), usize::MAX);
    }
}
