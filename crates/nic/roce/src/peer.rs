//! The other end of a connected QP, and which packets may be its.

use std::net::{IpAddr, SocketAddr};

use verbs::{DeviceAttr, Qpn, RtrAttr, VerbsError};

use crate::path::{Inbound, Source};
use crate::wire::PseudoHeader;

/// The other end of a connected QP.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) qpn: Qpn,
    pub(crate) address: SocketAddr,
    pub(crate) ip: IpAddr,
    /// Whence packets to it leave, and where its packets must arrive.
    pub(crate) source: Source,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) mtu: usize,
    /// Masked headers of packets to it.
    pub(crate) route: PseudoHeader,
    /// The only source port of its packets, if it has one.
    source_port: Option<u16>,
    /// A packet came from another port.
    has_strange_port: bool,
    /// Whence its last packet came.
    inbound: Inbound,
}

impl Peer {
    /// As the attributes say, for packets of `source`. Refused if it is of the other IP version.
    pub(crate) fn new(attr: &RtrAttr, source: Source, device: &DeviceAttr) -> Result<Self, VerbsError> {
        let other_version = || VerbsError::Unsupported {
            device: device.name.clone(),
            what: "a peer of the other IP version: give the port an address of the peer's version",
        };
        Self::of(attr, source).ok_or_else(other_version)
    }

    fn of(attr: &RtrAttr, source: Source) -> Option<Self> {
        let ip = attr.av.gid.ip();
        let address = SocketAddr::new(ip, attr.av.udp_port);
        Some(Self {
            qpn: attr.dest_qpn,
            address,
            ip,
            source,
            traffic_class: attr.av.traffic_class,
            hop_limit: attr.av.hop_limit,
            mtu: attr.mtu.bytes(),
            route: PseudoHeader::new(source.address, address)?,
            source_port: attr.source_port,
            has_strange_port: false,
            inbound: Inbound::new(address, source)?,
        })
    }

    /// What is known of packets from `from` to `at`, if they may come from there and thither. `is_connected`: the QP's
    /// state takes packets.
    pub(crate) fn inbound_from(
        &mut self,
        from: SocketAddr,
        at: Source,
        is_connected: bool,
    ) -> Result<&mut Inbound, NotForUs> {
        if self.source.index != at.index {
            return Err(NotForUs::Destination);
        }
        if self.ip != from.ip().to_canonical() {
            return Err(NotForUs::Source);
        }
        if self.source_port.is_some_and(|port| port != from.port()) {
            let is_first = !std::mem::replace(&mut self.has_strange_port, true);
            return Err(NotForUs::Port { is_first });
        }
        if !is_connected {
            return Err(NotForUs::State);
        }
        Ok(self.inbound_of(from.port()))
    }

    /// What is known of packets that come from `port` of the peer, which hardware varies and a NIC of ours does not.
    fn inbound_of(&mut self, port: u16) -> &mut Inbound {
        if self.inbound.source.port() != port
            && let Some(inbound) = Inbound::new(SocketAddr::new(self.ip, port), self.source)
        {
            self.inbound = Inbound { ids: self.inbound.ids, ..inbound };
        }
        &mut self.inbound
    }
}

/// Why a packet is not for a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotForUs {
    /// To another address of this host than that of the QP.
    Destination,
    /// From another address than the peer's.
    Source,
    /// From the peer's address, but not from the port from which it sends.
    Port {
        /// The first such packet since the QP was connected.
        is_first: bool,
    },
    /// The QP is not connected.
    State,
}
