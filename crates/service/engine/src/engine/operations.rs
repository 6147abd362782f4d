//! Operation queues: opened, rung, looked at, closed; and what operations leave to be settled at the end of a round.
//!
//! Owns queues from their opening to their release. It must never release one while the device may touch memory that
//! its operations name.

mod execute;
mod regions;
mod resume;

use std::net::SocketAddr;

use control::Reason;
use shm::{RingReader, RingWriter};
use verbs::Provider;

use super::Engine;
use crate::event::{Event, OperationsOpen};
use crate::ids::{AppId, LaneId, QueueBindId, QueueId, SlotAt};
use crate::limits::{OPERATION_QUEUES_PER_APP_MAX, OPERATION_RING_BYTES_MIN};
use crate::operations::QueueBind;
use crate::operations::queue::{NewQueue, OperationQueue};
use crate::operations::taking::Look;
use crate::ring_size::RingSize;
use crate::ringpool::{RingPair, Waiter};
use crate::slot::clear_slot;

impl Engine {
    // ---- open

    /// Opens an operation queue. The answer is [`Event::Connected`] with a connection that has no peer.
    pub fn open_operations(&mut self, app: AppId, request: u64, open: OperationsOpen) {
        if let Err(reason) = self.try_open_operations(app, request, open) {
            self.note_no_queue(app, request, open.queue, reason);
        }
    }

    fn note_no_queue(&mut self, app: AppId, request: u64, queue: u64, reason: Reason) {
        self.events.push_back(Event::Connected { app, request, result: Err(reason) });
        self.events.push_back(Event::SocketOver { app, socket: queue });
    }

    fn try_open_operations(&mut self, app: AppId, request: u64, open: OperationsOpen) -> Result<(), Reason> {
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        let waiting = self.ops.binds.iter().filter(|(_, bind)| bind.app == app).count();
        if self.ops.queues_of(app).len() + waiting >= OPERATION_QUEUES_PER_APP_MAX {
            return Err(Reason::LocalLimit);
        }
        let asked = if open.ring_bytes == 0 { 0 } else { open.ring_bytes.max(OPERATION_RING_BYTES_MIN) };
        let size = RingSize::fixed(self.config.ring_bytes(asked));
        let bind = QueueBind { app, request, queue: open.queue, size };
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        if let Some(rings) = tenant.pool.take(size) {
            return self.open_queue(bind, rings);
        }
        let id = self.ops.binds.insert(bind).ok_or(Reason::LocalLimit)?;
        tenant.pool.wait(size, Waiter::Queue(id));
        self.start_waiting(app);
        self.ask_for_rings(app, size);
        Ok(())
    }

    /// Rings are there for a queue that waited for them.
    pub(super) fn serve_queue_bind(&mut self, id: QueueBindId) {
        let Some(bind) = self.take_queue_bind(id) else { return };
        let rings = self.apps.get_mut(bind.app).and_then(|a| a.pool.take(bind.size));
        let result = rings.ok_or(Reason::LocalLimit).and_then(|rings| self.open_queue(bind, rings));
        if let Err(reason) = result {
            self.note_no_queue(bind.app, bind.request, bind.queue, reason);
        }
    }

    /// There will be no rings for a queue.
    pub(super) fn refuse_queue_bind(&mut self, id: QueueBindId, reason: Reason) {
        if let Some(QueueBind { app, request, queue, .. }) = self.take_queue_bind(id) {
            self.note_no_queue(app, request, queue, reason);
        }
    }

    fn take_queue_bind(&mut self, id: QueueBindId) -> Option<QueueBind> {
        let bind = self.ops.binds.remove(id)?;
        self.stop_waiting(bind.app);
        Some(bind)
    }

    fn open_queue(&mut self, bind: QueueBind, rings: RingPair) -> Result<(), Reason> {
        let opened = self.try_open_queue(bind, rings);
        if opened.is_err()
            && let Some(tenant) = self.apps.get_mut(bind.app)
        {
            let back = tenant.pool.put_back(self.now, rings);
            self.note_put_back(bind.app, back);
        }
        opened
    }

