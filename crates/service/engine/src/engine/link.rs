//! Making and losing lanes.
//!
//! Owns queue pairs from creation to destruction. It must never destroy one without taking its completions' receives
//! back. What becomes of the connections of a lane that is reset: `resync`.

use std::net::IpAddr;

use control::{LaneOffer, Reason};
use rand::RngExt;
use verbs::{
    AcceptAttr, Access, Capabilities, DatagramAttr, Encrypt, Endpoint, OfferAttr, PathMtu, Provider, QpInit, QpModify,
    QpType, Qpn, SrqId, VerbsError, Wire,
};

use super::Engine;
use super::mechanism::Mechanism;
use super::mechanisms::Mechanisms;
use crate::event::Event;
use crate::ids::{LaneId, RouteId};
use crate::lane::{Lane, LaneState, OwnEnd, PeerEnd};
use crate::lane_at::{LaneAt, LanePath};
use crate::limits::{
    COMPLETIONS_PER_RUN, DRAIN_POLLS, FRAME_BYTES_MIN, FRAME_SENT_BYTES_MAX, FRAME_SLOTS, LANE_ACK_TIMEOUT,
    LANE_CREDITS_MAX, LANE_CREDITS_MIN, LANE_MIN_RNR_TIMER, LANE_RETRIES, LANE_RNR_RETRIES, RING_BYTES_MIN,
};
use crate::numbers::count;
use crate::recvpool::RECV_WR;
use crate::sendq::SendQueue;
use crate::vqp::Phase;

/// How a queue pair beside or of a lane is made.
pub(super) struct NewQp {
    pub(super) qp_type: QpType,
    pub(super) srq: SrqId,
    pub(super) max_send_wr: u32,
    pub(super) access: Access,
    pub(super) mtu_max: PathMtu,
    pub(super) encrypt: Encrypt,
}

impl Engine {
    /// The lane to `peer`, made if there is none. `None`: the table is full.
    pub(super) fn lane_to<P: Provider>(&mut self, nic: &mut P, peer: IpAddr) -> Option<LaneId> {
        self.find_lane(nic, peer, true)
    }

    /// As [`Self::lane_to`], for a datagram, for which nobody waits. It does not take the place of a host whose pause
    /// is not over. Otherwise datagrams to many dead hosts would make the table forget how often each of them failed.
    pub(super) fn lane_in_passing<P: Provider>(&mut self, nic: &mut P, peer: IpAddr) -> Option<LaneId> {
        self.find_lane(nic, peer, false)
    }

    fn find_lane<P: Provider>(&mut self, nic: &mut P, peer: IpAddr, any: bool) -> Option<LaneId> {
        let peer = peer.to_canonical();
        if let Some(id) = self.lanes.to(peer) {
            return Some(id);
        }
        if self.lanes.is_full() {
            self.evict_idle_lane(nic, any);
        }
        self.insert_lane((peer, self.config.number))
    }

    /// Takes a lane in that has no queue pair yet. `None`: there is no place for it.
    pub(super) fn insert_lane(&mut self, (peer, number): (IpAddr, u32)) -> Option<LaneId> {
        let sendq = SendQueue::new(self.device.sq_depth, self.config.lane_inflight_bytes_max, FRAME_SLOTS);
        self.lanes.insert(Lane::new((peer, number), self.config.quantum_bytes, sendq))
    }

    /// Makes room for another peer: an entry on which nothing depends, or, if somebody waits for the room (`any`), the
    /// lane that has been without connections for the longest time. Otherwise a host could talk to only so many others
    /// over time, and users could hold lanes that they do not use any more.
    fn evict_idle_lane<P: Provider>(&mut self, nic: &mut P, any: bool) {
        let now = self.now;
        let idle = || self.lanes.iter().filter(|(_, l)| l.is_idle());
        let unused = || self.lanes.iter().filter(|(_, l)| l.is_unused()).min_by_key(|(_, l)| l.members.unused_since());
        let found = idle().find(|(_, l)| !l.holds_dials_back(now));
        let found = found.or_else(|| idle().next().or_else(unused).filter(|_| any));
        let Some((id, lane)) = found else { return };
        if lane.qp.exists() {
            let (peer, lane) = (lane.peer(), lane.number());
            let detail = "unused, and another host's needs its place".into();
            self.sever(nic, id, Reason::Closed);
            self.events.push_back(Event::LaneFailed { peer, lane, reason: Reason::Closed, detail });
        }
        Mechanisms::on_link_lost(self, nic, id, Reason::LocalLimit);
        self.free_lane(nic, id);
    }

