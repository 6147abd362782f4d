//! The sending side of a lane: control frames and ring data, as far as credits and send queue allow.
//!
//! Owns what leaves in which order. It must never wait: what cannot leave now stays in its queue, and the event that
//! makes room (a completion, a frame with credits) puts the lane back into the engine's list. Its work in one call is
//! bounded by the send queue, which it can fill only once.

use verbs::{PostError, Provider, SendOp, Time};

use super::mechanism::{Mechanism, Telling};
use super::mechanisms::Mechanisms;
use crate::choice::{Load, Thresholds, Verb};
use crate::counters::Counters;
use crate::frame::FrameWriter;
use crate::ids::{Flow, LaneId, QueueId, RouteId};
use crate::immediate::{Immediate, bytes_before};
use crate::lane::Lane;
use crate::limits::{FRAMES_PER_PUMP, SEND_QUEUE_RESERVED};
use crate::operations::Operations;
use crate::stages::Stages;
use crate::tenants::{Tenants, Waits};
use crate::vqp::rendezvous::LendKey;
use crate::vqp::table::Connections;
use crate::vqp::{List, Piece, Vqp};

/// One lane, and what of the engine sending needs.
pub(super) struct Pump<'a> {
    pub(super) id: LaneId,
    pub(super) lane: &'a mut Lane,
    pub(super) ops: &'a mut Operations,
    pub(super) vqps: &'a mut Connections,
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) choosing: Choosing<'a>,
    pub(super) counters: &'a mut Counters,
    pub(super) stages: &'a mut Stages,
    pub(super) tenants: &'a mut Tenants,
    pub(super) now: Time,
}

/// What the choice of verbs depends on beside the lane and the connection.
pub(super) struct Choosing<'a> {
    pub(super) at: &'a Thresholds,
    pub(super) here: Load,
    /// Connections whose rings are to be registered for their peers.
    pub(super) wanted: &'a mut Vec<RouteId>,
}

/// What a turn of a connection ended with.
pub(super) enum Turn {
    /// It has nothing more to send.
    Drained,
    /// It used its quantum, or its application's; what is left of its own.
    Spent(u32),
    /// The lane takes no more.
    Blocked,
    /// The lane takes no more operations; others go on.
    Waits,
}

