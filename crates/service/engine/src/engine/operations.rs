//! Operation queues: opened, rung, looked at, closed; and what operations leave to be settled at the end of a round.
//!
//! Owns queues from their opening to their release. It must never release one while the device may touch memory that
//! its operations name.

mod execute;
mod kernels;
mod notices;
mod regions;
mod resume;
mod turns;

use control::Reason;
use verbs::{Provider, Time};

use super::Engine;
use super::mechanism::{Counter, Mechanism, Telling};
use super::ring_slot::SlotTable;
use crate::app::SlotUse;
use crate::event::{Event, OperationsOpen};
use crate::frame::{FrameWriter, OperationRecord};
use crate::ids::{AppId, Flow, LaneId, QueueId};
use crate::lane::{Lane, PeerEnd};
use crate::lane_part::LanePart;
use crate::limits::{OPERATION_QUEUES_PER_APP_MAX, OPERATION_RING_BYTES_MIN};
use crate::operations::Operations;
use crate::operations::queue::OperationQueue;
use crate::operations::taking::Look;
use crate::ring_slot::SlotRequest;
use crate::ringpool::{RingPair, Waiter};
use crate::violation::Violation;

const QUEUES: SlotTable<QueueId, OperationQueue> = SlotTable {
    tables: |engine| (&mut engine.apps, &mut engine.ops.queues),
    used_by: SlotUse::Queue,
    make: OperationQueue::new,
};

impl Mechanism for Operations {
    type Record = OperationRecord;

    fn on_record<P: Provider>(
        engine: &mut Engine,
        _nic: &mut P,
        lane: LaneId,
        record: OperationRecord,
    ) -> Result<(), Violation> {
        engine.on_operation_record(lane, record)
    }

    #[inline]
    fn on_sent(engine: &mut Engine, lane: LaneId, wr: u64) {
        if engine.lanes.get(lane).is_some_and(|lane| !lane.on.operations.is_quiet()) {
            engine.on_operations_sent(lane, wr);
        }
    }

    fn run(engine: &mut Engine) -> bool {
        engine.run_operations() | engine.run_kernels() | engine.run_notices()
    }

    fn settle(engine: &mut Engine) -> bool {
        engine.settle_operations()
    }

    fn run_last<P: Provider>(engine: &mut Engine, nic: &mut P, is_calm: bool) -> bool {
        engine.run_pins(nic, is_calm)
    }

    fn has_work(engine: &Engine) -> bool {
        engine.ops.has_work()
    }

    fn deadline(engine: &Engine) -> Option<Time> {
        [engine.ops.locals.pins().deadline(), engine.ops.notices.deadline()].into_iter().flatten().min()
    }

    #[inline]
    fn write(telling: &mut Telling<'_>, frame: &mut FrameWriter<'_>) -> bool {
        turns::write(telling, frame)
    }

    fn on_accepted(engine: &mut Engine, lane: LaneId, peer: &PeerEnd) {
        if let Some(lane) = engine.lanes.get_mut(lane) {
            lane.on.operations.on_accepted(peer.frame_bytes_max, peer.is_confirming);
        }
    }

    fn on_lane_up(engine: &mut Engine, lane: LaneId) {
        engine.unpark_queues(lane);
    }

    fn on_lane_kept(engine: &mut Engine, lane: LaneId) {
        engine.keep_operations(lane, Reason::LaneFailed);
    }

    fn on_heard(engine: &mut Engine, lane: LaneId, frames: u64, is_fresh: bool) {
        engine.hear_operations(lane, frames, is_fresh);
    }

    fn on_severed(engine: &mut Engine, id: LaneId, reason: Reason) {
        let Some(lane) = engine.lanes.get(id) else { return };
        let peer = lane.peer();
        if !lane.is_leased() {
            engine.sever_operations(id, reason);
            return engine.lose_regions(peer, reason);
        }
        let handles = engine.ops.regions.lose_lane(id, reason);
        engine.sever_operations(id, reason);
        engine.end_leased_operations(id, &handles);
    }

    fn on_link_lost<P: Provider>(engine: &mut Engine, _nic: &mut P, lane: LaneId, reason: Reason) {
        if let Some(peer) = engine.lanes.get(lane).map(Lane::peer) {
            engine.lose_regions(peer, reason);
        }
    }

    fn on_rings(engine: &mut Engine, waiter: Waiter, rings: Result<(), Reason>) -> bool {
        let Waiter::Queue(id) = waiter else { return false };
        if let Some(bind) = engine.ops.binds.remove(id) {
            engine.end_wait(bind, rings, Engine::open_queue);
        }
        true
    }

