//! UC queue pairs beside lanes: made for the first connection of messages, and gone with the lane's own queue pair.
//!
//! Owns when there is one, when the peer gets places for its WRITEs there, and what becomes of connections that need one
//! when there is none. Both ends are told over
//! the lane itself, so a peer that does not know of them is never asked. It must never have one that is in the clear
//! beside a lane that is encrypted.

mod transfer;

use std::net::IpAddr;

use control::Reason;
use verbs::{AcceptAttr, Access, Capabilities, Completion, Encrypt, Endpoint, Provider, QpType, Qpn, VerbsError, Wire};

use super::Engine;
use super::link::NewQp;
use super::mechanism::{Counter, Mechanism, Telling};
use crate::frame::{FrameWriter, UnreliableRecord, WritePlaces};
use crate::ids::{LaneId, RouteId};
use crate::lane::Lane;
use crate::limits::LANE_MIN_RNR_TIMER;
use crate::recvpool::RECV_WR;
use crate::tenants::{TenantPlace, Waits};
use crate::unreliable::Unreliable;
use crate::unreliable::memory::{PIECE_WR, PieceMemory};
use crate::unreliable::places::OwnPlaces;
use crate::violation::Violation;
use crate::vqp::{Phase, Vqp};

impl Mechanism for Unreliable {
    type Record = UnreliableRecord;

    fn on_record<P: Provider>(
        engine: &mut Engine,
        nic: &mut P,
        lane: LaneId,
        record: UnreliableRecord,
    ) -> Result<(), Violation> {
        engine.on_unreliable_record(nic, lane, record)
    }

    #[inline]
    fn on_completion(engine: &mut Engine, _lane: Option<LaneId>, completion: &Completion) -> bool {
        let is_own = completion.wr_id & PIECE_WR != 0;
        if is_own {
            engine.on_piece_completion(completion);
        }
        is_own
    }

    fn repost<P: Provider>(engine: &mut Engine, nic: &mut P) {
        if let Some(memory) = &mut engine.unreliable.memory {
            let _ = memory.repost(nic);
        }
    }

    fn on_qp_failed(engine: &mut Engine, qpn: Qpn) -> bool {
        let lane = engine.unreliable.lane_of(qpn);
        if let Some(id) = lane {
            engine.lanes.fail(id, format!("the device put the UC QP {qpn} in error"));
        }
        lane.is_some()
    }

    fn bring_back(engine: &mut Engine, tenant: TenantPlace, waits: Waits) {
        if waits == Waits::Messages {
            engine.unreliable.drr.bring_back(tenant);
        }
    }

    fn run_behind_lanes<P: Provider>(engine: &mut Engine, nic: &mut P) -> bool {
        engine.run_messages(nic)
    }

    #[inline]
    fn write(telling: &mut Telling<'_>, frame: &mut FrameWriter<'_>) -> bool {
        telling.lane.on.unreliable.write(frame)
    }

    fn has_work(engine: &Engine) -> bool {
        engine.unreliable.has_work()
    }

    fn on_lane_up(engine: &mut Engine, lane: LaneId) {
        engine.resume_messages(lane);
    }

    fn before_qp_goes<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId) {
        engine.destroy_unreliable_qp(nic, lane);
    }

    fn memory(engine: &Engine) -> (u32, u64) {
        let pieces = engine.unreliable.memory.iter().map(|memory| memory.registered());
        let places = engine.lanes.iter().filter_map(|(_, lane)| lane.on.unreliable.own_places());
        pieces.chain(places.map(|own| (1, own.bytes()))).fold((0, 0), |sum, x| (sum.0 + x.0, sum.1 + x.1))
    }

    fn counters(engine: &Engine, out: &mut Vec<Counter>) {
        out.extend(engine.unreliable.counters());
    }
}

impl Engine {
    /// What this host's device can do on lanes to a host: RDMA over TCP has no UC.
    pub(super) fn capabilities_to(&self, peer: IpAddr) -> Capabilities {
        let all = self.device.capabilities;
        let of_roce = Capabilities::UNRELIABLE | Capabilities::UNRELIABLE_WRITES;
        if self.config.wire_to(peer).allows(Wire::Roce) { all } else { all - of_roce }
    }