impl Pump<'_> {
    /// Sends what may be sent. Says whether anything was; an error means that the queue pair is broken.
    pub(super) fn run<P: Provider>(&mut self, nic: &mut P) -> Result<bool, PostError> {
        if !self.lane.qp.is_up() {
            return Ok(false);
        }
        let before = self.lane.sendq.next();
        // Records first: an OpenAck must leave before the connection's data. Then again, for the Fins that follow data.
        self.send_frames(nic)?;
        self.send_data(nic)?;
        self.send_frames(nic)?;
        self.lane.flush(nic, self.now)?;
        Ok(self.lane.sendq.next() != before)
    }

    // ---- control frames

    fn send_frames<P: Provider>(&mut self, nic: &mut P) -> Result<(), PostError> {
        for _ in 0..FRAMES_PER_PUMP {
            if !self.lane.wants_frame() {
                break;
            }
            if !self.lane.allows_frame() {
                if self.lane.sendq.has_frame_room() {
                    self.on_stall();
                }
                break;
            }
            if !self.send_frame() {
                break;
            }
            if self.lane.sendq.is_batch_full() {
                self.lane.flush(nic, self.now)?;
            }
        }
        Ok(())
    }

    /// Makes and stages one frame. False: there was nothing to say after all.
    pub(super) fn send_frame(&mut self) -> bool {
        let Some(slot) = self.lane.sendq.take_frame_slot() else { return false };
        let seq = self.lane.sendq.next();
        let mut writer = FrameWriter::new(self.scratch, self.lane.qp.pieces().frame_bytes_max);
        let about_credits = Self::fill_credits(self.lane, self.choosing.here, &mut writer);
        let mut telling = Telling {
            lane: self.lane,
            vqps: self.vqps,
            ops: self.ops,
            tenants: self.tenants,
            wr: seq,
            is_awaited: false,
        };
        Mechanisms::write(&mut telling, &mut writer);
        let is_awaited = telling.is_awaited;
        self.counters.records_sent += u64::from(writer.records() - about_credits);
        let is_flush = self.lane.rest.take_flush(seq);
        if writer.is_empty() && !self.lane.credits.is_due() && !is_flush {
            self.lane.sendq.put_frame_slot(slot);
            return false;
        }
        let number = self.lane.frames.next();
        self.lane.frames.on_sent();
        self.lane.one_sided.on_parted();
        let credits = self.lane.credits.give_back();
        writer.finish(self.lane.qp.incarnation(), number, credits);
        let sge = self.lane.frames.put(slot, self.scratch);
        let sge = sge.expect("the lane has frame memory while it is up, and the writer keeps to the slot's size");
        self.lane.sendq.stage_frame(sge, slot, is_awaited || is_flush);
        self.lane.credits.take();
        self.counters.frames_sent += 1;
        true
    }

    /// Writes what is to be said about credits, loads and rests, first, so that it fits any frame. How many records that
    /// is.
    fn fill_credits(lane: &mut Lane, here: Load, frame: &mut FrameWriter<'_>) -> u16 {
        lane.credits.write(frame);
        lane.loads.write(here, frame);
        lane.rest.write(frame);
        frame.records()
    }

    // ---- ring data

    fn send_data<P: Provider>(&mut self, nic: &mut P) -> Result<(), PostError> {
        while let Some(flow) = self.lane.drr.front() {
            if let Some(tenant) = self.lane.drr.tenant()
                && !self.tenants.may_send(tenant, self.now, Waits::Lane(self.id))
            {
                self.lane.drr.set_aside();
                continue;
            }
            let is_blocked = match flow {
                Flow::Connection(route) => self.serve_connection(nic, route)?,
                Flow::Operations(queue) => self.serve_queue(nic, queue)?,
            };
            if is_blocked {
                break;
            }
        }
        if self.lane.drr.take_is_shared() {
            self.lane.sendq.window().on_shared(self.now);
        }
        Ok(())
    }

    /// A connection has its turn. Whether the lane takes no more.
    fn serve_connection<P: Provider>(&mut self, nic: &mut P, route: RouteId) -> Result<bool, PostError> {
        let Some(vqp) = self.vqps.get_mut(route) else {
            self.lane.drr.leave();
            return Ok(false);
        };
        if vqp.is_sendable() && !self.part_from_operations() {
            return Ok(true);
        }
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(false) };
        self.lane.drr.begin_turn(vqp.place.deficit_mut(), self.tenants);
        match self.turn(nic, route)? {
            Turn::Blocked => return Ok(true),
            Turn::Spent(deficit) => self.lane.drr.rotate(deficit),
            Turn::Drained | Turn::Waits => {
                self.lane.drr.leave();
                let Some(vqp) = self.vqps.get_mut(route) else { return Ok(false) };
                *vqp.place.deficit_mut() = 0;
                vqp.place.leave(List::Ready);
                if vqp.owes_records() && vqp.place.enter(List::Control) {
                    self.lane.on.connections.lists.push_control(route);
                }
            }
        }
        Ok(false)
    }

    /// A device that counts where WRITEs put bytes, whatever its offer says, takes those since the last message for the
    /// data that the next message claims. So a frame, even an empty one, parts WRITEs of operations from ring data.
    /// False: it cannot leave yet.
    fn part_from_operations(&mut self) -> bool {
        if !self.lane.one_sided.must_part() {
            return true;
        }
        self.lane.rest.owe_flush();
        if !self.lane.allows_frame() {
            self.on_stall();
            return false;
        }
        self.send_frame()
    }

    /// An operation queue has its turn. Whether the lane takes no more.
    fn serve_queue<P: Provider>(&mut self, nic: &mut P, id: QueueId) -> Result<bool, PostError> {
        let Some(queue) = self.ops.queues.get_mut(id) else {
            self.lane.drr.leave();
            return Ok(false);
        };
        self.lane.drr.begin_turn(queue.deficit_mut(), self.tenants);
        let turn = self.queue_turn(nic, id)?;
        match turn {
            Turn::Blocked => return Ok(true),
            Turn::Spent(deficit) => self.lane.drr.rotate(deficit),
            Turn::Waits => {
                self.lane.drr.leave();
                self.lane.on.operations.wait(id);
            }
            Turn::Drained => {
                self.lane.drr.leave();
                if let Some(queue) = self.ops.queues.get_mut(id) {
                    queue.leave_lane(self.id);
                }
                // It may have something for another lane.
                self.ops.note_due(id);
            }
        }
        Ok(false)
    }

    /// Sends pieces of one connection, and fetches what its peer lends, until its turn ends.
    fn turn<P: Provider>(&mut self, nic: &mut P, route: RouteId) -> Result<Turn, PostError> {
        let lane = &mut *self.lane;
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(Turn::Drained) };
        loop {
            if !vqp.is_sendable() && !vqp.wants_pull() {
                return Ok(Turn::Drained);
            }
            let allowance = lane.drr.allowance(vqp.place.deficit());
            if allowance == 0 {
                return Ok(Turn::Spent(vqp.place.deficit()));
            }
            if vqp.wants_pull() {
                match stage_pull(lane, vqp, route, allowance, self.counters) {
                    Some(turn) => return Ok(turn),
                    None if lane.sendq.is_batch_full() => lane.flush(nic, self.now)?,
                    None => {}
                }
                continue;
            }
            let choice = vqp.choose(lane.facts(self.choosing.here), self.choosing.at);
            let max = match choice.verb {
                Verb::Read => match lend(lane, vqp, route, &mut self.choosing, self.counters) {
                    Some(bytes) => {
                        self.tenants.charge(lane.drr.tenant(), bytes, self.now);
                        continue;
                    }
                    None => return Ok(Turn::Drained),
                },
                // The peer may be reading the ring: what follows waits until it says that it is done.
                _ if vqp.is_lent() => return Ok(Turn::Drained),
                Verb::Send => lane.qp.pieces().send_bytes_max,
                Verb::Write => lane.qp.pieces().piece_bytes_max,
            };
            let Some(piece) = vqp.next_piece(max.min(allowance)) else { return Ok(Turn::Drained) };
            if !lane.credits.allow_data() {
                self.on_stall();
                return Ok(Turn::Blocked);
            }
            // A piece may be two work requests.
            if !lane.sendq.has_room(piece.bytes, SEND_QUEUE_RESERVED + 1) {
                return Ok(Turn::Blocked);
            }
            let bytes = vqp.staging(piece);
            let is_sampled = self.stages.is_sampled(bytes.0, bytes.1);
            let wr = if choice.verb == Verb::Send {
                self.counters.sends_sent += 1;
                stage_send(lane, vqp, piece, is_sampled)
            } else {
                self.counters.writes_sent += 1;
                stage(lane, vqp, piece, is_sampled)
            };
            if is_sampled {
                self.stages.on_posted(route, bytes, self.id, wr);
            }
            self.counters.choices[choice.why as usize] += 1;
            self.counters.data_bytes += u64::from(piece.bytes);
            self.tenants.charge(lane.drr.tenant(), piece.bytes.into(), self.now);
            if lane.sendq.is_batch_full() {
                lane.flush(nic, self.now)?;
            }
        }
    }

    pub(super) fn on_stall(&mut self) {
        if self.lane.credits.stall() {
            self.counters.credit_stalls += 1;
        }
    }
}

