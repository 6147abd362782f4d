//! Operations begin: submissions are judged, and taken out of their queues.
//!
//! Owns the rules of a queue: fence, chain, room for completions. It must never take what the lane has no room for.

use shm::{Class, KERNEL_REGION_BYTES, Opcode, OperationStatus, Submission};
use verbs::Time;

use crate::ids::{HandleId, LaneId, OperationId, QueueId};
use crate::limits::OPERATION_LOOKS_PER_TURN;
use crate::one_sided::OneSided;

use super::flight::Flight;
use super::regions::{Target, Way};
use super::{Memory, Operation, Operations, Outcome, Running};
use crate::ask::Ask;
use crate::pins::Uncovered;
use crate::table::Key;

/// What a look at a queue found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Look {
    /// It waits for its application, or for its own operations.
    Idle,
    /// It has something for this lane.
    Ready(LaneId),
    /// Only refusals so far: it is to be looked at again.
    More,
}

/// What a queue has for its lane.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next {
    /// An operation whose bytes are to be posted.
    Post(OperationId),
    /// One that needs no bytes of its own was taken.
    Taken,
    /// Nothing more.
    Idle,
    /// The lane takes no more of it for now.
    LaneFull,
}

impl Operations {
    /// Where the next operation of a queue goes. Refusals are completed on the way.
    pub(crate) fn look(&mut self, id: QueueId, now: Time) -> Look {
        if let Some(current) = self.queues.get_mut(id).and_then(|q| q.current()) {
            return self.get(current).map_or(Look::Idle, |op| Look::Ready(op.lane));
        }
        for _ in 0..OPERATION_LOOKS_PER_TURN {
            match self.judge(id) {
                None => return Look::Idle,
                Some(Ok((_, Target { way: Way::Lane(lane), .. }))) => return Look::Ready(lane),
                Some(Ok((front, _))) if self.is_held_back(id, &front) => return Look::Idle,
                Some(Ok((front, target))) => {
                    if !self.do_here(id, &front, &target, now) {
                        return Look::More;
                    }
                }
                Some(Err(outcome)) => {
                    let outcome = self.cut_short(id, outcome);
                    self.refuse(id, outcome);
                }
            }
        }
        Look::More
    }

    /// The front submission of a queue, and where it goes or why it does not. `None`: there is none.
    fn judge(&mut self, id: QueueId) -> Option<Result<(Submission, Target), Outcome>> {
        let queue = self.queues.get_mut(id)?;
        let front = match queue.front() {
            Ok(front) => front?,
            Err(fault) => {
                self.faults.push((id, fault));
                return None;
            }
        };
        if queue.is_broken() {
            return Some(Err(Outcome::of(OperationStatus::ChainBroken, 0)));
        }
        let app = queue.at().app;
        Some(self.regions.check(app, &front).map(|target| (front, target)))
    }

    /// Ends the front submission of a queue before anything of it was done.
    fn refuse(&mut self, id: QueueId, outcome: Outcome) {
        self.counters.refused += 1;
        let Some(queue) = self.queues.get_mut(id) else { return };
        let Ok(Some(front)) = queue.front() else { return };
        let chain = queue.take_front();
        queue.on_failed(chain);
        self.tell(id, &front, outcome, &[]);
    }

    /// What a queue whose turn it is has for this lane.
    pub(crate) fn next(&mut self, id: QueueId, lane: LaneId, flight: &mut Flight, one_sided: &OneSided) -> Next {
        if let Some(current) = self.queues.get_mut(id).and_then(|q| q.current()) {
            let Some(op) = self.get(current) else { return Next::Idle };
            if op.lane != lane {
                return Next::Idle;
            }
            return if op.is_read() && !one_sided.may_read() { Next::LaneFull } else { Next::Post(current) };
        }
        let (front, handle) = match self.judge(id) {
            None => return Next::Idle,
            Some(Err(outcome)) => {
                self.refuse(id, outcome);
                return Next::Taken;
            }
            Some(Ok((front, Target { handle, way: Way::Lane(of), .. }))) if of == lane => (front, handle),
            Some(Ok(_)) => return Next::Idle,
        };
        let is_run = front.opcode == Opcode::Run;
        let is_inline = front.segments == 0 && !front.opcode.is_atomic() && !is_run && front.bytes > 0;
        let is_read = front.opcode == Opcode::Read;
        if is_run && front.bytes > flight.kernel_bytes_max() {
            self.refuse(id, Outcome::of(OperationStatus::TooLong, flight.kernel_bytes_max().into()));
            return Next::Taken;
        }
        if is_read && one_sided.takes_no_reads() || is_inline && flight.buffers.is_none() {
            self.refuse(id, Outcome::of(OperationStatus::Failed, control::Reason::LocalLimit.code().into()));
            return Next::Taken;
        }
        let has_buffer = !is_inline || flight.buffers.as_ref().is_some_and(|b| b.has_free());
        if flight.is_full() || !has_buffer || is_read && !one_sided.may_read() {
            return Next::LaneFull;
        }
        self.take(id, &front, (handle, lane), flight)
    }

