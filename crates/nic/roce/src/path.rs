//! Where an address handle leads, and where packets come from.

use std::net::SocketAddr;

use verbs::{AddressVector, Psn};

use crate::wire::{IdGuess, PseudoHeader};

/// Where an address handle leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) address: SocketAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Masked headers of packets that take it.
    pub(crate) route: PseudoHeader,
    /// The keys that its datagrams are sealed with; none: they are in the clear.
    pub(crate) seal: Option<Psn>,
}

impl Path {
    /// From `local` to a port; `None` if that is of the other IP version.
    pub(crate) fn new(av: &AddressVector, local: SocketAddr) -> Option<Self> {
        let address = SocketAddr::new(av.gid.ip(), av.udp_port);
        let (traffic_class, hop_limit) = (av.traffic_class, av.hop_limit);
        Some(Self { address, traffic_class, hop_limit, route: PseudoHeader::new(local, address)?, seal: None })
    }

    /// Whether packets of both may leave in one send.
    pub(crate) fn leads_like(&self, other: &Self) -> bool {
        let way = |path: &Self| (path.address, path.traffic_class, path.hop_limit);
        way(self) == way(other)
    }
}

/// Where packets to a QP come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbound {
    pub(crate) source: SocketAddr,
    /// Masked headers of packets from there.
    pub(crate) route: PseudoHeader,
    /// Their IPv4 identifications.
    pub(crate) ids: IdGuess,
}

impl Inbound {
    /// From a port to `local`; `None` if they are of different IP versions.
    pub(crate) fn new(source: SocketAddr, local: SocketAddr) -> Option<Self> {
        Some(Self { source, route: PseudoHeader::new(source, local)?, ids: IdGuess::default() })
    }
}