/// Stages one piece as a WRITE with immediate, behind a WRITE if that is better, and takes what it costs. Its number.
fn stage(lane: &mut Lane, vqp: &mut Vqp, piece: Piece, is_signalled: bool) -> u64 {
    let bytes_before = if lane.qp.pieces().splits_pieces { bytes_before(piece.bytes) } else { 0 };
    let from = |vqp: &Vqp, skipped: u32, len: u32| {
        let at = piece.at + u64::from(skipped);
        (vqp.remote(at), vqp.tx_sge(at, len))
    };
    if bytes_before > 0 {
        let (remote, sge) = from(vqp, 0, bytes_before);
        lane.sendq.stage_data(SendOp::Write(remote), sge, false);
    }
    let (remote, sge) = from(vqp, bytes_before, piece.bytes - bytes_before);
    let immediate = Immediate { route: vqp.peer_route(), bytes_before };
    let wr = lane.sendq.stage_data(SendOp::WriteImm(remote, immediate.to_bits()), sge, is_signalled);
    vqp.on_staged(piece, wr);
    lane.drr.spend(vqp.place.deficit_mut(), piece.bytes);
    lane.credits.take();
    lane.tx_bytes += u64::from(piece.bytes);
    wr
}

/// Stages one piece as a SEND with immediate, and takes what it costs. The receiver copies it to its place. Its number.
fn stage_send(lane: &mut Lane, vqp: &mut Vqp, piece: Piece, is_signalled: bool) -> u64 {
    let immediate = Immediate { route: vqp.peer_route(), bytes_before: 0 };
    let sge = vqp.tx_sge(piece.at, piece.bytes);
    let wr = lane.sendq.stage_data(SendOp::SendImm(immediate.to_bits()), sge, is_signalled);
    vqp.on_staged(piece, wr);
    lane.drr.spend(vqp.place.deficit_mut(), piece.bytes);
    lane.credits.take();
    lane.tx_bytes += u64::from(piece.bytes);
    wr
}

