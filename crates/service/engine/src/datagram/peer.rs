//! What a linked peer said about its datagrams in its offer, and which applications ask how long a datagram to a host
//! may be.

use std::net::IpAddr;

use verbs::{AddressVector, AhId, Gid, PathMtu, Qkey, Qpn, UdDest};

use crate::ids::{AppId, LaneId};

/// A host's UD queue pair, as its offer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerPort {
    pub(crate) av: AddressVector,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
    /// The number that stands in its datagrams.
    pub(crate) token: u64,
    pub(crate) mtu: PathMtu,
}

/// The UD queue pair of a linked host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramPeer {
    port: PeerPort,
    ah: AhId,
    /// The peer knows this host's too: it has taken the offer.
    is_ready: bool,
}

impl DatagramPeer {
    /// One that has not taken this host's offer yet.
    pub(crate) fn new(port: PeerPort, ah: AhId) -> Self {
        Self { port, ah, is_ready: false }
    }

    /// Whether it is where an offer says.
    pub(crate) fn is_at(&self, port: &PeerPort) -> bool {
        self.port == *port
    }

    pub(crate) fn mtu(&self) -> PathMtu {
        self.port.mtu
    }

    pub(crate) fn dest(&self) -> UdDest {
        UdDest { ah: self.ah, qpn: self.port.qpn, qkey: self.port.qkey }
    }

    /// The number that stands in its datagrams.
    pub(crate) fn token(&self) -> u64 {
        self.port.token
    }

    /// The address handle of its port.
    pub(crate) fn handle(&self) -> AhId {
        self.ah
    }

    /// The peer has taken this host's offer.
    pub(crate) fn on_ready(&mut self) {
        self.is_ready = true;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether a datagram came from this host's queue pair.
    pub(crate) fn sent(&self, source: IpAddr, qpn: Option<Qpn>) -> bool {
        self.port.av.gid == Gid::from(source) && qpn == Some(self.port.qpn)
    }
}

/// Who asks for the path to a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathAsk {
    pub(crate) app: AppId,
    pub(crate) request: u64,
    pub(crate) lane: LaneId,
}