    fn on_chunk_not_taken(engine: &mut Engine, app: AppId, chunk: u32) {
        for queue in engine.ops.queues_of(app) {
            engine.close_queue_in(queue, chunk);
        }
    }

    fn on_departure(engine: &mut Engine, app: AppId, _reason: Reason) {
        for queue in engine.ops.queues_of(app) {
            engine.close_queue(queue);
        }
        engine.ops.drop_told_here(app);
        engine.ops.regions.close_all(app);
    }

    fn on_overdue<P: Provider>(engine: &mut Engine, nic: &mut P, app: AppId) {
        let queues = engine.ops.queues_of(app);
        for (_, lane) in engine.ops.those(|op| op.asked.is_some() && queues.contains(&op.queue)) {
            engine.fail_lane(nic, lane, "the peer does not answer operations of an application that left".into());
        }
    }

    fn on_app_gone(engine: &mut Engine, app: AppId) {
        engine.ops.forget_app(app);
        engine.ops.kernels.drop_program(app);
        engine.ops.drop_told_here(app);
        engine.ops.locals.detach_all(app);
        engine.ops.locals.settle(engine.now);
        engine.ops.locals.pins_mut().forget(app);
    }

    fn memory(engine: &Engine) -> (u32, u64) {
        let buffers =
            engine.lanes.iter().filter_map(|(_, lane)| lane.on.operations.buffers.as_ref()).map(|b| (1, b.bytes()));
        let regions = [engine.ops.owned.registered(), engine.ops.locals.pins().registered()];
        buffers.chain(regions).fold((0, 0), |sum, x| (sum.0 + x.0, sum.1 + x.1))
    }

    fn counters(engine: &Engine, out: &mut Vec<Counter>) {
        out.extend(engine.ops.counters());
        out.extend(engine.ops.locals.pins().counters().named());
    }
}

impl Engine {
    // ---- open

    /// Opens an operation queue. The answer is [`Event::Connected`] with a connection that has no peer.
    pub fn open_operations(&mut self, app: AppId, request: u64, open: OperationsOpen) {
        if let Err(reason) = self.try_open_operations(app, request, open) {
            self.refuse_ring_slot(app, request, open.queue, reason);
        }
    }

    fn try_open_operations(&mut self, app: AppId, request: u64, open: OperationsOpen) -> Result<(), Reason> {
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        let waiting = self.ops.binds.iter().filter(|(_, bind)| bind.app == app).count();
        if self.ops.queues_of(app).len() + waiting >= OPERATION_QUEUES_PER_APP_MAX {
            return Err(Reason::LocalLimit);
        }
        let size = self.ring_slot_size(open.ring_bytes, OPERATION_RING_BYTES_MIN);
        let bind = SlotRequest { app, request, id: open.queue, port: 0, size };
        if let Some(rings) = self.take_rings(bind) {
            return self.open_queue(bind, rings);
        }
        let id = self.ops.binds.insert(bind).ok_or(Reason::LocalLimit)?;
        self.wait_for_rings(bind, Waiter::Queue(id));
        Ok(())
    }

    fn open_queue(&mut self, bind: SlotRequest, rings: RingPair) -> Result<(), Reason> {
        self.open_ring_slot(&QUEUES, bind, rings).map(|_| ())
    }

    // ---- records

    /// What a peer says of regions.
    fn on_operation_record(&mut self, id: LaneId, record: OperationRecord) -> Result<(), Violation> {
        match record {
            OperationRecord::Execute { key, id: operation, offset, ask } => {
                self.on_execute(id, (key, operation), offset, ask)
            }
            OperationRecord::Executed { id: operation, status, value } => {
                self.on_executed(id, operation, status, value)
            }
            OperationRecord::Run(run) => self.on_run(id, &run),
            OperationRecord::Answer { id: operation, failed, bytes } => self.on_ran(id, operation, failed, bytes),
        }
    }

    // ---- doorbells and ends

    /// The application rang for a queue.
    pub(super) fn on_queue(&mut self, id: QueueId) {
        let Some(queue) = self.ops.queues.get_mut(id) else { return };
        if queue.on_doorbell() {
            self.close_queue(id);
        } else {
            self.fill_ring(id);
            self.ops.note_due(id);
        }
    }