    /// The kernel of a submission. None: it has none.
    fn running(
        &mut self,
        id: QueueId,
        front: &Submission,
        (handle, lane): (HandleId, LaneId),
    ) -> Result<Option<Box<Running>>, Outcome> {
        let Some(queue) = self.queues.get_mut(id).filter(|_| front.opcode == Opcode::Run) else { return Ok(None) };
        let app = queue.at().app;
        let mut payload = std::mem::take(&mut self.scratch);
        queue.copy_payload(front, &mut payload);
        let named = usize::try_from(front.operand).unwrap_or(usize::MAX).saturating_mul(KERNEL_REGION_BYTES as usize);
        let (named, request) = payload.split_at(named.min(payload.len()));
        let mut regions = vec![self.regions.run_region(app, handle.bits(), lane)];
        for bytes in named.chunks_exact(KERNEL_REGION_BYTES as usize) {
            let number = bytes.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
            regions.push(self.regions.run_region(app, number, lane));
        }
        let regions: Result<Vec<_>, Outcome> = regions.into_iter().collect();
        let request = request.to_vec();
        self.scratch = payload;
        Ok(Some(Box::new(Running { program: app.bits(), regions: regions?, request, answer: Vec::new() })))
    }

    fn take(
        &mut self,
        id: QueueId,
        front: &Submission,
        (handle, lane): (HandleId, LaneId),
        flight: &mut Flight,
    ) -> Next {
        let run = match self.running(id, front, (handle, lane)) {
            Ok(run) => run,
            Err(outcome) => {
                self.refuse(id, outcome);
                return Next::Taken;
            }
        };
        let Some(queue) = self.queues.get_mut(id) else { return Next::Idle };
        let app = queue.at().app;
        let memory = match (front.bytes, front.segments) {
            _ if front.opcode.is_atomic() || run.is_some() => Memory::None,
            (0, _) => Memory::None,
            (_, 0) => {
                let Some(slot) = flight.buffers.as_mut().and_then(|b| b.take()) else { return Next::LaneFull };
                if front.inline_bytes() > 0 {
                    let mut payload = std::mem::take(&mut self.scratch);
                    queue.copy_payload(front, &mut payload);
                    let fits = flight.buffers.as_ref().is_some_and(|b| b.fill(slot, &payload));
                    debug_assert!(fits, "a submission's inline bytes fit a slot");
                    self.scratch = payload;
                }
                Memory::Buffer(slot)
            }
            _ => match self.locals.resolve(app, &queue.copy_segments(front), front) {
                Ok(pieces) => Memory::Local(pieces),
                // A round that registers more lets it go on.
                Err(Uncovered::NotYet) => return Next::LaneFull,
                Err(Uncovered::Never) => {
                    self.refuse(id, Outcome::of(OperationStatus::NoLocalRegion, 0));
                    return Next::Taken;
                }
            },
        };
        let ask = ask_of(front, flight.is_confirming());
        let has_bytes = !matches!(memory, Memory::None);
        let chain = queue.take_front();
        queue.begin();
        self.sequence += 1;
        let op = self.table.insert(Operation {
            queue: id,
            handle,
            lane,
            submission: *front,
            chain,
            sequence: self.sequence,
            memory,
            posted: 0,
            last_wr: 0,
            is_placed: !has_bytes,
            ask,
            run,
            asked: None,
            verdict: None,
            is_told: false,
            is_cut_off: false,
        });
        // The table has room for as many as all lanes may have.
        let Some(op) = op else { return Next::LaneFull };
        flight.begin();
        self.regions.begin(handle);
        self.count(app, front.opcode);
        if has_bytes {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.set_current(op);
            }
            return Next::Post(op);
        }
        if ask.is_some() {
            flight.push_ask(op);
        } else {
            self.end(op, flight, Outcome::DONE);
        }
        Next::Taken
    }

    fn count(&mut self, app: crate::ids::AppId, opcode: Opcode) {
        self.counters.begun += 1;
        let verbs = self.verbs.entry(app).or_default();
        match opcode {
            Opcode::Read => verbs.reads += 1,
            Opcode::Write | Opcode::WriteNotify => verbs.writes += 1,
            Opcode::Run => verbs.kernels += 1,
            _ => verbs.atomics += 1,
        }
    }
}

/// What the owner's engine has to do behind the bytes of a submission.
fn ask_of(front: &Submission, is_confirming: bool) -> Option<Ask> {
    match front.opcode {
        Opcode::WriteNotify => Some(Ask::Notify { tag: front.notify, bytes: front.told().1 }),
        Opcode::Write if front.class == Class::Visible && is_confirming => Some(Ask::Confirm),
        Opcode::Read | Opcode::Write => None,
        Opcode::Run => Some(Ask::Run),
        _ => Ask::atomic_of(front),
    }
}