    /// Forgets a lane without a queue pair, and gives back the memory that is its own.
    pub(super) fn free_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(mut lane) = self.lanes.remove(id) else { return };
        if let Some(frames) = lane.frames.memory() {
            self.dereg(nic, frames.mr);
        }
        for mr in lane.on.take_idle_memory() {
            self.dereg(nic, mr);
        }
    }

    /// Makes this end of a lane to `peer`: a queue pair in Init, receives posted. A previous one is given up, its
    /// connections are reset; those that wait since a reset of the lane go on waiting. A leased lane must have been
    /// announced.
    pub fn lane_offer<P: Provider>(&mut self, nic: &mut P, at: impl Into<LaneAt>) -> Result<LaneOffer, VerbsError> {
        self.lane_offer_over(nic, at, None)
    }

    /// As [`Self::lane_offer`], with a queue pair between these addresses; none: the device's own and the peer's name.
    pub fn lane_offer_over<P: Provider>(
        &mut self,
        nic: &mut P,
        at: impl Into<LaneAt>,
        path: Option<LanePath>,
    ) -> Result<LaneOffer, VerbsError> {
        let (at, limit) = (at.into(), self.config.lanes_max.into());
        let id = match at.leased {
            None => self.lane_to(nic, at.peer).ok_or(VerbsError::Full { what: "table of lanes", limit })?,
            Some(_) => self.lanes.at(at).ok_or(VerbsError::NoSuch("leased lane"))?,
        };
        if self.lanes.get(id).is_some_and(|l| l.qp.exists()) {
            self.sever(nic, id, Reason::PeerLost);
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.qp.set_path(path);
        }
        let attr = DatagramAttr { encrypt: self.config.encrypt_to(at.peer), local: path.map(|path| path.own) };
        let datagrams = match at.leased {
            None => self.datagrams.offer(nic, &attr)?,
            Some(_) => None,
        };
        let credits = self.recv.grant(nic)?;
        let (qpn, endpoint) = match self.make_qp(nic, id) {
            Ok(made) => made,
            Err(e) => {
                self.recv.release_lane(credits.into());
                return Err(e);
            }
        };
        self.last_incarnation = self.last_incarnation.wrapping_add(1).max(1);
        let incarnation = self.last_incarnation;
        let lane = self.lanes.get_mut(id).expect("found or made above");
        lane.on_offered(OwnEnd { incarnation, qpn, endpoint: endpoint.clone(), credits });
        let number = lane.number();
        self.lanes.bind(qpn, id);
        Ok(LaneOffer {
            lane: number,
            incarnation,
            endpoint: endpoint.into_bytes(),
            capabilities: self.capabilities_to(at.peer).bits(),
            max_msg_bytes: self.device.max_msg_bytes,
            credits,
            send_bytes_max: self.config.send_bytes_max,
            datagrams,
        })
    }

    fn make_qp<P: Provider>(&mut self, nic: &mut P, id: LaneId) -> Result<(Qpn, Endpoint), VerbsError> {
        let lane = self.lanes.get_mut(id).ok_or(VerbsError::NoSuch("lane"))?;
        lane.frames.make(nic, self.config.send_bytes_max.min(FRAME_SENT_BYTES_MAX))?;
        let new = NewQp {
            qp_type: QpType::Rc,
            srq: self.recv.srq(),
            max_send_wr: count(self.device.sq_depth),
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            mtu_max: lane.mtu.offer(self.device.mtu),
            encrypt: self.config.encrypt_to(lane.peer()),
        };
        self.offer_qp(nic, id, &new)
    }

    /// A queue pair to the host of a lane, in Init, and what the peer is told of it.
    pub(super) fn offer_qp<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        new: &NewQp,
    ) -> Result<(Qpn, Endpoint), VerbsError> {
        let qpn = nic.create_qp(&QpInit {
            pd: verbs::PdId::default(),
            qp_type: new.qp_type,
            send_cq: self.completions.cq,
            recv_cq: self.completions.cq,
            srq: Some(new.srq),
            max_send_wr: new.max_send_wr,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            sq_sig_all: false,
        })?;
        let lane = self.lanes.get(id).ok_or(VerbsError::NoSuch("lane"))?;
        let attr = OfferAttr {
            access: new.access,
            mtu_max: new.mtu_max,
            entropy: self.rng.random(),
            wire: self.config.wire_to(lane.peer()),
            peer: Some(lane.peer_address()),
            encrypt: new.encrypt,
            local: lane.qp.local(),
        };
        match nic.offer(qpn, &attr) {
            Ok(endpoint) => Ok((qpn, endpoint)),
            Err(e) => {
                let _ = nic.destroy_qp(qpn);
                Err(e)
            }
        }
    }

    /// The peer's offer: the queue pair is connected to it. Then the daemon sends LaneReady.
    pub fn lane_accept<P: Provider>(
        &mut self,
        nic: &mut P,
        at: impl Into<LaneAt>,
        offer: &LaneOffer,
    ) -> Result<(), VerbsError> {
        let id = self.lanes.at(at).ok_or(VerbsError::NoSuch("lane"))?;
        let lane = self.lanes.get(id).ok_or(VerbsError::NoSuch("lane"))?;
        let is_leased = lane.is_leased();
        let Some((qpn, own)) = lane.qp.offered() else {
            return Err(VerbsError::NoSuch("lane that waits for an offer"));
        };
        check_offer(offer, lane.number())?;
        let theirs = Capabilities::from_bits_truncate(offer.capabilities);
        let attr = AcceptAttr {
            peer: theirs,
            timeout: LANE_ACK_TIMEOUT,
            retry_cnt: LANE_RETRIES,
            rnr_retry: LANE_RNR_RETRIES,
            min_rnr_timer: LANE_MIN_RNR_TIMER,
        };
        let link = match nic.accept(qpn, own, &Endpoint::new(offer.endpoint.clone())?, &attr) {
            // It failed before it was used: a reset follows the answer.
            Err(e @ VerbsError::WrongState { .. }) => {
                self.lanes.fail(id, e.to_string());
                return Ok(());
            }
            other => other?,
        };
        if !is_leased {
            self.learn_datagram_peer(nic, id, offer.datagrams.as_ref(), (link.mtu, qpn))?;
        }
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        let peer = PeerEnd {
            incarnation: offer.incarnation,
            link,
            credits: offer.credits,
            frame_bytes_max: offer.send_bytes_max.min(self.config.send_bytes_max).min(FRAME_SENT_BYTES_MAX) as usize,
            piece_bytes_max: self.config.quantum_bytes.min(offer.max_msg_bytes).min(self.device.max_msg_bytes),
            send_bytes_max: offer.send_bytes_max.min(offer.max_msg_bytes).min(self.device.max_msg_bytes),
            // Over TCP a WRITE is as long as it is.
            splits_pieces: link.wire == Wire::Roce
                && theirs.contains(Capabilities::COUNTS_WRITES)
                && self.device.capabilities.contains(Capabilities::EVEN_WRITES),
            operation_bytes_max: self.config.quantum_bytes.min(offer.max_msg_bytes).min(self.device.max_msg_bytes),
            is_confirming: !theirs.contains(Capabilities::COUNTS_WRITES),
            capabilities: theirs,
        };
        lane.on_accepted(&peer);
        Mechanisms::on_accepted(self, id, &peer);
        Ok(())
    }

    /// The peer sent LaneReady: connections may use the lane.
    pub fn lane_ready<P: Provider>(&mut self, now: verbs::Time, nic: &mut P, at: impl Into<LaneAt>) {
        self.see(now);
        let Some(id) = self.lanes.at(at) else { return };
        let Some(lane) = self.lanes.get_mut(id) else { return };
        if lane.qp.state() != LaneState::Accepted {
            return;
        }
        if lane.holds_connections() {
            return self.fail_lane(nic, id, "the lane came up before its connections could go on".into());
        }
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let parked = lane.on_ready(self.now);
        self.lanes.queue(id);
        if !self.lanes.get(id).is_some_and(Lane::is_leased) {
            self.watch_lane_rest(id);
        }
        Mechanisms::on_lane_up(self, id);
        for connect in parked {
            self.place_connect(nic, connect);
        }
    }

    /// The control link or the peer is gone, or could not be reached: the queue pair is destroyed, connections are
    /// reset with `reason`, parked connects fail with it.
    pub fn lane_lost<P: Provider>(&mut self, now: verbs::Time, nic: &mut P, at: impl Into<LaneAt>, reason: Reason) {
        self.see(now);
        let at = at.into();
        let Some(id) = self.lanes.at(at) else { return };
        if at.leased.is_some() {
            return self.lose_leased_lane(nic, id, reason);
        }
        // The peer's device has heard that it arrived, so the peer may have forgotten it.
        self.handle_arrived(nic, id);
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.note_loss(self.now, &mut self.rng);
        }
        if self.waits_after(reason) && self.lanes.get(id).is_some_and(|lane| lane.members.count() > 0) {
            self.part_lane(nic, id, reason);
        } else if self.lanes.get(id).is_some_and(Lane::can_answer) {
            self.sever(nic, id, reason);
        } else if !is_passing(reason) {
            self.give_waiting_up(id, reason);
        }
        Mechanisms::on_link_lost(self, nic, id, reason);
        self.drop_parked(id, reason);
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.stall = None;
            lane.mtu.forget_way();
        }
        if self.lanes.get_mut(id).is_some_and(|lane| lane.members.count() > 0) {
            // The next try is at the next look.
            self.seek_peer_later(id);
        }
    }

    fn drop_parked(&mut self, id: LaneId, reason: Reason) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        for connect in lane.dialing.give_up() {
            match reason {
                // The peer took the lane for unused: it has not heard of the connect.
                Reason::Closed => self.displace_connect(connect, Reason::PeerLimit),
                _ => self.finish_connect(connect, Err(reason)),
            }
        }
    }

    /// The lane's connections end, by what the peer did or because a new queue pair would not help.
    pub(super) fn fail_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId, detail: String) {
        let Some(lane) = self.lanes.get(id).filter(|l| l.can_answer()) else { return };
        let (peer, lane) = (lane.peer(), lane.number());
        self.fail_lane_quietly(nic, id);
        self.events.push_back(Event::LaneFailed { peer, lane, reason: Reason::LaneFailed, detail });
    }

    /// As [`Self::fail_lane`], where the daemon learns it from the answer.
    pub(super) fn fail_lane_quietly<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.note_loss(self.now, &mut self.rng);
        self.counters.lane_failures += 1;
        self.sever(nic, id, Reason::LaneFailed);
        if self.lanes.get(id).is_some_and(Lane::is_leased) {
            return self.free_lane(nic, id);
        }
        Mechanisms::on_link_lost(self, nic, id, Reason::LaneFailed);
        self.drop_parked(id, Reason::LaneFailed);
    }

    /// Severs the lane: destroys the queue pair, if there is one, and then ends each connection without asking the
    /// peer.
    pub(super) fn sever<P: Provider>(&mut self, nic: &mut P, id: LaneId, reason: Reason) {
        self.destroy_lane_qp(nic, id);
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let routes = self.vqps.of(&lane.members);
        lane.clear();
        Mechanisms::on_severed(self, id, reason);
        // Before anything is freed: rings that become free must not go to an open of this lane.
        self.drop_parked_opens(id);
        for route in routes {
            self.sever_vqp(route, reason);
        }
    }

    /// Afterwards no WRITE of the peer can land on the old incarnation, and no WRITE of this end still reads memory.
    pub(super) fn destroy_lane_qp<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some((lane, qpn)) = self.lanes.get(id).and_then(|lane| Some((lane, lane.qp.qpn()?))) else { return };
        let granted = lane.credits.grant().granted();
        Mechanisms::before_qp_goes(self, nic, id);
        self.destroy_qp(nic, qpn);
        self.lanes.unbind(qpn);
        self.recv.release_lane(granted);
        self.forget_completions(qpn);
        self.repost(nic);
    }

    /// Destroys a queue pair. Its completions wait afterwards, and its receives among them.
    pub(super) fn destroy_qp<P: Provider>(&mut self, nic: &mut P, qpn: Qpn) {
        // In error the queue pair gives back the receives that it holds.
        let _ = nic.modify_qp(qpn, &QpModify::Err);
        for _ in 0..DRAIN_POLLS {
            match nic.poll_cq(self.completions.cq, &mut self.completions.waiting, COMPLETIONS_PER_RUN) {
                Ok(n) if n > 0 => {}
                _ => break,
            }
        }
        if nic.destroy_qp(qpn).is_err() {
            self.counters.device_refusals += 1;
        }
    }

    /// Completions of a destroyed queue pair must not be taken for those of a later one with the same number. Their
    /// receives are posted again before they can be granted again.
    fn forget_completions(&mut self, qpn: Qpn) {
        let recv = &mut self.recv;
        self.completions.waiting.retain(|c| {
            if c.qpn != qpn {
                return true;
            }
            if c.wr_id & RECV_WR != 0
                && let Some(entry) = recv.entry_of(c.wr_id)
            {
                recv.give_back(entry, None);
            }
            false
        });
    }

    /// Severs one connection of a lane that is gone. The application is notified, unless everything that it could learn
    /// has arrived.
    pub(super) fn sever_vqp(&mut self, route: RouteId, reason: Reason) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        let complete = vqp.is_complete();
        let was_reset = vqp.is_reset();
        vqp.sever();
        if let Phase::Opening(connect) = vqp.phase() {
            vqp.release();
            match connect {
                // The peer took the lane for unused: it has not seen the Open.
                Some(connect) if reason == Reason::Closed => self.displace_connect(connect, Reason::PeerLimit),
                Some(connect) => self.finish_connect(connect, Err(reason)),
                None => {}
            }
        } else if !complete && !was_reset {
            vqp.slot.publish_reset(reason);
            let at = vqp.at();
            self.notify(at);
        }
        self.try_release(route);
    }
}

/// Whether a peer that cannot be had for this reason may be had a moment later.
fn is_passing(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::PeerLost
            | Reason::ShuttingDown
            | Reason::PeerUnreachable
            | Reason::PeerBusy
            | Reason::TimedOut
            | Reason::Closed
            | Reason::PeerLimit
    )
}

/// Refuses an offer that this end cannot work with. What its endpoints say is judged by the device.
fn check_offer(offer: &LaneOffer, lane: u32) -> Result<(), VerbsError> {
    let range = |what, value: u32, min: u32, max: u32| {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(VerbsError::OutOfRange { what, value: value.into(), min: min.into(), max: max.into() })
        }
    };
    range("number of the offered lane", offer.lane, lane, lane)?;
    range("credits of the offer", offer.credits, LANE_CREDITS_MIN, LANE_CREDITS_MAX)?;
    range("longest SEND of the offer", offer.send_bytes_max, FRAME_BYTES_MIN, u32::MAX)?;
    range("longest message of the offer", offer.max_msg_bytes, RING_BYTES_MIN, u32::MAX)
}
