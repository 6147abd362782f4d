//! What a peer says of connections, and what it is told.
//!
//! Owns the way from a record to its connection. It must never let a record change a connection of another lane, or one
//! whose two ends do not know each other.

use control::Reason;
use shm::waiting;
use verbs::Provider;

use super::Engine;
use super::mechanism::{Mechanism, Telling};
use crate::frame::{FrameWriter, StreamRecord};
use crate::ids::{Flow, LaneId, RouteId};
use crate::ringpool::Waiter;
use crate::violation::Violation;
use crate::vqp::table::Connections;
use crate::vqp::{List, Phase, Vqp};

impl Mechanism for Connections {
    type Record = StreamRecord;

    fn on_record<P: Provider>(
        engine: &mut Engine,
        nic: &mut P,
        lane: LaneId,
        record: StreamRecord,
    ) -> Result<(), Violation> {
        engine.on_stream_record(nic, lane, &record)
    }

    #[inline]
    fn on_sent(engine: &mut Engine, lane: LaneId, wr: u64) {
        engine.on_pulls_sent(lane, wr);
    }

    fn write(telling: &mut Telling<'_>, frame: &mut FrameWriter<'_>) -> bool {
        telling.write_connections(frame)
    }

    fn has_work(engine: &Engine) -> bool {
        !engine.lend_wanted.is_empty()
    }

    fn on_rings(engine: &mut Engine, waiter: Waiter, rings: Result<(), Reason>) -> bool {
        match (waiter, rings) {
            (Waiter::Connect(id), Ok(())) => engine.serve_connect(id),
            (Waiter::Connect(id), Err(reason)) => engine.finish_connect(id, Err(reason)),
            (Waiter::Open(id), Ok(())) => engine.serve_open(id),
            (Waiter::Open(id), Err(reason)) => engine.refuse_parked(id, reason),
            _ => return false,
        }
        true
    }

    fn on_lane_up(engine: &mut Engine, lane: LaneId) {
        engine.tell_back(lane);
    }
}

impl Telling<'_> {
    fn write_connections(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        let own = &mut self.lane.on.connections;
        if !own.opening.write_naks(frame) || !own.away.write(frame) {
            return false;
        }
        while let Some(route) = self.lane.on.connections.lists.front_control() {
            if !self.write_connection(route, List::Control, frame) {
                return false;
            }
            self.lane.on.connections.lists.pop_control();
        }
        if !self.lane.on.connections.opening.write_opens(self.vqps, frame) {
            return false;
        }
        // Consumed bytes that could wait ride along.
        while let Some(route) = self.lane.on.connections.lists.front_lazy_head() {
            if !self.write_connection(route, List::LazyHead, frame) {
                return false;
            }
            self.lane.on.connections.lists.pop_lazy_head();
        }
        self.lane.on.connections.lists.on_heads_told();
        true
    }

    /// Writes the records of the first connection of a list, which it leaves if all fit. False: the frame is full.
    fn write_connection(&mut self, route: RouteId, list: List, frame: &mut FrameWriter<'_>) -> bool {
        let Some(vqp) = self.vqps.get_mut(route) else { return true };
        if list == List::LazyHead && !vqp.has_lazy_head() {
            vqp.place.leave(list);
            return true;
        }
        let mut wrote_end = false;
        let was_accepting = vqp.phase() == Phase::Accepting;
        let was_sendable = vqp.is_sendable();
        let bytes_before = frame.len();
        let whole = vqp.write_records(frame, &mut wrote_end);
        let own = &mut self.lane.on.connections;
        if was_accepting && vqp.phase() == Phase::Open {
            own.opening.on_answer_sent();
        }
        // What the application wrote meanwhile may follow, behind an OpenAck or the place from which on its ring is
        // larger.
        if !was_sendable && vqp.is_sendable() && vqp.place.enter(List::Ready) {
            self.lane.drr.push(vqp.app(), Flow::Connection(route), self.tenants);
        }
        // The record that the peer still had to get may also be a Head. A connection that had nothing to say, because
        // another list served it first, is in no frame, and this frame may never be sent.
        if frame.len() > bytes_before && !vqp.is_away() && (wrote_end || vqp.is_over()) {
            vqp.on_end_staged(self.wr);
            own.lists.push_closing(self.wr, route);
            // Its memory is free when the frame is done.
            self.is_awaited = true;
        }
        if whole {
            vqp.place.leave(list);
        }
        whole
    }
}

