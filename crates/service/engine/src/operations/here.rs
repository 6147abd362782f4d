//! Operations on a region of this host: of its one writer, who has nothing mapped, so that it can be fenced off; and of
//! those who have it mapped and have its owner told.
//!
//! Owns that an operation is done where its submission stands, before the next one of its queue begins: when the handle is
//! gone nothing more of it lands. A long one goes in slices, between which others have their turns.

use control::Reason;
use shm::{LocalSegment, Opcode, OperationStatus, Submission};
use verbs::{Region, Time};

use super::regions::{Target, Way};
use super::{Operations, Outcome};
use crate::ask::Ask;
use crate::ids::{AppId, QueueId};
use crate::numbers::few;

/// Bytes of a slice: what a turn of a lane moves too.
const SLICE_BYTES: u32 = 64 << 10;

/// How a slice of an operation ended.
enum Slice {
    /// More is to be done.
    More,
    /// The operation has ended, and `scratch` has what it read.
    Over(Outcome),
}

impl Operations {
    /// Does the front submission of a queue in a region of this host, or a slice of it. False: more of it is to be done.
    pub(super) fn do_here(&mut self, id: QueueId, front: &Submission, target: &Target, now: Time) -> bool {
        let mut payload = std::mem::take(&mut self.scratch);
        payload.clear();
        let slice = match &target.way {
            Way::Here(memory) => self.slice_here(id, front, memory, &mut payload),
            // The program wrote them itself.
            Way::Mapped | Way::Lane(_) => Slice::Over(Outcome::DONE),
        };
        let is_over = if let Slice::Over(outcome) = slice {
            self.counters.begun += 1;
            if front.opcode == Opcode::WriteNotify && outcome.status == OperationStatus::Ok {
                self.tell_here(id, front, (target.handle, target.region), now);
            } else {
                self.take_here(id, front, outcome, &payload);
            }
            true
        } else {
            false
        };
        self.scratch = payload;
        is_over
    }

    /// A submission whose handle has ended: a part of it may have been done.
    pub(super) fn cut_short(&mut self, id: QueueId, refused: Outcome) -> Outcome {
        match self.queues.get_mut(id).map(|queue| queue.done_here()) {
            Some(done) if done > 0 => Outcome::of(OperationStatus::OutcomeUnknown, Reason::Superseded.code().into()),
            _ => refused,
        }
    }

    fn take_here(&mut self, id: QueueId, front: &Submission, outcome: Outcome, payload: &[u8]) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let chain = queue.take_front();
        if outcome.status != OperationStatus::Ok {
            queue.on_failed(chain);
        }
        self.tell(id, front, outcome, payload);
    }

    fn slice_here(&mut self, id: QueueId, front: &Submission, memory: &Region, payload: &mut Vec<u8>) -> Slice {
        let Some(queue) = self.queues.get_mut(id) else { return Slice::Over(Outcome::DONE) };
        let failed = Slice::Over(Outcome::of(OperationStatus::Failed, Reason::LocalLimit.code().into()));
        if let Some(Ask::Atomic(atomic)) = Ask::atomic_of(front) {
            let found = memory.atomic64(front.offset, atomic);
            return found.map_or(failed, |value| Slice::Over(Outcome { value, ..Outcome::DONE }));
        }
        if front.segments > 0 {
            let (app, done) = (queue.at().app, queue.done_here());
            let segments = queue.copy_segments(front);
            let Some(moved) = self.copy_here(app, &segments, front, done, memory) else {
                return Slice::Over(Outcome::of(OperationStatus::NoLocalRegion, 0));
            };
            let Some(queue) = self.queues.get_mut(id) else { return Slice::Over(Outcome::DONE) };
            queue.set_done_here(done + moved);
            return if done + moved < front.bytes { Slice::More } else { Slice::Over(Outcome::DONE) };
        }
        // Inline bytes are at most those of one record.
        let moved = match front.opcode {
            Opcode::Read => {
                payload.resize(front.bytes as usize, 0);
                memory.read_whole_words(front.offset, payload)
            }
            _ => {
                queue.copy_payload(front, payload);
                let written = memory.write_whole_words(front.offset, payload);
                payload.clear();
                written
            }
        };
        moved.map_or(failed, |()| Slice::Over(Outcome::DONE))
    }

    /// Copies the next slice between a region and local memory of the program; how many bytes that is.
    fn copy_here(
        &self,
        app: AppId,
        segments: &[LocalSegment],
        front: &Submission,
        done: u32,
        memory: &Region,
    ) -> Option<u32> {
        let sum = segments.iter().fold(0u64, |sum, segment| sum + u64::from(segment.bytes));
        if sum != u64::from(front.bytes) {
            return None;
        }
        let mut before = 0;
        for segment in segments {
            let skipped = done - before;
            if skipped >= segment.bytes {
                before += segment.bytes;
                continue;
            }
            let is_read = front.opcode == Opcode::Read;
            let local = self.locals.memory(app, segment.region, is_read)?;
            let bytes = few(u64::from((segment.bytes - skipped).min(SLICE_BYTES)));
            let (far, near) = (front.offset + u64::from(done), segment.offset.checked_add(skipped.into())?);
            let copied = match is_read {
                true => local.copy_from(near, memory, far, bytes.into()),
                false => memory.copy_from(far, local, near, bytes.into()),
            };
            return copied.ok().map(|()| bytes);
        }
        Some(0)
    }
}