/// Lends all that a connection could send to its peer, which is told in the next frame. The bytes. None: not yet, or the
/// choice is to be made anew when the ring was registered.
fn lend(
    lane: &mut Lane,
    vqp: &mut Vqp,
    route: RouteId,
    choosing: &mut Choosing<'_>,
    counters: &mut Counters,
) -> Option<u64> {
    match vqp.lend_key() {
        LendKey::Has(_) => {}
        LendKey::None => {
            vqp.set_lend_key(LendKey::Wanted);
            choosing.wanted.push(route);
            return None;
        }
        LendKey::Wanted | LendKey::Refused => return None,
    }
    let bytes = vqp.lend();
    lane.tx_bytes += bytes;
    counters.rendezvous += 1;
    counters.data_bytes += bytes;
    if let Some(choice) = vqp.last_choice() {
        counters.choices[choice.why as usize] += 1;
    }
    if vqp.place.enter(List::Control) {
        lane.on.connections.lists.push_control(route);
    }
    Some(bytes)
}

/// Stages one READ of what the peer lends, and takes what it costs. `Some`: it ends the turn.
fn stage_pull(lane: &mut Lane, vqp: &mut Vqp, route: RouteId, allowance: u32, counters: &mut Counters) -> Option<Turn> {
    if !lane.one_sided.may_read() {
        vqp.wait_to_pull(true);
        lane.on.connections.pulls.wait(route);
        return None;
    }
    let (piece, from, to) = vqp.next_pull(lane.one_sided.piece_bytes_max().min(allowance))?;
    if !lane.sendq.has_room(piece.bytes, SEND_QUEUE_RESERVED) {
        return Some(Turn::Blocked);
    }
    let wr = lane.sendq.stage_operation(SendOp::Read(from), to);
    lane.one_sided.on_read_posted(wr);
    lane.on.connections.pulls.on_posted(wr, route, piece.bytes);
    vqp.on_pull_staged(piece.bytes, wr);
    lane.drr.spend(vqp.place.deficit_mut(), piece.bytes);
    counters.reads_posted += 1;
    None
}