    /// What both ends of a lane can do.
    fn capabilities_of_both(&self, lane: &Lane) -> Capabilities {
        self.capabilities_to(lane.peer()) & lane.qp.peer_capabilities()
    }

    fn has_unreliable_writes(&self, id: LaneId) -> bool {
        let lane = self.lanes.get(id);
        lane.is_some_and(|lane| self.capabilities_of_both(lane).contains(Capabilities::UNRELIABLE_WRITES))
    }

    /// A connection of messages is to use the lane, which is up or will be. [`Reason::NoUnreliable`]: it cannot.
    pub(super) fn start_unreliable<P: Provider>(&mut self, nic: &mut P, id: LaneId) -> Result<(), Reason> {
        let Some(lane) = self.lanes.get(id) else { return Err(Reason::PeerLost) };
        if !self.capabilities_of_both(lane).contains(Capabilities::UNRELIABLE) || lane.on.unreliable.is_refused() {
            return Err(Reason::NoUnreliable);
        }
        if lane.on.unreliable.qpn().is_some() || !lane.qp.can_receive() {
            return Ok(());
        }
        let made = self.make_unreliable_qp(nic, id);
        let Some(lane) = self.lanes.get_mut(id) else { return Err(Reason::PeerLost) };
        match made {
            Ok((qpn, own)) => {
                let number = self.unreliable.bind(qpn, id);
                lane.on.unreliable.on_made(qpn, own, number);
                self.lanes.queue(id);
                Ok(())
            }
            Err(_) => {
                self.counters.device_refusals += 1;
                lane.on.unreliable.refuse(Reason::NoUnreliable);
                Err(Reason::NoUnreliable)
            }
        }
    }

    fn make_unreliable_qp<P: Provider>(&mut self, nic: &mut P, id: LaneId) -> Result<(Qpn, Endpoint), VerbsError> {
        if self.unreliable.memory.is_none() {
            self.unreliable.memory = Some(PieceMemory::new(nic)?);
        }
        let memory = self.unreliable.memory.as_ref().ok_or(VerbsError::NoSuch("memory of pieces"))?;
        let lane = self.lanes.get(id).ok_or(VerbsError::NoSuch("lane"))?;
        let new = NewQp {
            qp_type: QpType::Uc,
            srq: memory.srq(),
            max_send_wr: memory.slots(),
            access: if self.has_unreliable_writes(id) {
                Access::LOCAL_WRITE | Access::REMOTE_WRITE
            } else {
                Access::LOCAL_WRITE
            },
            mtu_max: lane.mtu.current(),
            // Its keys travel over the lane.
            encrypt: if is_encrypted(lane) { Encrypt::Required } else { Encrypt::Off },
        };
        self.offer_qp(nic, id, &new)
    }

