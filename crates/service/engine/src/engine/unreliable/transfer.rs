//! Messages on UC on their way: out of transmit rings by turns, and from the device into receive rings.
//!
//! Owns the order of turns. It must never wait for a peer: what the device does not take now stays in its ring until a
//! completion makes room, and what does not arrive is counted. Its work in one round is bounded.

use control::Reason;
use shm::waiting;
use verbs::{Completion, Provider, SendOp, Status, WcOpcode};

use crate::choice::Verb;
use crate::engine::Engine;
use crate::ids::{LaneId, RouteId};
use crate::lane_part::LanePart;
use crate::limits::PIECES_PER_RUN;
use crate::numbers::count;
use crate::recvpool::RECV_WR;
use crate::tenants::Waits;
use crate::unreliable::end::UnreliableEnd;
use crate::unreliable::losses::Loss;
use crate::unreliable::piece::{PIECE_HEADER_BYTES, Piece};
use crate::unreliable::places::Landed;
use crate::vqp::messages::{Arrival, Leave, MessageFault, Way};

/// What a turn of a connection ended with.
enum MessageTurn {
    /// It has nothing more to send.
    Drained,
    /// It used its quantum.
    Spent,
    /// The device takes no more.
    Blocked,
    /// Its lane takes nothing now; it is looked at again when it does.
    Waits,
}

impl Engine {
    /// Sends what connections of messages have, as far as the bounds of a round and of the device allow. Says whether
    /// anything was done.
    pub(in crate::engine) fn run_messages<P: Provider>(&mut self, nic: &mut P) -> bool {
        let mut worked = false;
        let mut left = PIECES_PER_RUN;
        while left > 0
            && let Some(route) = self.unreliable.drr.front()
        {
            if let Some(tenant) = self.unreliable.drr.tenant()
                && !self.tenants.may_send(tenant, self.now, Waits::Messages)
            {
                self.unreliable.drr.set_aside();
                continue;
            }
            let before = left;
            let turn = self.message_turn(nic, route, &mut left);
            worked |= left < before;
            match turn {
                Ok(MessageTurn::Blocked) => break,
                Ok(MessageTurn::Spent) => {
                    let deficit = self.vqps.get_mut(route).and_then(|v| v.message_deficit().copied()).unwrap_or(0);
                    self.unreliable.drr.rotate(deficit);
                }
                Ok(MessageTurn::Waits) => self.leave_message_turn(route),
                Ok(MessageTurn::Drained) => {
                    self.leave_message_turn(route);
                    // Its end may follow.
                    self.update(route);
                }
                Err(fault) => {
                    self.leave_message_turn(route);
                    self.on_message_fault(route, &fault);
                    worked = true;
                }
            }
        }
        worked
    }

    fn leave_message_turn(&mut self, route: RouteId) {
        self.unreliable.drr.leave();
        if let Some(vqp) = self.vqps.get_mut(route) {
            vqp.leave_messages();
        }
    }

    /// An application that has left loses what it had not sent.
    fn on_message_fault(&mut self, route: RouteId, fault: &MessageFault) {
        let Some(app) = self.vqps.get(route).map(|v| v.app()) else { return };
        if self.apps.get_here(app).is_some() {
            return self.on_app_fault(app, fault);
        }
        if let Some(vqp) = self.vqps.get_mut(route) {
            vqp.abort(Reason::PeerAppDied);
        }
        self.update(route);
    }