    fn try_open_queue(&mut self, bind: QueueBind, rings: RingPair) -> Result<(), Reason> {
        let QueueBind { app, request, queue: id, size } = bind;
        let local = SocketAddr::new(self.local_address(), 0);
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        let memory = |place| tenant.pool.memory(place, size.first).ok_or(Reason::LocalLimit);
        let (tx_memory, rx_memory) = (memory(rings.tx)?, memory(rings.rx)?);
        if !tenant.has_slot() || self.ops.queues.is_full() {
            return Err(Reason::LocalLimit);
        }
        let queue = self.ops.queues.insert_with(|key| {
            let slot = tenant.take_queue_slot(key).expect("a slot is free, as asked above");
            let words = &slot.words;
            clear_slot(words, slot.generation, 0, shm::slot_state::ESTABLISHED);
            let cursors = "the pool's places lie in their chunks, and the daemon's own mapping is writable";
            let tx = RingReader::new(tx_memory, words.tx_tail.clone(), words.tx_head.clone(), 0).expect(cursors);
            let rx = RingWriter::new(rx_memory, words.rx_tail.clone(), words.rx_head.clone(), 0).expect(cursors);
            OperationQueue::new(NewQueue { id, app, slot, local, rings, ring_bytes: size.first, tx, rx })
        });
        let queue = queue.ok_or(Reason::LocalLimit)?;
        tenant.add_queue(queue);
        let Some(made) = self.ops.queues.get(queue) else { return Err(Reason::LocalLimit) };
        self.events.push_back(Event::Connected { app, request, result: Ok(made.connection()) });
        Ok(())
    }

    // ---- doorbells and ends

    /// The application rang for a queue.
    pub(super) fn on_queue(&mut self, id: QueueId) {
        let Some(queue) = self.ops.queues.get_mut(id) else { return };
        if queue.on_doorbell() {
            self.close_queue(id);
        } else {
            self.ops.note_due(id);
        }
    }

    /// Nothing more of a queue begins. It is released when the device is done with what was posted.
    pub(super) fn close_queue(&mut self, id: QueueId) {
        self.abandon_operations(|op| op.queue == id, true);
        self.ops.close_queue(id);
    }

    /// Frees a queue in this chunk, which its application cannot use.
    pub(super) fn close_queue_in(&mut self, id: QueueId, chunk: u32) {
        if self.ops.queues.get(id).is_some_and(|q| q.rings().is_in(chunk)) {
            self.close_queue(id);
        }
    }

    /// Frees slot and rings. Nothing of it is in flight.
    fn release_queue(&mut self, id: QueueId) {
        if !self.ops.queues.get(id).is_some_and(OperationQueue::is_over) {
            return;
        }
        let Some(queue) = self.ops.queues.remove(id) else { return };
        let SlotAt { app, slot } = queue.at();
        self.events.push_back(Event::SocketOver { app, socket: queue.id() });
        let Some(tenant) = self.apps.get_mut(app) else { return };
        tenant.drop_queue(id);
        tenant.put_back_slot(slot, queue.words());
        let back = tenant.pool.put_back(self.now, queue.rings());
        self.note_put_back(app, back);
        self.serve_rings(app, RingSize::fixed(queue.ring_bytes()));
        self.apps.note_departure(app);
    }

    // ---- a round

    /// Looks at the queues of which something changed. Says whether there were any.
    pub(super) fn run_operations(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..self.ops.due() {
            let Some(id) = self.ops.next_due() else { break };
            if self.ops.queues.get(id).is_none_or(OperationQueue::is_placed) {
                continue;
            }
            worked = true;
            match self.ops.look(id) {
                Look::Idle => {}
                Look::More => self.ops.note_due(id),
                Look::Ready(lane) => self.place_queue(id, lane),
            }
            self.ops.show_room(id);
        }
        worked
    }

    /// A queue has something for a lane: it has its turns there, or waits until the lane is up.
    fn place_queue(&mut self, id: QueueId, to: LaneId) {
        let (Some(lane), Some(queue)) = (self.lanes.get_mut(to), self.ops.queues.get_mut(id)) else { return };
        if !queue.enter_lane(to) {
            return;
        }
        if lane.is_up() {
            lane.push_queue(queue.at().app, id);
            self.lanes.queue(to);
            return;
        }
        lane.flight_mut().park(id);
        let peer = lane.peer();
        if !lane.has_qp() && !lane.holds_connections() && lane.want() {
            self.events.push_back(Event::PeerWanted { peer });
        }
        self.wake_lane(to);
    }

    /// A lane is up: those that waited for it have their turns.
    pub(super) fn unpark_queues(&mut self, lane: LaneId) {
        let parked = self.lanes.get_mut(lane).map(|l| l.flight_mut().take_parked()).unwrap_or_default();
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
    pub(super) fn on_operations_sent(&mut self, id: LaneId, wr: u64) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let flight = lane.flight_mut();
        while let Some(op) = flight.take_placed(wr) {
            self.ops.on_placed(op, flight);
        }
        let waiting = flight.take_waiting();
        self.look_again(id, waiting);
    }

    /// Carries out what operations left: wakes, faults, ends of queues and of handles. Says whether there was any.
    pub(super) fn settle_operations<P: Provider>(&mut self, nic: &mut P) -> bool {
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
        for mr in self.ops.locals.take_unused() {
            self.dereg(nic, mr);
        }
        true
    }
}
