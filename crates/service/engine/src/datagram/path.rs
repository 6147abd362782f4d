//! Where datagrams to other hosts go: what each linked peer told in its offer, and who asks how long a datagram may be.
//!
//! Owns the address handles and the questions that wait for a link. It must never keep a peer's entry longer than the link
//! to it, nor leave a question unanswered when the lane's set-up ends, well or not.

use std::net::IpAddr;

use control::{LaneOffer, Reason};
use verbs::{AddressVector, AhId, Gid, PathMtu, Provider, Qkey, Qpn, Time, UdDest, VerbsError};

use crate::AppId;
use crate::engine::Engine;
use crate::event::Event;
use crate::lane::LaneId;
use crate::limits::PATH_ASKS_PER_APP_MAX;

/// A linked host's UD queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramPeer {
    av: AddressVector,
    qpn: Qpn,
    qkey: Qkey,
    token: u64,
    pub(crate) mtu: PathMtu,
    ah: AhId,
    /// The peer knows this host's too: it has taken the offer.
    is_ready: bool,
}

impl DatagramPeer {
    pub(crate) fn dest(&self) -> UdDest {
        UdDest { ah: self.ah, qpn: self.qpn, qkey: self.qkey }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether a datagram came from this host's queue pair.
    pub(crate) fn sent(&self, source: IpAddr, qpn: Option<Qpn>) -> bool {
        self.av.gid == Gid::from(source) && qpn == Some(self.qpn)
    }
}

/// Who asks for the path to a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathAsk {
    app: AppId,
    request: u64,
    lane: LaneId,
}

impl PathAsk {
    pub(crate) fn is_of(&self, app: AppId) -> bool {
        self.app == app
    }
}

impl Engine {
    /// Asks how long a datagram to a host may be, and for a link to it; the answer is [`Event::DatagramPath`]. It may take as
    /// long as the daemon takes to find out that the host cannot be reached.
    pub fn datagram_path<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, request: u64, to: IpAddr) {
        self.now = now;
        let to = to.to_canonical();
        let result = match self.find_path(nic, app, request, to) {
            Ok(None) => return,
            Ok(Some(payload_max)) => Ok(payload_max),
            Err(reason) => Err(reason),
        };
        self.events.push_back(Event::DatagramPath { app, request, result });
    }

    /// `None`: the answer comes later.
    fn find_path<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        request: u64,
        to: IpAddr,
    ) -> Result<Option<u32>, Reason> {
        let uid = self.apps.get(app).filter(|a| !a.leaving).ok_or(Reason::AppFault)?.uid;
        if !is_host(to) {
            return Err(Reason::BadAddress);
        }
        if self.is_own(to) {
            return Ok(Some(self.local_payload_max()));
        }
        self.check_way(uid, to)?;
        let lane = self.lane_to(nic, to).ok_or(Reason::LocalLimit)?;
        if let Some(peer) = self.datagram_peer(lane) {
            return Ok(Some(self.payload_max(&peer)));
        }
        if self.datagrams.asks.iter().filter(|a| a.is_of(app)).count() >= PATH_ASKS_PER_APP_MAX {
            return Err(Reason::LocalLimit);
        }
        self.datagrams.asks.push(PathAsk { app, request, lane });
        self.want_link(lane, uid);
        Ok(None)
    }

    /// Longest payload between two sockets of this host: as long as to others, so that a program need not tell them apart.
    pub(crate) fn local_payload_max(&self) -> u32 {
        self.datagrams.port.payload_max(self.device.mtu.bytes() as u32)
    }

    pub(crate) fn payload_max(&self, peer: &DatagramPeer) -> u32 {
        self.datagrams.port.payload_max(peer.mtu.bytes() as u32)
    }

    /// A linked host, if datagrams to it can be sent.
    pub(crate) fn datagram_peer(&self, lane: LaneId) -> Option<DatagramPeer> {
        self.lanes.get(lane)?.datagram.filter(DatagramPeer::is_ready)
    }

    fn answer_asks(&mut self, lane: LaneId, result: Result<u32, Reason>) {
        let (answered, waiting) = std::mem::take(&mut self.datagrams.asks).into_iter().partition(|a| a.lane == lane);
        self.datagrams.asks = waiting;
        for PathAsk { app, request, .. } in answered {
            self.events.push_back(Event::DatagramPath { app, request, result });
        }
    }

    // ---- links

    /// A peer's offer. What it said before stays in use if it is the same, so that datagrams go on while a lane is reset.
    pub(crate) fn learn_datagram_peer<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        offer: &LaneOffer,
        mtu: PathMtu,
    ) -> Result<(), VerbsError> {
        let av = AddressVector { udp_port: offer.udp_port, ..AddressVector::new(Gid::from(offer.gid)) };
        let (qpn, qkey, token) = (Qpn(offer.ud_qpn), Qkey(offer.ud_qkey), offer.ud_token);
        let known = self.lanes.get(id).and_then(|l| l.datagram);
        if known.is_some_and(|k| k == DatagramPeer { av, qpn, qkey, token, mtu, ah: k.ah, is_ready: k.is_ready }) {
            return Ok(());
        }
        self.drop_datagram_peer(nic, id);
        let ah = nic.create_ah(&av)?;
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.datagram = Some(DatagramPeer { av, qpn, qkey, token, mtu, ah, is_ready: false });
        }
        // Who came first keeps the number; by chance no two daemons choose the same.
        self.datagrams.peers.entry(token).or_insert(id);
        Ok(())
    }

    /// The peer has taken this host's offer: datagrams can be sent both ways.
    pub(crate) fn on_datagram_peer_ready(&mut self, id: LaneId) {
        let Some(peer) = self.lanes.get_mut(id).and_then(|l| l.datagram.as_mut()) else { return };
        peer.is_ready = true;
        let peer = *peer;
        self.answer_asks(id, Ok(self.payload_max(&peer)));
    }

    /// There is no link, or none that can be used: what waits for it hears why.
    pub(crate) fn forget_datagram_peer<P: Provider>(&mut self, nic: &mut P, id: LaneId, reason: Reason) {
        self.drop_datagram_peer(nic, id);
        self.answer_asks(id, Err(reason));
    }

    pub(crate) fn drop_datagram_peer<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(peer) = self.lanes.get_mut(id).and_then(|l| l.datagram.take()) else { return };
        if self.datagrams.peers.get(&peer.token) == Some(&id) {
            self.datagrams.peers.remove(&peer.token);
        }
        if nic.destroy_ah(peer.ah).is_err() {
            self.counters.device_refusals += 1;
        }
    }
}

/// Whether an address can be one host's.
pub(crate) fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}