    /// Nothing more of a queue begins. It is released when the device is done with what was posted.
    fn close_queue(&mut self, id: QueueId) {
        self.abandon_operations(|op| op.queue == id);
        self.ops.lose_ring(id);
        self.ops.close_queue(id);
    }

    /// Frees a queue in this chunk, which its application cannot use.
    fn close_queue_in(&mut self, id: QueueId, chunk: u32) {
        if self.ops.queues.get(id).is_some_and(|q| q.slot().rings().is_in(chunk)) {
            self.close_queue(id);
        }
    }

    /// Frees slot and rings. Nothing of it is in flight.
    fn release_queue(&mut self, id: QueueId) {
        if !self.ops.queues.get(id).is_some_and(OperationQueue::is_over) {
            return;
        }
        let Some(queue) = self.ops.queues.remove(id) else { return };
        self.free_ring_slot(queue.slot());
    }

    // ---- a round

    /// Looks at the queues of which something changed. Says whether there were any.
    fn run_operations(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..self.ops.due() {
            let Some(id) = self.ops.next_due() else { break };
            if self.ops.queues.get(id).is_none_or(OperationQueue::is_placed) {
                continue;
            }
            worked = true;
            match self.ops.look(id, self.now) {
                Look::Idle => {}
                Look::More => self.ops.note_due(id),
                Look::Ready(lane) => self.place_queue(id, lane),
            }
            self.ops.show_room(id);
        }
        self.answer_notices();
        worked
    }

    /// A queue has something for a lane: it has its turns there, or waits until the lane is up.
    fn place_queue(&mut self, id: QueueId, to: LaneId) {
        let (Some(lane), Some(queue)) = (self.lanes.get_mut(to), self.ops.queues.get_mut(id)) else { return };
        if !queue.enter_lane(to) {
            return;
        }
        if lane.qp.is_up() {
            lane.drr.push(queue.at().app, Flow::Operations(id), &self.tenants);
            self.lanes.queue(to);
            return;
        }
        lane.on.operations.park(id);
        if !lane.qp.exists() && !lane.holds_connections() && lane.want() {
            self.events.push_back(Event::PeerWanted { peer: lane.peer(), lane: lane.number() });
        }
        self.wake_lane(to);
    }

    /// A lane is up: those that waited for it have their turns.
    fn unpark_queues(&mut self, lane: LaneId) {
        let parked = self.lanes.get_mut(lane).map(|l| l.on.operations.take_parked()).unwrap_or_default();
        self.look_again(lane, parked);
    }

    fn look_again(&mut self, lane: LaneId, queues: Vec<QueueId>) {
        for id in queues {
            if self.ops.queues.get_mut(id).is_some_and(|q| q.leave_lane(lane)) {
                self.ops.note_due(id);
            }
        }
    }

    /// Work requests of a lane are done: operations whose bytes that were end, or wait for the owner's engine.
    fn on_operations_sent(&mut self, id: LaneId, wr: u64) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let flight = &mut lane.on.operations;
        while let Some(op) = flight.take_placed(wr) {
            self.ops.on_placed(op, flight);
        }
        let waiting = flight.take_waiting();
        self.look_again(id, waiting);
    }

    /// Carries out what operations left: wakes, faults, ends of queues and of handles. Says whether there was any.
    fn settle_operations(&mut self) -> bool {
        if !self.ops.has_news() {
            return false;
        }
        for (at, awaited) in self.ops.take_marks() {
            self.apps.mark(at, awaited);
        }
        for (id, fault) in self.ops.take_faults() {
            let Some(app) = self.ops.queues.get(id).map(|q| q.at().app) else { continue };
            if self.apps.get_here(app).is_some() {
                self.on_app_fault(app, &fault);
            }
            self.close_queue(id);
        }
        for id in self.ops.take_drained() {
            self.release_queue(id);
        }
        self.settle_regions();
        self.ops.locals.settle(self.now);
        true
    }

    /// Registers more of the memory that programs brought, and gives up what they do not use. `is_calm`: the round had
    /// nothing else to do. Says whether operations may go on.
    fn run_pins<P: Provider>(&mut self, nic: &mut P, is_calm: bool) -> bool {
        if !self.ops.locals.pins_mut().run(self.now, nic, is_calm) {
            return false;
        }
        for id in self.lanes.keys() {
            let waiting = self.lanes.get_mut(id).map(|lane| lane.on.operations.take_waiting()).unwrap_or_default();
            self.look_again(id, waiting);
        }
        true
    }
}