    /// What the peer says of its end.
    fn on_unreliable_record<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        record: UnreliableRecord,
    ) -> Result<(), Violation> {
        match record {
            UnreliableRecord::Offer { piece_bytes, endpoint } => {
                self.on_unreliable_offer(nic, id, piece_bytes, endpoint)
            }
            UnreliableRecord::Answer { reason } => self.on_unreliable_answer(id, reason),
            UnreliableRecord::PlacesAsk => self.on_places_ask(nic, id),
            UnreliableRecord::Places(places) => self.on_places(id, places),
            UnreliableRecord::PlacesGrant { end } => self.on_places_grant(id, end),
        }
    }

    /// The peer made its end.
    fn on_unreliable_offer<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        piece_bytes: u32,
        endpoint: Vec<u8>,
    ) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        lane.on.unreliable.on_offer(piece_bytes)?;
        let taken = self.start_unreliable(nic, id).and_then(|()| self.accept_unreliable(nic, id, endpoint));
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        match taken {
            Ok(()) => lane.on.unreliable.on_accepted(),
            Err(reason) => {
                lane.on.unreliable.refuse(reason);
                self.end_messages(id);
            }
        }
        self.lanes.queue(id);
        self.resume_messages(id);
        Ok(())
    }

    fn accept_unreliable<P: Provider>(&mut self, nic: &mut P, id: LaneId, peer: Vec<u8>) -> Result<(), Reason> {
        let none = Reason::NoUnreliable;
        let lane = self.lanes.get(id).ok_or(none)?;
        let (qpn, own) = lane.on.unreliable.offered().ok_or(none)?;
        let attr = AcceptAttr {
            peer: lane.qp.peer_capabilities(),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: LANE_MIN_RNR_TIMER,
        };
        let link = Endpoint::new(peer).and_then(|peer| nic.accept(qpn, own, &peer, &attr)).map_err(|_| none)?;
        if is_encrypted(lane) && link.cipher.is_none() { Err(none) } else { Ok(()) }
    }

    /// The peer took this end, or there will be none.
    fn on_unreliable_answer(&mut self, id: LaneId, reason: u32) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        if lane.on.unreliable.on_answer(reason)? {
            self.resume_messages(id);
        } else {
            self.end_messages(id);
        }
        Ok(())
    }

    /// Whether pieces may leave by WRITE, or it is known that the peer has no place for any: it is asked if it was not.
    pub(super) fn is_ready_for_writes(&mut self, id: LaneId) -> bool {
        if !self.has_unreliable_writes(id) {
            return true;
        }
        let is_answered = self.lanes.get_mut(id).is_some_and(|lane| lane.on.unreliable.want_places());
        if !is_answered {
            self.lanes.queue(id);
        }
        is_answered
    }

    /// The peer wants to WRITE.
    fn on_places_ask<P: Provider>(&mut self, nic: &mut P, id: LaneId) -> Result<(), Violation> {
        let is_offered = self.has_unreliable_writes(id);
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        if !is_offered {
            return Err(Violation::Unreliable("places asked for that are not offered"));
        }
        lane.on.unreliable.on_places_ask()?;
        let own = OwnPlaces::new(nic);
        self.counters.device_refusals += u64::from(own.is_err());
        lane.on.unreliable.give_places(own.ok());
        self.lanes.queue(id);
        Ok(())
    }

    /// Where this host may, or that it may not.
    fn on_places(&mut self, id: LaneId, places: WritePlaces) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        lane.on.unreliable.on_places(places)?;
        self.resume_messages(id);
        Ok(())
    }

    fn on_places_grant(&mut self, id: LaneId, end: u64) -> Result<(), Violation> {
        self.lanes.get_mut(id).map_or(Ok(()), |lane| lane.on.unreliable.on_grant(end))
    }

    fn message_routes(&self, id: LaneId) -> Vec<RouteId> {
        let Some(lane) = self.lanes.get(id) else { return Vec::new() };
        let routes = self.vqps.of(&lane.members).into_iter();
        routes.filter(|route| self.vqps.get(*route).is_some_and(Vqp::has_messages)).collect()
    }

    /// Connections of messages may go on.
    fn resume_messages(&mut self, id: LaneId) {
        for route in self.message_routes(id) {
            self.update(route);
        }
    }

    /// There is no UC beside this lane: its connections of messages end. Connects are answered by the peer.
    fn end_messages(&mut self, id: LaneId) {
        for route in self.message_routes(id) {
            self.end_messages_of(route);
        }
    }

    fn end_messages_of(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if matches!(vqp.phase(), Phase::Opening(_)) || vqp.is_reset() {
            return;
        }
        vqp.abort(Reason::NoUnreliable);
        vqp.slot.publish_reset(Reason::NoUnreliable);
        let at = vqp.at();
        self.notify(at);
        self.update(route);
    }

    /// The lane loses its queue pair, and this one with it: what is on its way is lost.
    fn destroy_unreliable_qp<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(qpn) = self.lanes.get(id).and_then(|lane| lane.on.unreliable.qpn()) else { return };
        self.destroy_qp(nic, qpn);
        self.unreliable.unbind(qpn);
        if let Some(own) = self.lanes.get_mut(id).and_then(|lane| lane.on.unreliable.take_own_places()) {
            self.dereg(nic, own.mr());
        }
        let Some(memory) = &mut self.unreliable.memory else { return };
        let of_it = |c: &Completion| c.qpn == qpn && c.wr_id & RECV_WR != 0;
        for c in self.completions.waiting.iter().filter(|c| of_it(c)) {
            if let Some(entry) = memory.receives.entry_of(c.wr_id) {
                memory.receives.give_back(entry);
            }
        }
        self.completions.waiting.retain(|c| c.qpn != qpn);
        let _ = memory.repost(nic);
    }
}

fn is_encrypted(lane: &Lane) -> bool {
    lane.qp.link().is_some_and(|link| link.cipher.is_some())
}