    /// Sends pieces of one connection until its turn ends, and shows its application the room.
    fn message_turn<P: Provider>(
        &mut self,
        nic: &mut P,
        route: RouteId,
        left: &mut usize,
    ) -> Result<MessageTurn, MessageFault> {
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(MessageTurn::Drained) };
        let Some(id) = vqp.place.lane() else { return Ok(MessageTurn::Drained) };
        let Some(deficit) = vqp.message_deficit() else { return Ok(MessageTurn::Drained) };
        self.unreliable.drr.begin_turn(deficit, &self.tenants);
        if !self.is_ready_for_messages(nic, id, route) {
            return Ok(MessageTurn::Waits);
        }
        let mut has_room = false;
        let turn = self.message_pieces(nic, (id, route), left, &mut has_room);
        if has_room && let Some(vqp) = self.vqps.get(route) {
            let awaited = vqp.has_half_room_for_messages() && vqp.slot.is_awaited(waiting::WRITABLE);
            self.apps.mark(vqp.at(), awaited);
        }
        turn
    }

    /// Whether pieces may leave by a lane. It is made ready if it is not.
    fn is_ready_for_messages<P: Provider>(&mut self, nic: &mut P, id: LaneId, route: RouteId) -> bool {
        let Some(lane) = self.lanes.get(id) else { return false };
        if lane.qp.is_up() && lane.on.unreliable.is_ready() {
            return !self.asks_for_writes(route) || self.is_ready_for_writes(id);
        }
        if lane.qp.is_up() && self.start_unreliable(nic, id).is_err() {
            self.end_messages_of(route);
        }
        self.wake_lane(id);
        false
    }

    fn asks_for_writes(&self, route: RouteId) -> bool {
        self.vqps.get(route).is_some_and(|vqp| vqp.asked_verb() == Some(Verb::Write))
    }

    fn message_pieces<P: Provider>(
        &mut self,
        nic: &mut P,
        (id, route): (LaneId, RouteId),
        left: &mut usize,
        has_room: &mut bool,
    ) -> Result<MessageTurn, MessageFault> {
        let asks_for_writes = self.asks_for_writes(route);
        while *left > 0 {
            let Some(lane) = self.lanes.get_mut(id) else { return Ok(MessageTurn::Waits) };
            let end = &mut lane.on.unreliable;
            let Some(qpn) = end.qpn() else { return Ok(MessageTurn::Waits) };
            let (Some(vqp), Some(memory)) = (self.vqps.get_mut(route), self.unreliable.memory.as_mut()) else {
                return Ok(MessageTurn::Drained);
            };
            if !vqp.wants_to_send_messages() {
                return Ok(MessageTurn::Drained);
            }
            if vqp.message_deficit().is_none_or(|deficit| self.unreliable.drr.allowance(*deficit) == 0) {
                return Ok(MessageTurn::Spent);
            }
            if !memory.has_room() {
                return Ok(MessageTurn::Blocked);
            }
            let Some(app) = self.apps.get(vqp.app()) else { return Ok(MessageTurn::Drained) };
            let unreliable = &mut self.unreliable;
            let leave = next_way(end, asks_for_writes);
            let taken = vqp.take_piece(leave, &app.pool, &mut unreliable.losses, &mut unreliable.scratch)?;
            let Some(taken) = taken else { continue };
            let op = match (leave.way, end.peer_places()) {
                (Way::Write, Some(places)) => places.write(),
                _ => SendOp::Send,
            };
            unreliable.writes.sent += u64::from(leave.way == Way::Write);
            unreliable.writes.no_place += u64::from(leave.way == Way::SendForWrite);
            *left -= 1;
            *has_room |= taken.is_last;
            if let Some(deficit) = vqp.message_deficit() {
                unreliable.drr.spend(deficit, taken.bytes);
            }
            self.tenants.charge(unreliable.drr.tenant(), taken.bytes.into(), self.now);
            unreliable.sent += u64::from(taken.is_last);
            if let Err(e) = unreliable.post(nic, qpn, op) {
                self.lanes.fail(id, format!("the UC queue pair took no send: {e}"));
                return Ok(MessageTurn::Waits);
            }
            self.counters.data_bytes += u64::from(taken.bytes) - PIECE_HEADER_BYTES as u64;
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.rest.touch(self.now);
            }
        }
        Ok(MessageTurn::Blocked)
    }

    // ---- receiving

    /// A completion of a UC queue pair, which may be destroyed already.
    pub(in crate::engine) fn on_piece_completion(&mut self, c: &Completion) {
        let lane = self.unreliable.lane_of(c.qpn);
        let Some(memory) = &mut self.unreliable.memory else { return };
        if let Some(id) = lane
            && c.status != Status::Success
        {
            self.lanes.fail(id, format!("work of the UC queue pair ended with {:?}", c.status));
        }
        if c.wr_id & RECV_WR == 0 {
            return memory.on_sent(c.qpn, c.wr_id);
        }
        let Some(entry) = memory.receives.entry_of(c.wr_id) else {
            self.counters.device_refusals += 1;
            return;
        };
        if let Some(id) = lane
            && c.status == Status::Success
        {
            match (c.opcode, c.imm) {
                (WcOpcode::RecvWriteImm, Some(immediate)) => self.on_write(id, immediate, c.byte_len),
                _ => self.read_piece(id, entry, c.byte_len),
            }
            if self.lanes.get(id).is_some_and(|lane| lane.on.unreliable.wants_frame()) {
                self.lanes.queue(id);
            }
        }
        if let Some(memory) = &mut self.unreliable.memory {
            memory.receives.give_back(entry);
        }
    }

    fn read_piece(&mut self, id: LaneId, entry: u32, bytes: u32) {
        let mut piece = std::mem::take(&mut self.unreliable.scratch);
        let read = self.unreliable.memory.as_ref().is_some_and(|memory| memory.receives.read(entry, bytes, &mut piece));
        let places = self.lanes.get_mut(id).and_then(|lane| lane.on.unreliable.own_places_mut());
        match Piece::parse(&piece).filter(|(header, _)| read && (header.writes == 0 || places.is_some())) {
            Some((header, payload)) => {
                if let Some(places) = places {
                    places.pass(header.writes);
                }
                self.on_piece(id, &header, payload);
            }
            None => self.unreliable.losses.count(Loss::Malformed, 1),
        }
        self.unreliable.scratch = piece;
    }

    /// A WRITE of the peer completed. A peer without places has no key to any; what it writes elsewhere by its rights to
    /// rings names no place.
    fn on_write(&mut self, id: LaneId, immediate: u32, bytes: u32) {
        let mut piece = std::mem::take(&mut self.unreliable.scratch);
        let places = self.lanes.get_mut(id).and_then(|lane| lane.on.unreliable.own_places_mut());
        let landed = places.map_or(Landed::Late, |places| places.take(immediate, bytes, &mut piece));
        let parsed =
            Piece::parse(&piece).filter(|(header, _)| u32::from(header.writes) == immediate & u32::from(u16::MAX));
        match (landed, parsed) {
            (Landed::Late, _) => self.unreliable.losses.count(Loss::Late, 1),
            (Landed::Whole, Some((header, payload))) => {
                self.unreliable.writes.received += 1;
                self.on_piece(id, &header, payload);
            }
            _ => self.unreliable.losses.count(Loss::Spoiled, 1),
        }
        self.unreliable.scratch = piece;
    }

    fn on_piece(&mut self, id: LaneId, header: &Piece, payload: &[u8]) {
        let route = self.vqps.named(header.route);
        let end = self.lanes.get(id).map_or(0, |lane| lane.on.unreliable.number());
        let Some(vqp) = self.vqps.on_lane(id, route).filter(|vqp| vqp.has_messages()) else {
            return self.unreliable.losses.count(Loss::NoConnection, 1);
        };
        let (at, app) = (vqp.at(), vqp.app());
        let len = count(payload.len());
        let place = match vqp.on_piece(header, len, end, &mut self.unreliable.losses) {
            Ok(Arrival::At(place)) => place,
            Ok(Arrival::Dropped) => return,
            Err(fault) => return self.on_app_fault(app, &fault),
        };
        let Some(pool) = self.apps.get(app).map(|app| &app.pool) else { return };
        let mut is_written = vqp.write_rx(pool, place, payload);
        let whole = vqp.on_piece_in(len);
        if let Some((place, length)) = whole {
            is_written &= vqp.write_rx(pool, place, &length);
        }
        if !is_written {
            // The ring is there as long as its connection; its pages may not be.
            return self.on_app_fault(app, &"a page of its receive ring cannot be had");
        }
        self.rests.touch(vqp, route, self.now);
        if whole.is_some() {
            vqp.publish_message();
            let awaited = vqp.slot.is_awaited(waiting::READABLE);
            self.apps.mark(at, awaited);
            self.unreliable.received += 1;
        }
        self.counters.data_bytes += u64::from(len);
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.rest.touch(self.now);
        }
    }
}

/// How the next piece leaves.
fn next_way(end: &mut UnreliableEnd, asks_for_write: bool) -> Leave {
    let (number, max) = (end.number(), end.piece_bytes());
    let places = end.peer_places();
    let writes = places.as_ref().map_or(0, |places| places.sent());
    match places.filter(|places| asks_for_write && places.may_write()) {
        Some(places) => Leave { end: number, max: places.piece_bytes(), writes, way: Way::Write },
        None => {
            let way = if asks_for_write { Way::SendForWrite } else { Way::Send };
            Leave { end: number, max, writes, way }
        }
    }
}
