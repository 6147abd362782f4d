//! What a linked peer said about its datagrams in its offer, and which applications ask how long a datagram to a host
//! may be.

use std::net::IpAddr;

use verbs::{AhId, DatagramLink, Endpoint, PathMtu, Qpn, UdDest};

use crate::ids::{AppId, LaneId};
use crate::lane_part::LanePart;

/// What a host's offer says of its datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerPort {
    /// For the device.
    pub(crate) endpoint: Endpoint,
    /// The number that stands in its datagrams.
    pub(crate) token: u64,
    pub(crate) mtu: PathMtu,
}

/// The datagram port of a linked host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatagramPeer {
    port: PeerPort,
    link: DatagramLink,
    /// Of encrypted datagrams, with other keys: the next link, until the peer has taken this host's offer, and
    /// afterwards the one before, under whose keys the peer's datagrams may still be on their way.
    other: Option<DatagramLink>,
    is_other_next: bool,
    /// The peer knows this host's too: it has taken the offer.
    is_ready: bool,
}

impl DatagramPeer {
    /// One that has not taken this host's offer yet.
    pub(crate) fn new(port: PeerPort, link: DatagramLink) -> Self {
        Self { port, link, other: None, is_other_next: false, is_ready: false }
    }

    /// Whether each incarnation of the lane has keys of its own for them.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.link.cipher.is_some()
    }

    /// The lane's next incarnation has other keys. Gives the address handle that is of no use any more.
    pub(crate) fn renew(&mut self, link: DatagramLink) -> Option<AhId> {
        self.is_other_next = true;
        self.other.replace(link).map(|gone| gone.dest.ah)
    }

    /// Whether it is where an offer says.
    pub(crate) fn is_at(&self, port: &PeerPort) -> bool {
        self.port == *port
    }

    pub(crate) fn mtu(&self) -> PathMtu {
        self.port.mtu
    }

    pub(crate) fn dest(&self) -> UdDest {
        self.link.dest
    }

    /// The number that stands in its datagrams.
    pub(crate) fn token(&self) -> u64 {
        self.port.token
    }

    /// The address handles of its port.
    pub(crate) fn handles(&self) -> impl Iterator<Item = AhId> {
        [Some(self.link), self.other].into_iter().flatten().map(|link| link.dest.ah)
    }

    /// The peer has taken this host's offer. The path MTU of datagrams to it.
    pub(crate) fn on_ready(&mut self) -> PathMtu {
        self.is_ready = true;
        if std::mem::take(&mut self.is_other_next)
            && let Some(next) = self.other.take()
        {
            self.other = Some(std::mem::replace(&mut self.link, next));
        }
        self.mtu()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether a datagram came from this host's queue pair.
    pub(crate) fn sent(&self, source: IpAddr, qpn: Option<Qpn>) -> bool {
        self.link.address == source && qpn == Some(self.link.dest.qpn)
    }
}

/// It stays as long as there is a link to the host, whatever becomes of the queue pair.
impl LanePart for Option<DatagramPeer> {}

/// Who asks for the path to a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathAsk {
    pub(crate) app: AppId,
    pub(crate) request: u64,
    pub(crate) lane: LaneId,
}
