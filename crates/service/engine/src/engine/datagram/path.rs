//! Where datagrams to other hosts go: what each linked peer said in its offer, and which applications ask how long a
//! datagram may be.
//!
//! Owns the address handles and the questions that wait for a link. It must never keep a peer's entry longer than the
//! link to it. It must answer each question when the lane's set-up ends, whether it succeeded or not.

use std::net::IpAddr;

use control::{DatagramOffer, Reason};
use verbs::{AhId, DatagramAttr, Endpoint, PathMtu, Provider, Qpn, Time, VerbsError};

use crate::datagram::header::HEADER_BYTES;
use crate::datagram::peer::{DatagramPeer, PathAsk, PeerPort};
use crate::engine::Engine;
use crate::event::Event;
use crate::ids::{AppId, LaneId};
use crate::numbers::count;

impl Engine {
    /// Asks how long a datagram to a host may be, and for a link to it; the answer is [`Event::DatagramPath`]. It may
    /// take as long as the daemon takes to find out that the host cannot be reached.
    pub fn datagram_path<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, request: u64, to: IpAddr) {
        self.see(now);
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
        let asker = self.apps.get_here(app).ok_or(Reason::AppFault)?;
        let (uid, may_reach) = (asker.uid(), asker.may_reach(to));
        if !is_host(to) {
            return Err(Reason::BadAddress);
        }
        if !may_reach {
            return Err(Reason::Policy);
        }
        if self.is_own(to) {
            return Ok(Some(self.local_payload_max()));
        }
        self.check_way(app, to)?;
        let lane = self.lane_to(nic, to).ok_or(Reason::LocalLimit)?;
        if let Some(peer) = self.datagram_peer(lane) {
            return Ok(Some(self.payload_max(peer.mtu())));
        }
        if !self.datagrams.has_port() || self.lanes.get(lane).is_some_and(|l| l.qp.is_up()) {
            return Err(Reason::NoDatagrams);
        }
        if !self.datagrams.add_ask(PathAsk { app, request, lane }) {
            return Err(Reason::LocalLimit);
        }
        self.want_link(lane, uid);
        Ok(None)
    }

    /// Longest payload between two sockets of this host: the same as to other hosts, so that a program need not treat
    /// them differently.
    pub(in crate::engine) fn local_payload_max(&self) -> u32 {
        self.payload_max(self.device.mtu)
    }

    /// Longest payload to a host with this path MTU.
    pub(in crate::engine) fn payload_max(&self, mtu: PathMtu) -> u32 {
        count(self.device.mtu.min(mtu).bytes().saturating_sub(HEADER_BYTES))
    }

    /// A linked host, if datagrams to it can be sent.
    pub(in crate::engine) fn datagram_peer(&self, lane: LaneId) -> Option<&DatagramPeer> {
        self.lanes.get(lane)?.on.datagrams.as_ref().filter(|peer| peer.is_ready())
    }

    fn answer_asks(&mut self, lane: LaneId, result: Result<u32, Reason>) {
        for PathAsk { app, request, .. } in self.datagrams.take_asks(lane) {
            self.events.push_back(Event::DatagramPath { app, request, result });
        }
    }

    // ---- links

    /// A peer's offer. What it said before stays in use if it is the same, so that datagrams go on while a lane is
    /// reset. Encrypted ones get new keys with each incarnation of the lane, and go on under the old ones until both
    /// ends have the new. `beside`: the lane's queue pair.
    pub(in crate::engine) fn learn_datagram_peer<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        offer: Option<&DatagramOffer>,
        (mtu, beside): (PathMtu, Qpn),
    ) -> Result<(), VerbsError> {
        let port = match offer.filter(|_| self.datagrams.has_port()) {
            Some(offer) => PeerPort { endpoint: Endpoint::new(offer.endpoint.clone())?, token: offer.token, mtu },
            None => {
                self.drop_datagram_peer(nic, id);
                return Ok(());
            }
        };
        let Some(lane) = self.lanes.get(id) else { return Ok(()) };
        let attr = DatagramAttr { encrypt: self.config.encrypt_to(lane.peer()), local: lane.qp.local() };
        let known = lane.on.datagrams.as_ref().filter(|known| known.is_at(&port));
        let is_renewed = match known.map(DatagramPeer::is_encrypted) {
            Some(false) => return Ok(()),
            known => known.is_some(),
        };
        let link = nic.accept_datagrams(&port.endpoint, beside, &attr)?;
        if is_renewed
            && let Some(link) = link.filter(|link| link.cipher.is_some())
            && let Some(known) = self.lanes.get_mut(id).and_then(|lane| lane.on.datagrams.as_mut())
        {
            let gone = known.renew(link);
            self.destroy_handles(nic, gone);
            return Ok(());
        }
        self.drop_datagram_peer(nic, id);
        let Some(link) = link else { return Ok(()) };
        self.datagrams.add_peer(port.token, id);
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on.datagrams = Some(DatagramPeer::new(port, link));
        }
        Ok(())
    }

    /// The peer has taken this host's offer: datagrams can be sent both ways.
    pub(in crate::engine) fn on_datagram_peer_ready(&mut self, id: LaneId) {
        let path = match self.lanes.get_mut(id).and_then(|lane| Some(lane.on.datagrams.as_mut()?.on_ready())) {
            Some(mtu) => Ok(self.payload_max(mtu)),
            // One of the two devices has no datagrams.
            None => Err(Reason::NoDatagrams),
        };
        self.answer_asks(id, path);
    }

    /// There is no link, or none that can be used. Everything that waits for it gets the reason.
    pub(in crate::engine) fn forget_datagram_peer<P: Provider>(&mut self, nic: &mut P, id: LaneId, reason: Reason) {
        self.drop_datagram_peer(nic, id);
        self.answer_asks(id, Err(reason));
    }

    pub(in crate::engine) fn drop_datagram_peer<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(peer) = self.lanes.get_mut(id).and_then(|lane| lane.on.datagrams.take()) else { return };
        self.datagrams.drop_peer(peer.token(), id);
        self.destroy_handles(nic, peer.handles());
    }

    fn destroy_handles<P: Provider>(&mut self, nic: &mut P, handles: impl IntoIterator<Item = AhId>) {
        for handle in handles {
            if nic.destroy_ah(handle).is_err() {
                self.counters.device_refusals += 1;
            }
        }
    }
}

/// Whether an address can be one host's.
pub(super) fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}