impl Engine {
    /// One record.
    fn on_stream_record<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        record: &StreamRecord,
    ) -> Result<(), Violation> {
        let about = record.route();
        if record.is_about_bytes()
            && let Some(vqp) = about.and_then(|route| self.vqps.get(self.vqps.named(route)))
            && vqp.has_messages()
        {
            return Err(Violation::NotAStream { id: vqp.id() });
        }
        match self.take_stream_record(nic, id, record) {
            Err(_) if self.is_about_spoiled(about) => Ok(()),
            other => other,
        }
    }

    fn take_stream_record<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        record: &StreamRecord,
    ) -> Result<(), Violation> {
        match *record {
            StreamRecord::Open(ref open) => self.on_open(nic, id, open),
            StreamRecord::OpenAck { route, own_route, ref ring } => self.on_open_ack(id, route, own_route, ring),
            StreamRecord::OpenNak { route, reason } => self.on_open_nak(id, route, Reason::from_code(reason)),
            StreamRecord::Back(ref back) => self.on_back(id, back),
            StreamRecord::Gone { route } => {
                self.on_gone(id, route);
                Ok(())
            }
            StreamRecord::Head { route, consumed } => self.on_head(id, route, consumed),
            StreamRecord::Fin { route, final_tail } => self.on_end(id, route, |vqp| vqp.on_fin(final_tail)),
            StreamRecord::Stop { route } => self.on_end(id, route, |vqp| {
                vqp.on_stop();
                Ok(())
            }),
            StreamRecord::Reset { route, reason } => {
                self.on_end(id, route, |vqp| vqp.on_reset(Reason::from_code(reason)))
            }
            StreamRecord::Ready { route, end, ring } => self.on_ready(id, route, end, ring),
            StreamRecord::Pulled { route, end } => self.on_pulled(id, route, end),
            StreamRecord::Grow { route } => self.on_grow(id, route),
            StreamRecord::GrowAnswer { route, allowed } => self.on_grow_answer(id, route, allowed),
            StreamRecord::GrownAt { route, at } => {
                let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
                vqp.on_grown_at(at)
            }
        }
    }

    /// The peer's application consumed bytes.
    fn on_head(&mut self, id: LaneId, route: u32, consumed: u64) -> Result<(), Violation> {
        let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
        if !vqp.on_head(consumed)? {
            return Ok(());
        }
        let (at, awaited) = (vqp.at(), vqp.has_half_room() && vqp.slot.is_awaited(waiting::WRITABLE));
        self.apps.mark(at, awaited);
        let route = self.vqps.named(route);
        if self.stages.has_open() {
            self.stages.on_read_there(route, consumed);
        }
        if let Some(vqp) = self.vqps.get_mut(route) {
            self.rests.touch(vqp, route, self.now);
        }
        self.on_sending(route);
        self.try_release(route);
        Ok(())
    }

    /// A direction of a connection, or all of it, ended at the peer.
    fn on_end(
        &mut self,
        id: LaneId,
        route: u32,
        end: impl FnOnce(&mut Vqp) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
        end(vqp)?;
        let (at, is_released) = (vqp.at(), vqp.is_app_released());
        // An application that gave the connection back looks at it no more.
        if !is_released {
            self.notify(at);
        }
        let route = self.vqps.named(route);
        self.update(route);
        Ok(())
    }

    /// The connection that a record is about. `None`: it is over here, and the record crossed our end of it.
    pub(super) fn open_vqp(&mut self, id: LaneId, route: u32) -> Result<Option<&mut Vqp>, Violation> {
        let key = self.vqps.named(route);
        let Some(vqp) = self.vqps.get_mut(key) else {
            self.counters.stale_frames += 1;
            return Ok(None);
        };
        if vqp.place.lane() != Some(id) {
            return Err(Violation::RecordRoute(route));
        }
        if vqp.phase() != Phase::Open {
            return Err(Violation::NotOpen { id: vqp.id() });
        }
        Ok(Some(vqp))
    }
}
