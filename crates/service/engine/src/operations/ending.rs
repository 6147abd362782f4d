//! Operations end: completions, and everything that an operation held.
//!
//! Owns that an operation ends once. Its memory is free only when the device is done with it.

use shm::{Class, CompletionRecord, OperationStatus, Submission};

use crate::ids::{AppId, OperationId, QueueId};
use crate::numbers::count;

use super::flight::Flight;
use super::{Memory, Operations, Outcome};

impl Operations {
    /// Says to an application how an operation of its queue ended.
    pub(crate) fn tell(&mut self, id: QueueId, submission: &Submission, outcome: Outcome, payload: &[u8]) {
        let Some(queue) = self.queues.get_mut(id).filter(|q| !q.is_closed()) else { return };
        let record = CompletionRecord {
            tag: submission.tag,
            status: outcome.status,
            bytes: count(payload.len()),
            value: outcome.value,
            detail: outcome.detail,
        };
        match queue.complete(submission, &record, payload) {
            Ok(awaited) => self.marks.push((queue.at(), awaited)),
            Err(fault) => self.faults.push((id, fault)),
        }
    }

    /// All bytes of an operation are posted.
    pub(crate) fn on_all_posted(&mut self, id: OperationId, wr: u64, flight: &mut Flight) {
        flight.on_posted(wr, id);
        let Some(op) = self.table.get_mut(id) else { return };
        let queue = op.queue;
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.finish_current(id);
        }
        if op.ask.is_some() {
            flight.push_ask(id);
        }
        // Its bytes were copied: the caller's memory is free.
        if op.submission.class == Class::Posted && op.ask.is_none() && matches!(op.memory, Memory::Buffer(_)) {
            let submission = op.submission;
            if !op.is_read() {
                op.is_told = true;
                self.tell(queue, &submission, Outcome::DONE, &[]);
            }
        }
    }

    /// The device has done all of an operation's bytes.
    pub(crate) fn on_placed(&mut self, id: OperationId, flight: &mut Flight) {
        let Some(op) = self.table.get_mut(id) else { return };
        op.is_placed = true;
        // The owner may take long to answer. Its bytes are there, and others need the place where they lay.
        if let Memory::Buffer(slot) = op.memory
            && !op.is_read()
            && let Some(buffers) = &mut flight.buffers
        {
            op.memory = Memory::None;
            buffers.put_back(slot);
        }
        if op.is_done() {
            let outcome = op.verdict.unwrap_or(Outcome::DONE);
            self.end(id, flight, outcome);
        }
    }

    /// The owner's engine answered. False: nothing was asked for by this name.
    pub(crate) fn on_answer(&mut self, id: OperationId, flight: &mut Flight, outcome: Outcome) -> bool {
        let Some(op) = self.table.get_mut(id) else { return true };
        if op.asked.is_none() || op.verdict.is_some() {
            return false;
        }
        op.verdict = Some(outcome);
        if op.is_done() {
            self.end(id, flight, outcome);
        }
        true
    }

    /// Ends an operation. The device does not touch its memory any more.
    pub(crate) fn end(&mut self, id: OperationId, flight: &mut Flight, outcome: Outcome) {
        let Some(op) = self.table.remove(id) else { return };
        if outcome.status == OperationStatus::OutcomeUnknown {
            self.counters.unknown += 1;
        }
        let mut payload = std::mem::take(&mut self.scratch);
        payload.clear();
        if let Memory::Buffer(slot) = op.memory
            && let Some(buffers) = &mut flight.buffers
        {
            if op.is_read() && outcome.status == OperationStatus::Ok {
                payload.resize(op.submission.bytes as usize, 0);
                let read = buffers.read(slot, &mut payload);
                debug_assert!(read, "a submission's inline bytes fit a slot");
            }
            buffers.put_back(slot);
        }
        if let Some(run) = &op.run
            && matches!(outcome.status, OperationStatus::Ok | OperationStatus::KernelFailed)
        {
            payload.extend_from_slice(&run.answer);
        }
        flight.end();
        self.regions.end(op.handle);
        if let Some(queue) = self.queues.get_mut(op.queue) {
            queue.finish_current(id);
            queue.end();
            if outcome.status != OperationStatus::Ok {
                queue.on_failed(op.chain);
            }
            let app = queue.at().app;
            if let Memory::Local(pieces) = &op.memory {
                self.locals.release(app, pieces);
            }
        }
        if !op.is_told {
            self.tell(op.queue, &op.submission, outcome, &payload);
        }
        self.scratch = payload;
        self.note_closed(op.queue);
        self.note_due(op.queue);
        for queue in flight.take_waiting() {
            if self.queues.get_mut(queue).is_some_and(|q| q.leave_lane(op.lane)) {
                self.note_due(queue);
            }
        }
    }

    /// An application closed a queue, or left: what was not begun is not done, and what the owner was not asked for is
    /// not asked for.
    pub(crate) fn close_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.close();
        }
        self.note_closed(id);
    }

    /// An application left: its queues, and their operations.
    pub(crate) fn queues_of(&self, app: AppId) -> Vec<QueueId> {
        self.queues.iter().filter(|(_, q)| q.at().app == app).map(|(id, _)| id).collect()
    }
}
