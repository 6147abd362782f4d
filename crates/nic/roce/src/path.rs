//! Which address of this host packets leave from, where an address handle leads, and where packets come from.

use std::net::SocketAddr;

use verbs::{AddressVector, Psn};

use crate::wire::{IdGuess, PseudoHeader};

/// One of the addresses that the NIC is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its place among them; 0 for [`crate::NicConfig::local`]. Two of them are compared by it alone.
    pub(crate) index: usize,
    pub(crate) address: SocketAddr,
}

/// Where an address handle leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) address: SocketAddr,
    /// Whence.
    pub(crate) source: Source,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Masked headers of packets that take it.
    pub(crate) route: PseudoHeader,
    /// The keys that its datagrams are sealed with; none: they are in the clear.
    pub(crate) seal: Option<Psn>,
}

impl Path {
    /// From `source` to a port; `None` if that is of the other IP version.
    pub(crate) fn new(av: &AddressVector, source: Source) -> Option<Self> {
        let address = SocketAddr::new(av.gid.ip(), av.udp_port);
        let (traffic_class, hop_limit) = (av.traffic_class, av.hop_limit);
        let route = PseudoHeader::new(source.address, address)?;
        Some(Self { address, source, traffic_class, hop_limit, route, seal: None })
    }

    /// Whether packets of both may leave in one send.
    pub(crate) fn leads_like(&self, other: &Self) -> bool {
        let way = |path: &Self| (path.address, path.source.index, path.traffic_class, path.hop_limit);
        way(self) == way(other)
    }
}

/// Where packets to a QP come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbound {
    pub(crate) source: SocketAddr,
    /// Whither.
    pub(crate) at: Source,
    /// Masked headers of packets from there.
    pub(crate) route: PseudoHeader,
    /// Their IPv4 identifications.
    pub(crate) ids: IdGuess,
}

impl Inbound {
    /// From a port to an address of the NIC; `None` if they are of different IP versions.
    pub(crate) fn new(source: SocketAddr, at: Source) -> Option<Self> {
        Some(Self { source, at, route: PseudoHeader::new(source, at.address)?, ids: IdGuess::default() })
    }
}
