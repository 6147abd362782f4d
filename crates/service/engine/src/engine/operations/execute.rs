//! What peers ask for, and what they answered.
//!
//! Owns the way from a record to the bytes of a region and back. A record that breaks a rule fails its lane alone.

use shm::OperationStatus;

use crate::ask::Ask;
use crate::engine::Engine;
use crate::ids::{LaneId, OperationId};
use crate::limits::OPERATIONS_PER_LANE_MAX;
use crate::operations::Outcome;
use crate::operations::answers::{Answer, Said};
use crate::table::Key;
use crate::violation::Violation;

impl Engine {
    /// A peer asks for something in a region of this host.
    pub(in crate::engine) fn on_execute(
        &mut self,
        id: LaneId,
        (key, operation): (u32, u32),
        offset: u64,
        ask: Ask,
    ) -> Result<(), Violation> {
        if let Ask::Notify { tag, bytes } = ask {
            return self.on_notify(id, (key, operation), (offset, tag, bytes));
        }
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        let outcome = self.ops.owned.execute(lane.peer(), key, offset, ask)?;
        self.ops.counters.executed += 1;
        let value = if outcome.status == OperationStatus::Ok { outcome.value } else { outcome.detail };
        let answer = Answer { id: operation, said: Said::Executed { status: outcome.status, value } };
        let too_many = |_| Violation::TooManyOperations(OPERATIONS_PER_LANE_MAX);
        lane.on.operations.answers.owe(answer).map_err(too_many)?;
        self.wake_lane(id);
        Ok(())
    }

    /// A peer did what an operation of this host asked for.
    pub(in crate::engine) fn on_executed(
        &mut self,
        id: LaneId,
        operation: u32,
        status: OperationStatus,
        value: u64,
    ) -> Result<(), Violation> {
        let key = OperationId::from_bits(operation);
        match self.ops.get(key) {
            // Its application closed the queue, or left.
            None => {
                self.counters.stale_frames += 1;
                return Ok(());
            }
            Some(op) if op.lane != id || op.run.is_some() => return Err(Violation::OperationAnswer(operation)),
            Some(_) => {}
        }
        let outcome = match status {
            OperationStatus::Ok => Outcome { value, ..Outcome::DONE },
            status => Outcome::of(status, value),
        };
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        if self.ops.on_answer(key, &mut lane.on.operations, outcome) {
            Ok(())
        } else {
            Err(Violation::OperationAnswer(operation))
        }
    }
}
