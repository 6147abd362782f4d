//! The turn of an operation queue on a lane: READs and WRITEs in pieces, and records for the rest.
//!
//! Owns how an operation becomes work requests. It must never post what `operations::regions` did not check.

use shm::Opcode;
use verbs::{PostError, Provider, RemoteAddr, Rkey, SendOp, Sge};

use crate::ask::Ask;
use crate::engine::mechanism::Telling;
use crate::engine::pump::{Pump, Turn};
use crate::frame::{FrameWriter, OperationRecord};
use crate::ids::{OperationId, QueueId};
use crate::lane::Lane;
use crate::limits::{SEND_QUEUE_RESERVED, WORK_REQUEST_BYTES};
use crate::operations::buffers::Buffers;
use crate::operations::taking::Next;
use crate::operations::{Asked, Memory};
use crate::table::Key;

impl Pump<'_> {
    /// Sends of one queue until its turn ends.
    pub(in crate::engine) fn queue_turn<P: Provider>(&mut self, nic: &mut P, id: QueueId) -> Result<Turn, PostError> {
        if self.lane.on.operations.buffers.is_none() {
            // Without them operations whose bytes travel in the rings are refused.
            self.lane.on.operations.buffers = Buffers::new(nic).ok();
        }
        let turn = self.queue_turn_quietly(nic, id);
        self.ops.show_room(id);
        turn
    }

    fn queue_turn_quietly<P: Provider>(&mut self, nic: &mut P, id: QueueId) -> Result<Turn, PostError> {
        loop {
            let Some(queue) = self.ops.queues.get(id) else { return Ok(Turn::Drained) };
            let allowance = self.lane.drr.allowance(queue.deficit());
            if allowance == 0 {
                return Ok(Turn::Spent(queue.deficit()));
            }
            let op = match self.ops.next(id, self.id, &mut self.lane.on.operations, &self.lane.one_sided) {
                Next::Post(op) => op,
                Next::Taken => {
                    self.spend(id, 0);
                    continue;
                }
                Next::Idle => return Ok(Turn::Drained),
                Next::LaneFull => return Ok(Turn::Waits),
            };
            // Pieces that do not fit what is left of the turn would be many and short.
            let Some(bytes) = self.next_piece(op, allowance) else { return Ok(Turn::Drained) };
            if !self.lane.sendq.has_room(bytes, SEND_QUEUE_RESERVED) {
                return Ok(Turn::Blocked);
            }
            self.post_piece(op, bytes);
            self.spend(id, bytes);
            self.counters.operations_posted += 1;
            if self.lane.sendq.is_batch_full() {
                self.lane.flush(nic, self.now)?;
            }
        }
    }

    /// One work request, or record in place of one, with so many bytes of the program's.
    fn spend(&mut self, id: QueueId, bytes: u32) {
        if let Some(queue) = self.ops.queues.get_mut(id) {
            self.lane.drr.spend(queue.deficit_mut(), bytes.max(WORK_REQUEST_BYTES));
        }
        self.tenants.charge(self.lane.drr.tenant(), bytes.into(), self.now);
    }

    /// Bytes of the next piece of an operation: of one stretch of memory.
    fn next_piece(&self, id: OperationId, allowance: u32) -> Option<u32> {
        let op = self.ops.get(id)?;
        let left = match &op.memory {
            Memory::None => return None,
            Memory::Buffer(_) => op.submission.bytes - op.posted,
            Memory::Local(_) => local_place(op.posted, &op.memory)?.1,
        };
        Some(left.min(self.lane.one_sided.piece_bytes_max()).min(allowance))
    }

    fn post_piece(&mut self, id: OperationId, bytes: u32) {
        let lane = &mut *self.lane;
        let Some(op) = self.ops.get(id) else { return };
        let Some(grant) = self.ops.regions.grant(op.handle) else { return };
        let addr = grant.addr + op.submission.offset + u64::from(op.posted);
        let remote = RemoteAddr { addr, rkey: Rkey(grant.rkey) };
        let Some(sge) = local_sge(lane, op.posted, &op.memory, bytes) else { return };
        let is_read = op.submission.opcode == Opcode::Read;
        let is_last = op.posted + bytes >= op.submission.bytes;
        let verb = if is_read { SendOp::Read(remote) } else { SendOp::Write(remote) };
        let wr = lane.sendq.stage_operation(verb, sge);
        if is_read {
            lane.one_sided.on_read_posted(wr);
        } else {
            lane.tx_bytes += u64::from(bytes);
            lane.one_sided.on_write_posted();
        }
        if let Some(op) = self.ops.get_mut(id) {
            (op.posted, op.last_wr) = (op.posted + bytes, wr);
        }
        if is_last {
            self.ops.on_all_posted(id, wr, &mut lane.on.operations);
        }
    }
}

/// Writes what is owed to the peer, and then what it is asked for. False: the frame is full.
pub(super) fn write(telling: &mut Telling<'_>, frame: &mut FrameWriter<'_>) -> bool {
    let Telling { lane, ops, .. } = telling;
    // The lane counts it when the frame leaves.
    let number = lane.frames.next();
    let flight = &mut lane.on.operations;
    while let Some(answer) = flight.answers.front() {
        if !frame.push(&answer.record()) {
            return false;
        }
        flight.answers.on_sent(number);
    }
    while let Some(id) = flight.front_ask() {
        let order = ops.next_ask();
        let record = ops.get(id).and_then(|op| {
            let key = ops.regions.grant(op.handle)?.rkey;
            if let Some(run) = &op.run {
                return Some(OperationRecord::Run(run.record(id.bits())));
            }
            let ask = op.ask?;
            let offset = if matches!(ask, Ask::Notify { .. }) { op.submission.told().0 } else { op.submission.offset };
            Some(OperationRecord::Execute { key, id: id.bits(), offset, ask })
        });
        if let Some(record) = record {
            if !frame.push(&record) {
                return false;
            }
            if let Some(op) = ops.get_mut(id) {
                op.asked = Some(Asked { frame: number, order });
            }
        }
        flight.pop_ask();
    }
    true
}

/// The piece of local memory in which byte `at` of an operation lies, by index, and how many bytes are left in it.
fn local_place(at: u32, memory: &Memory) -> Option<(usize, u32)> {
    let Memory::Local(pieces) = memory else { return None };
    let mut before = 0;
    for (index, piece) in pieces.iter().enumerate() {
        if at < before + piece.bytes {
            return Some((index, before + piece.bytes - at));
        }
        before += piece.bytes;
    }
    None
}

fn local_sge(lane: &Lane, at: u32, memory: &Memory, len: u32) -> Option<Sge> {
    match memory {
        Memory::None => None,
        Memory::Buffer(slot) => Some(lane.on.operations.buffers.as_ref()?.sge(*slot, at, len)),
        Memory::Local(pieces) => {
            let (index, left) = local_place(at, memory)?;
            let piece = pieces.get(index)?;
            Some(piece.sge(piece.bytes - left, len))
        }
    }
}
