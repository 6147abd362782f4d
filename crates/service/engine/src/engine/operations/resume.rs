//! Operations when a lane's queue pair is gone: READs begin again, what owners were asked for is asked again if it did
//! not arrive, and WRITEs that may have been placed end with an unknown outcome. What is behind such a WRITE in its chain
//! is not asked for again: it must not take effect without the WRITE.
//!
//! Owns that nothing is done twice. Frames have numbers that go on over queue pairs, and a report says which the peer
//! handled: what was in these was done once, what was in later ones was not done.

use std::collections::BTreeSet;

use control::Reason;
use shm::OperationStatus;

use crate::engine::Engine;
use crate::ids::{LaneId, OperationId};
use crate::operations::Outcome;

fn unknown(reason: Reason) -> Outcome {
    Outcome::of(OperationStatus::OutcomeUnknown, reason.code().into())
}

impl Engine {
    /// The queue pair is destroyed, and the lane goes on with another one, or will.
    /// `reason`: of what may have been done.
    pub(in crate::engine) fn keep_operations(&mut self, id: LaneId, reason: Reason) {
        let mut failed = BTreeSet::new();
        for op_id in self.ops.of_lane(id) {
            let Some(op) = self.ops.get_mut(op_id) else { continue };
            let chain = (op.queue, op.chain);
            op.is_cut_off |= failed.contains(&chain);
            let Some(op) = self.ops.get(op_id) else { continue };
            // What waits for the owner's engine: `hear_operations` knows whether it arrived.
            if op.is_placed && (op.asked.is_some() || !op.is_cut_off) {
                continue;
            }
            let outcome = match op.verdict {
                // The device is done with it now.
                Some(verdict) => Some(verdict),
                None if op.is_cut_off && !op.is_read() => Some(op.cut_off(reason)),
                None if op.may_have_effect() => Some(unknown(reason)),
                None => self.ops.regions.verdict(op.handle),
            };
            if outcome.as_ref().is_some_and(|outcome| outcome.status != OperationStatus::Ok) {
                failed.insert(chain);
            }
            let Some(lane) = self.lanes.get_mut(id) else { return };
            match outcome {
                Some(outcome) => {
                    lane.on.operations.take_back_ask(op_id);
                    self.ops.end(op_id, &mut lane.on.operations, outcome);
                }
                None => self.ops.begin_again(op_id),
            }
        }
        self.ops.free_places(id);
    }

    /// The peer handled frames up to this one, of those that were sent on the old queue pair. If it `is_fresh`, it kept
    /// nothing of what it did.
    pub(in crate::engine) fn hear_operations(&mut self, id: LaneId, arrived: u64, is_fresh: bool) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let peer = lane.peer();
        let answers = &mut lane.on.operations.answers;
        if is_fresh {
            answers.clear();
            self.ops.kernels.drop_lane(id, peer);
            self.ops.notices.drop_lane(id);
        } else {
            answers.on_arrived(arrived);
        }
        let mut again = Vec::new();
        for op_id in self.ops.of_lane(id) {
            let Some(op) = self.ops.get_mut(op_id).filter(|op| op.verdict.is_none()) else { continue };
            let Some(asked) = op.asked else { continue };
            if is_fresh {
                self.end_operation(id, op_id, unknown(Reason::LaneFailed));
                continue;
            }
            if asked.frame <= arrived {
                continue;
            }
            op.asked = None;
            if op.is_cut_off {
                let outcome = op.cut_off(Reason::LaneFailed);
                self.end_operation(id, op_id, outcome);
                continue;
            }
            let (has_effect, handle) = (op.may_have_effect(), op.handle);
            match self.ops.regions.verdict(handle) {
                None => again.push((asked.order, op_id)),
                Some(_) if has_effect => {
                    let reason = self.ops.regions.end_of(handle);
                    self.end_operation(id, op_id, unknown(reason));
                }
                Some(refused) => self.end_operation(id, op_id, refused),
            }
        }
        again.sort_unstable();
        self.ops.counters.repeated += again.len() as u64;
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on.operations.ask_again(again.into_iter().map(|(_, op)| op).collect());
        }
    }

    /// The lane is severed: nobody tells what arrived.
    pub(in crate::engine) fn sever_operations(&mut self, id: LaneId, reason: Reason) {
        self.keep_operations(id, reason);
        for op_id in self.ops.of_lane(id) {
            if self.ops.get(op_id).is_some_and(|op| op.asked.is_some()) {
                self.end_operation(id, op_id, unknown(reason));
            }
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on.operations.answers.clear();
            let peer = lane.peer();
            self.ops.kernels.drop_lane(id, peer);
            self.ops.notices.drop_lane(id);
        }
    }

    fn end_operation(&mut self, id: LaneId, op: OperationId, outcome: Outcome) {
        if let Some(lane) = self.lanes.get_mut(id) {
            self.ops.end(op, &mut lane.on.operations, outcome);
        }
    }
}
